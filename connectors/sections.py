"""`SectionedPipeline`: a pipeline that sorts its connectors into observation rewriters, views and others.

    rewriters    ObservationRewriter   change the observations that episodes store; may have a state
    views        ViewPiece             compute what the policy sees; have no state; bound together as one `Views`
    others       Connector             add columns; padding and conversion to tensors come last

Rewriters and views move to their section, wherever they are inserted. Within a section connectors keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from connectors.connector import Connector
from connectors.fingerprint import describe_acting_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.views.piece import ViewPiece
from connectors.views.samples import space_of
from connectors.views.view import Views, name_of, settings_of_views
from episodes.errors import InvalidArgument, UnwiredPipeline, WrongType
from episodes.history import History
from episodes.tracks.validation import checked_items

__all__ = ["SectionedPipeline"]

Pieces = dict[str, Connector]  # by name


@dataclass(frozen=True)
class Sections:
    """Connectors of a pipeline by name, sorted into observation rewriters, views and others."""

    rewriters: dict[str, ObservationRewriter] = field(default_factory=dict)
    views: dict[str, ViewPiece] = field(default_factory=dict)
    pieces: Pieces = field(default_factory=dict)

    @classmethod
    def of(cls, pieces: Pieces) -> Sections:
        """Return connectors sorted into the sections observation rewriters, views and others.

        `FlattenObservations` is a rewriter before the first view and a view after it.

        Raises:
            UnwiredPipeline: a rewriter that is not a view comes after a view.
            InvalidArgument: a rewriter is only usable in `joint=`.
        """
        sections = cls()
        for name, piece in pieces.items():
            if isinstance(piece, ObservationRewriter):
                piece.check_place()
            if isinstance(piece, ViewPiece) and (sections.views or not isinstance(piece, ObservationRewriter)):
                sections.views[name] = piece
            elif not isinstance(piece, ObservationRewriter):
                sections.pieces[name] = piece
            elif not sections.views:
                sections.rewriters[name] = piece
            else:
                viewer = next(iter(sections.views))
                raise UnwiredPipeline(
                    f"{name} works on what episodes store, {viewer} changes what the policy sees of it: "
                    f"put {name} before {viewer}"
                )
        return sections

    def in_order(self) -> Pieces:
        """Return all connectors by name, in the order in which they run."""
        return {**self.rewriters, **self.views, **self.pieces}


class SectionedPipeline(ConnectorPipeline):
    """Pipeline that runs observation rewriters first, then views (policy inputs from stored data), then the others.

    Args:
        input_observation_space: space of the observations before the first connector.
        input_action_space: space of the actions before the first connector.
        connectors: the connectors. A plain function of a history is a view.
        input_columns: columns that the caller puts into the batch.
        views: bound views of the pipeline that acted. `connectors` must then have no views.
        name: name of the pipeline; by default the name of its class.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        connectors: Iterable[Any] = (),
        input_columns: Iterable[str] = (),
        views: Views | None = None,
        name: str | None = None,
    ) -> None:
        if views is not None and not isinstance(views, Views):
            raise WrongType(f"views={views!r}: give the views of another pipeline, `pipeline.views`, or leave them out")
        self._given_views = views
        self.bound_views: Views | None = None  # None before the spaces are known
        self._sections = Sections()
        self._see = self._make_section()
        self._stages: Pieces = {}
        self.view_settings: list[Any] = []  # [name, settings] of each view, as plain values
        self.acting_pipeline = ""  # rewriters and views as JSON text, see `connectors.fingerprint`
        if views is not None and input_observation_space is None:
            input_observation_space = views.given.observation_space
        if views is not None and input_action_space is None:
            input_action_space = views.given.action_space
        spaces = (input_observation_space, input_action_space)
        super().__init__(
            *spaces,
            connectors=map(as_piece, checked_items("connectors", connectors, "pieces")),
            input_columns=input_columns,
            name=name,
        )

    def _make_section(self) -> Connector:
        """Return the connector that represents all views when the pipeline runs."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its views are run")

    @property
    def views(self) -> Views:
        """Functions that compute the policy's inputs from stored observations, also for use by a learner or replay.

        Raises:
            InvalidArgument: the spaces are not known yet.
        """
        if self.bound_views is None:
            raise InvalidArgument(f"{self.name}: views are bound to spaces; give the pipeline the observation space")
        return self.bound_views

    def views_of(self, make_history: Callable[[], History]) -> Views:
        """Return the views. An unknown observation space is derived from the observations of `make_history()`."""
        if self.bound_views is not None:
            return self.bound_views
        if not self.has_views:
            return Views()
        return Views(self._sections.views.values(), space_of(make_history().newest()), self._input_action_space)

    @property
    def observation_space(self) -> gym.Space:
        """Space of the observations that the policy sees.

        Raises:
            InvalidArgument: the pipeline has no observation space yet.
        """
        if self._observation_space is None:
            raise InvalidArgument(f"{self.name} has no observation space yet: give it one, or `bind` it")
        return self._observation_space

    @property
    def is_bound(self) -> bool:
        """Whether the views have been given the spaces of observations and actions."""
        return self.bound_views is not None

    @property
    def has_views(self) -> bool:
        """Whether the pipeline has views, so that the policy's inputs differ from the stored observations."""
        return bool(self._sections.views) or bool(self._given_views)

    @property
    def rewriters(self) -> dict[str, ObservationRewriter]:
        """Connectors that change observations before episodes store them, by name."""
        return dict(self._sections.rewriters)

    @property
    def other_pieces(self) -> dict[str, Connector]:
        """Connectors by name, except `ObservationRewriter`s and views."""
        return dict(self._sections.pieces)

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """Space of the observations that episodes store."""
        *_, last = (None, *self._sections.rewriters.values())
        return self.input_observation_space if last is None else last.observation_space

    def _insert(self, position: int, connector: Any) -> None:
        super()._insert(position, as_piece(connector))

    def _rewire(self, pieces: Pieces) -> None:
        super()._rewire(Sections.of(pieces).in_order())

    def _columns_given(self) -> tuple[str, ...]:
        return (
            self.input_columns
            if self.bound_views is None or not self.has_views
            else (*self.input_columns, *self.bound_views.columns)
        )

    def _take(self, pieces: Pieces) -> None:
        self._sections = Sections.of(pieces)
        if self._given_views is not None and self._sections.views:
            raise InvalidArgument(
                f"{self.name}: views= are bound already, and {next(iter(self._sections.views))} is another view; leave "
                "one of them out"
            )
        super()._take(pieces)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the spaces of the environment, and recompute the spaces of all connectors."""
        self._input_observation_space, self._input_action_space = observation_space, action_space
        sections = self._sections
        spaces = _through(sections.rewriters.values(), observation_space, action_space)
        self.bound_views = self._bound(*spaces)
        if self.has_views:
            for place, piece in enumerate(sections.views.values()):
                piece.place(self.bound_views, place)
            spaces = (None if self.bound_views is None else self.bound_views.observation_space, spaces[1])
        self._observation_space, self._action_space = _through(sections.pieces.values(), *spaces)
        self.lookback = max((piece.lookback for piece in sections.pieces.values()), default=0)
        self.lookback = max(self.lookback, 0 if self.bound_views is None else self.bound_views.lookback)
        views = self._given_views.views if self._given_views is not None else sections.views.values()
        see = {" > ".join(map(name_of, views)): self._see} if self.has_views else {}
        self._stages = {**sections.rewriters, **see, **sections.pieces}
        self.view_settings = settings_of_views(views)
        self.acting_pipeline = describe_acting_pipeline(self)
        self._row_pieces = self._pieces_for_rows()

    def _called(self) -> Mapping[str, Connector]:
        """Return what runs, by name and in order: rewriters, all views as one connector, other connectors."""
        return self._stages

    def _bound(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> Views | None:
        bound = self._given_views
        if bound is None:
            pieces = self._sections.views.values()
            return None if observation_space is None else Views(pieces, observation_space, action_space)
        if observation_space != bound.given.observation_space:
            raise InvalidArgument(
                f"{self.name}: the views are bound to {bound.given.observation_space}, episodes here store "
                f"{observation_space}; give views of the same observations"
            )
        return bound


def _through(pieces: Iterable[Connector], observation_space: Any, action_space: Any) -> tuple[Any, Any]:
    """Set the input spaces of connectors in order, each to the output of the previous, and return the last output."""
    for piece in pieces:
        piece.set_input_spaces(observation_space, action_space)
        observation_space = None if observation_space is None else piece.observation_space
        action_space = piece.action_space
    return observation_space, action_space


def as_piece(piece: Any) -> Any:
    """Return a view function as a connector (`ViewPiece`). A connector is returned unchanged."""
    if isinstance(piece, (Connector, type)) or not callable(piece):
        return piece
    view: Any = piece
    return ViewPiece(view=view)

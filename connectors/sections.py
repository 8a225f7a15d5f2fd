"""`SectionedPipeline`: pipeline that calls observation rewriters first, then views, then all other connectors.

    rewriters    ObservationRewriter   change the observations that episodes store. They may have a state.
    views        ViewPiece             compute what the policy sees, and are bound as one `Views`. They have no state,
                                       except the statistics of `NormalizeObservations`.
    others       Connector             add columns. Padding and conversion to tensors come last.

Rewriters and views move to their section, wherever they are inserted. Within a section connectors keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium as gym

from connectors.connector import Connector
from connectors.fingerprint import describe_acting_pipeline
from connectors.pipeline import ConnectorPipeline, chain_spaces
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.views.normalize_observations import NormalizeObservations
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
    """Connectors of a pipeline by name, sorted into three sections: observation rewriters, views and others."""

    rewriters: dict[str, ObservationRewriter] = field(default_factory=dict)
    views: dict[str, ViewPiece] = field(default_factory=dict)
    pieces: Pieces = field(default_factory=dict)

    @classmethod
    def of(cls, pieces: Pieces) -> Sections:
        """Sort connectors into three sections (observation rewriters, views and others), and return the sections.

        `FlattenObservations` is a rewriter before the first view and a view after it.

        Raises:
            UnwiredPipeline: a rewriter that is not a view, or `NormalizeObservations`, comes after a view.
            InvalidArgument: a rewriter is only usable in `joint=`.
        """
        sections = cls()
        for name, piece in pieces.items():
            if isinstance(piece, ObservationRewriter):
                piece.check_place()
            if isinstance(piece, NormalizeObservations) and sections.views:
                raise UnwiredPipeline(
                    f"{name} learns from observations as episodes store them: put it before the other views, "
                    f"{', '.join(sections.views)}"
                )
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

    @cached_property
    def learning_views(self) -> list[NormalizeObservations]:
        """Views that learn from observations."""
        return [view for view in self.views.values() if isinstance(view, NormalizeObservations)]

    def in_order(self) -> Pieces:
        """Return all connectors by name, in the order in which they run: rewriters, views, others."""
        return {**self.rewriters, **self.views, **self.pieces}


class SectionedPipeline(ConnectorPipeline):
    """Pipeline that calls rewriters of observations (to be stored) first, then views (policy inputs from stored data),
    then all others.

    Args:
        input_observation_space: space of the observations before the first connector.
        input_action_space: space of the actions before the first connector.
        connectors: the connectors. A plain function of a history is a view.
        input_columns: columns that the caller puts into the batch.
        views: bound views of the pipeline that acted. `connectors` must then have no views.
        name: name of the pipeline; by default the name of its class.

    Raises:
        WrongType: `views` are not bound views.
        UnwiredPipeline: a rewriter comes after a view, or a connector reads a column that no earlier one writes.
        InvalidArgument: there are bound views and other views, or the bound views have another observation space.
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
        self._view_connector = self._make_view_connector()
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

    def _make_view_connector(self) -> Connector:
        """Return the connector that computes the columns of all views when the pipeline is called."""
        raise NotImplementedError(f"{type(self).__name__} does not define how its views are run")

    @property
    def views(self) -> Views:
        """Views of the pipeline, as one function from stored observations to policy inputs.

        Raises:
            InvalidArgument: the spaces are not known yet.
        """
        if self.bound_views is None:
            raise InvalidArgument(f"{self.name}: views are bound to spaces; give the pipeline the observation space")
        return self.bound_views

    def views_of(self, make_history: Callable[[], History]) -> Views:
        """Return the pipeline's views, as one function from stored observations to policy inputs.

        If the observation space is unknown, it is derived from the observations of `make_history()`.
        """
        if self.bound_views is not None:
            return self.bound_views
        if not self.has_views:
            return Views()
        return Views(self._sections.views.values(), space_of(make_history().newest()), self._input_action_space)

    @property
    def observation_space(self) -> gym.Space:
        """Space of the observations that the policy sees, after all connectors.

        Raises:
            InvalidArgument: the pipeline has no observation space yet.
        """
        if self._observation_space is None:
            raise InvalidArgument(f"{self.name} has no observation space; set input_observation_space=, or call bind")
        return self._observation_space

    @property
    def is_bound(self) -> bool:
        """Whether the observation space is known and the views are bound to this space."""
        return self.bound_views is not None

    @property
    def has_views(self) -> bool:
        """Whether the pipeline has views, which make the policy's inputs differ from the stored observations."""
        return bool(self._sections.views) or bool(self._given_views)

    @property
    def rewriters(self) -> dict[str, ObservationRewriter]:
        """Connectors by name that change observations before storage in episodes."""
        return dict(self._sections.rewriters)

    @property
    def other_pieces(self) -> dict[str, Connector]:
        """Connectors by name that are neither observation rewriters nor views."""
        return dict(self._sections.pieces)

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """Space of the observations that episodes store: after the rewriters, before the views. None if unknown."""
        *_, last = (None, *self._sections.rewriters.values())
        return self.input_observation_space if last is None else last.observation_space

    def _insert(self, position: int, connector: object) -> None:
        super()._insert(position, as_piece(connector))

    def _rewire(self, pieces: Pieces) -> None:
        super()._rewire(Sections.of(pieces).in_order())

    def _columns_given(self) -> tuple[str, ...]:
        return (
            self.input_columns
            if self.bound_views is None or not self.has_views
            else (*self.input_columns, *self.bound_views.columns)
        )

    def _set_pieces(self, pieces: Pieces) -> None:
        """Store the connectors of the pipeline, sorted into rewriters, views and others.

        Raises `InvalidArgument` if there are views among them, and the pipeline was also given bound views
        (`views=`).
        """
        self._sections = Sections.of(pieces)
        if self._given_views is not None and self._sections.views:
            raise InvalidArgument(
                f"{self.name}: views= are bound already, and {next(iter(self._sections.views))} is another view; leave "
                "one of them out"
            )
        super()._set_pieces(pieces)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the spaces of the environment, bind the views to them, and recompute the spaces of all connectors.

        Raises:
            InvalidArgument: views that were given bound have another observation space.
        """
        self._input_observation_space, self._input_action_space = observation_space, action_space
        sections = self._sections
        spaces = chain_spaces(sections.rewriters.values(), observation_space, action_space)
        self.bound_views = self._bind_views(*spaces)
        if self.has_views:
            for place, piece in enumerate(sections.views.values()):
                piece.place(self.bound_views, place)
            spaces = (None if self.bound_views is None else self.bound_views.observation_space, spaces[1])
        self._observation_space, self._action_space = chain_spaces(sections.pieces.values(), *spaces)
        self.lookback = max((piece.lookback for piece in sections.pieces.values()), default=0)
        self.lookback = max(self.lookback, 0 if self.bound_views is None else self.bound_views.lookback)
        views = self._given_views.views if self._given_views is not None else sections.views.values()
        see = {" > ".join(map(name_of, views)): self._view_connector} if self.has_views else {}
        self._set_stages({**sections.rewriters, **see, **sections.pieces})
        self.view_settings = settings_of_views(views)
        self.acting_pipeline = describe_acting_pipeline(self)

    def _bind_views(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> Views | None:
        """Return this pipeline's views as one `Views` object for episodes that store observations of
        `observation_space`.

        A pipeline that was created with bound views (`views=`) returns these. Other pipelines bind the views among
        their connectors.

        Returns:
            None if the views are not bound yet and `observation_space` is None.

        Raises:
            InvalidArgument: the views of `views=` are bound to a space other than `observation_space`.
        """
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


def as_piece(piece: object) -> Any:
    """Return a view function wrapped in a connector (`ViewPiece`), for use in a pipeline. Return connectors
    unchanged.
    """
    if isinstance(piece, (Connector, type)) or not callable(piece):
        return piece
    view: Any = piece
    return ViewPiece(view=view)

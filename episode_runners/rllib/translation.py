"""Translation of RLlib's connectors into connectors of this library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor as RLlibMultiAgentPreprocessor,
)
from ray.rllib.connectors.env_to_module.observation_preprocessor import (
    SingleAgentObservationPreprocessor as RLlibPreprocessor,
)

from connectors import ObservationRewriter
from connectors.connector import Connector
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    ObservationPreprocessor,
    PrevActionsPrevRewards,
)
from connectors.learner import AddNextObservations
from connectors.views.piece import ViewPiece
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2

__all__ = [
    "DEFAULTS",
    "is_joint",
    "is_rllibs",
    "joint_pieces",
    "module_pieces",
    "translated",
    "users_connectors",
    "views_of",
    "without_defaults",
]

# Connectors that RLlib adds by itself. Pipelines of this library have connectors of the same purpose.
DEFAULTS = frozenset(
    {
        "AddColumnsFromEpisodesToTrainBatch",
        "AddObservationsFromEpisodesToBatch",
        "AddOneTsToEpisodesAndTruncate",
        "AddStatesFromEpisodesToBatch",
        "AddTimeDimToBatchAndZeroPad",
        "AgentToModuleMapping",
        "BatchIndividualItems",
        "GeneralAdvantageEstimation",
        "GetActions",
        "ListifyDataForVectorEnv",
        "ModuleToAgentUnmapping",
        "NormalizeAndClipActions",
        "NumpyToTensor",
        "RemoveSingleTsTimeRankFromBatch",
        "TensorToNumpy",
        "UnBatchToIndividualItems",
    }
)


# Connectors of RLlib, and the arguments that are passed on.
TRANSLATIONS: dict[str, tuple[Callable[..., Connector], tuple[str, ...]]] = {
    "MeanStdFilter": (
        MeanStdFilter,
        ("de_mean_to_zero", "de_std_to_one", "clip_by_value", "update_stats", "multi_agent"),
    ),
    "FlattenObservations": (FlattenObservations, ("agent_ids",)),
    "FrameStacking": (FrameStacking, ("num_frames",)),
    "AddNextObservationsFromEpisodesToTrainBatch": (AddNextObservations, ()),
    "PrevActionsPrevRewards": (PrevActionsPrevRewards, ("n_prev_actions", "n_prev_rewards")),
}

_RLLIBS = "ray.rllib.connectors"  # package of RLlib's connectors

# Methods of RLlib's connectors that expect episodes of RLlib.
_BATCH_METHODS = (
    "single_agent_episode_iterator",
    "add_batch_item",
    "add_n_batch_items",
    "foreach_batch_item_change_in_place",
)


class PreprocessorOfRLlib(ObservationPreprocessor):
    """Preprocessor that calls a `SingleAgentObservationPreprocessor` of RLlib.

    Args:
        connector: the preprocessor of RLlib, which has its spaces.
        by_agent: whether these are `Dict` spaces by agent. RLlib's have them if there are several agents.
        name: its name in its pipeline.
    """

    def __init__(self, connector: RLlibPreprocessor, by_agent: bool, name: str) -> None:
        self.connector, self.by_agent = connector, by_agent
        super().__init__(name=name)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space that RLlib's preprocessor declares."""
        recompute = self.connector.recompute_output_observation_space
        if not self.by_agent:
            return recompute(input_observation_space, input_action_space)
        spaces = (gym.spaces.Dict({"agent": space}) for space in (input_observation_space, input_action_space))
        return recompute(*spaces)["agent"]  # type: ignore[index]

    def preprocess(self, observation: object, episode: Any) -> Any:
        """Return the observation changed by RLlib's preprocessor."""
        return self.connector.preprocess(observation, episode)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        return self.connector.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.connector.set_state(state)


class JointPreprocessorOfRLlib(MultiAgentObservationPreprocessor):
    """Preprocessor of the observations of all agents that calls a `MultiAgentObservationPreprocessor` of RLlib.

    Args:
        connector: the preprocessor of RLlib.
        name: its name in its pipeline.
    """

    def __init__(self, connector: RLlibMultiAgentPreprocessor, name: str) -> None:
        self.connector = connector
        super().__init__(name=name)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space that RLlib's preprocessor declares."""
        return self.connector.recompute_output_observation_space(input_observation_space, input_action_space)

    def preprocess(self, observations: dict[Any, Any], episode: Any) -> Any:
        """Return the observations of all agents, changed by RLlib's preprocessor."""
        return self.connector.preprocess(observations, episode)


class ConnectorOfRLlib(Connector):
    """Connector that calls a `ConnectorV2` without a translation, with this library's batches and episodes.

    Args:
        connector: the connector of RLlib.
        name: its name in its pipeline.
    """

    def __init__(self, connector: ConnectorV2, name: str) -> None:
        self.connector = connector
        for method in _BATCH_METHODS:
            setattr(connector, method, getattr(Connector, method))
        super().__init__(name=name)

    def __call__(self, **arguments: Any) -> Any:
        return self.connector(**{**arguments, "episodes": list(arguments["episodes"])})

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        return self.connector.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.connector.set_state(state)

    def reset_state(self) -> None:
        self.connector.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return self.connector.merge_states(states[:-1] or states)  # RLlib passes states of remote env runners only


def users_connectors(pipeline: ConnectorPipelineV2) -> list[Any]:
    """Return the connectors of RLlib's pipeline, except connectors that RLlib adds automatically."""
    return without_defaults(pipeline.connectors)


def without_defaults(connectors: Iterable[Any]) -> list[Any]:
    """Return the connectors, except connectors that RLlib adds automatically."""
    return [connector for connector in connectors if not _is_default(connector)]


def translated(connector: ConnectorV2, by_agent: bool = False, others: Iterable[Connector] = ()) -> Connector:
    """Return a connector of this library that does the same as an RLlib connector, which may be the user's own.

    Args:
        connector: the connector of RLlib.
        by_agent: whether its spaces are `Dict` spaces by agent.
        others: earlier connectors of its pipeline, where names are unique.

    Raises:
        InvalidArgument: a connector of RLlib that has no translation, or a subclass that inherits its `__call__`.
    """
    name = type(connector).__name__
    if is_rllibs(connector) and name in TRANSLATIONS:
        kind, names = TRANSLATIONS[name]
        arguments = connector.get_ctor_args_and_kwargs()[1]
        if arguments.get("keys_to_remove"):
            raise InvalidArgument(
                f"install(config): {name}(keys_to_remove=...) is not supported; remove the keys in a "
                "SingleAgentObservationPreprocessor before it"
            )
        return kind(**{key: arguments[key] for key in names if key in arguments})
    if isinstance(connector, RLlibPreprocessor):
        return PreprocessorOfRLlib(connector, by_agent, name=_free_name(name, others))
    if isinstance(connector, RLlibMultiAgentPreprocessor):
        return JointPreprocessorOfRLlib(connector, name=_free_name(name, others))
    if is_rllibs(connector):
        raise InvalidArgument(
            f"install(config): RLlib's connector {name} has no translation; derive a connector from ConnectorV2 that "
            f"does the same (class My{name}(ConnectorV2): def __call__(self, *, batch, episodes, **kwargs): ...)"
        )
    inherited = next(kind for kind in type(connector).__mro__ if "__call__" in vars(kind))
    if inherited.__module__.startswith(_RLLIBS):
        raise InvalidArgument(
            f"install(config): {name} inherits __call__ of RLlib's connector {inherited.__name__}, which needs RLlib's "
            f"episodes; give {inherited.__name__} itself, or derive {name} from ConnectorV2 with a __call__ of its own"
        )
    return ConnectorOfRLlib(connector, name=_free_name(name, others))


def is_joint(connector: ConnectorV2) -> bool:
    """Return True if an RLlib connector processes the observations of all agents of an environment at once.

    These are `MultiAgentObservationPreprocessor`s, and RLlib's `MeanStdFilter` with `multi_agent` and
    `FlattenObservations` with `agent_ids`.
    """
    arguments = connector.get_ctor_args_and_kwargs()[1] if is_rllibs(connector) else {}
    name = type(connector).__name__
    return (
        isinstance(connector, RLlibMultiAgentPreprocessor)
        or (is_rllibs(connector) and name == "MeanStdFilter" and bool(arguments.get("multi_agent")))
        or (is_rllibs(connector) and name == "FlattenObservations" and arguments.get("agent_ids") is not None)
    )


def joint_pieces(connectors: Iterable[Any]) -> list[Any]:
    """Return translations of those RLlib connectors that process the observations of all agents at once."""
    return translated_all(connector for connector in connectors if is_joint(connector))


def module_pieces(connectors: Iterable[Any], by_agent: bool = False) -> list[Connector]:
    """Return this library's equivalents of the RLlib connectors that process one agent at a time."""
    return translated_all((connector for connector in connectors if not is_joint(connector)), by_agent)


def translated_all(connectors: Iterable[Any], by_agent: bool = False) -> list[Connector]:
    """Return new translations of RLlib connectors, with unique names. See `translated`."""
    pieces: list[Connector] = []
    for connector in connectors:
        pieces.append(translated(connector, by_agent, pieces))
    return pieces


def views_of(pieces: Iterable[Connector]) -> list[Connector]:
    """Return those env-to-module connectors that a learner must apply again,
    because episodes do not contain their results.
    """
    views: list[Connector] = []
    for piece in pieces:
        rewrites = isinstance(piece, ObservationRewriter) and not views
        if isinstance(piece, ViewPiece) and not rewrites:
            views.append(piece)
    return views


def _free_name(name: str, connectors: Iterable[Connector]) -> str:
    """Return `name`, with a number appended if one of the connectors has this name."""
    names = {connector.name for connector in connectors}
    numbered = (f"{name}_{number}" for number in range(2, len(names) + 3))
    return next(free for free in (name, *numbered) if free not in names)


def _is_default(connector: ConnectorV2) -> bool:
    return is_rllibs(connector) and type(connector).__name__ in DEFAULTS


def is_rllibs(connector: ConnectorV2) -> bool:
    """Return True if a connector's class is one of RLlib's."""
    return type(connector).__module__.startswith(_RLLIBS)

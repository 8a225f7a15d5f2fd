"""Translation of RLlib's connectors into connectors of this library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
from connectors.views.piece import ViewPiece
from episodes.errors import InvalidArgument

__all__ = ["DEFAULTS", "joint_pieces", "module_pieces", "translated", "users_connectors", "views_of"]

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
    "PrevActionsPrevRewards": (PrevActionsPrevRewards, ("n_prev_actions", "n_prev_rewards")),
}

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
    """

    def __init__(self, connector: RLlibPreprocessor, by_agent: bool) -> None:
        self.connector, self.by_agent = connector, by_agent
        super().__init__(name=type(connector).__name__)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space that RLlib's preprocessor declares."""
        recompute = self.connector.recompute_output_observation_space
        if not self.by_agent:
            return recompute(input_observation_space, input_action_space)
        spaces = (gym.spaces.Dict({"agent": space}) for space in (input_observation_space, input_action_space))
        return recompute(*spaces)["agent"]  # type: ignore[index]

    def preprocess(self, observation: Any, episode: Any) -> Any:
        """Return the observation changed by RLlib's preprocessor."""
        return self.connector.preprocess(observation, episode)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return self.connector.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.connector.set_state(state)


class JointPreprocessorOfRLlib(MultiAgentObservationPreprocessor):
    """Preprocessor of the observations of all agents that calls a `MultiAgentObservationPreprocessor` of RLlib.

    Args:
        connector: the preprocessor of RLlib.
    """

    def __init__(self, connector: RLlibMultiAgentPreprocessor) -> None:
        self.connector = connector
        super().__init__(name=type(connector).__name__)

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
    """

    def __init__(self, connector: ConnectorV2) -> None:
        self.connector = connector
        for name in _BATCH_METHODS:
            setattr(connector, name, getattr(Connector, name))
        super().__init__(name=type(connector).__name__)

    def __call__(self, **arguments: Any) -> Any:
        return self.connector(**{**arguments, "episodes": list(arguments["episodes"])})

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return self.connector.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.connector.set_state(state)

    def reset_state(self) -> None:
        self.connector.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return self.connector.merge_states(states)


def users_connectors(pipeline: Any) -> list[Any]:
    """Return the connectors of RLlib's pipeline, except connectors that RLlib adds automatically."""
    return [connector for connector in pipeline.connectors if not _is_default(connector)]


def translated(connector: Any, by_agent: bool = False) -> Connector:
    """Return a connector of this library that does the same as an RLlib connector, which may be the user's own.

    Args:
        connector: the connector of RLlib.
        by_agent: whether its spaces are `Dict` spaces by agent.

    Raises:
        InvalidArgument: a connector of RLlib that has no translation.
    """
    name = type(connector).__name__
    if _is_rllibs(connector) and name in TRANSLATIONS:
        kind, names = TRANSLATIONS[name]
        arguments = connector.get_ctor_args_and_kwargs()[1]
        if arguments.get("keys_to_remove"):
            raise InvalidArgument(
                f"install(config): {name}(keys_to_remove=...) is not supported; remove the keys in a "
                "SingleAgentObservationPreprocessor before it"
            )
        return kind(**{key: arguments[key] for key in names if key in arguments})
    if isinstance(connector, RLlibPreprocessor):
        return PreprocessorOfRLlib(connector, by_agent)
    if isinstance(connector, RLlibMultiAgentPreprocessor):
        return JointPreprocessorOfRLlib(connector)
    if _is_rllibs(connector):
        raise InvalidArgument(
            f"install(config): RLlib's connector {name} has no translation; derive a connector from ConnectorV2 that "
            f"does the same (class My{name}(ConnectorV2): def __call__(self, *, batch, episodes, **kwargs): ...)"
        )
    return ConnectorOfRLlib(connector)


def is_joint(connector: Any) -> bool:
    """Return True if an RLlib connector processes the observations of all agents of an environment at once.

    These are `MultiAgentObservationPreprocessor`s, and RLlib's `MeanStdFilter` with `multi_agent` and
    `FlattenObservations` with `agent_ids`.
    """
    arguments = connector.get_ctor_args_and_kwargs()[1] if _is_rllibs(connector) else {}
    name = type(connector).__name__
    return (
        isinstance(connector, RLlibMultiAgentPreprocessor)
        or (_is_rllibs(connector) and name == "MeanStdFilter" and bool(arguments.get("multi_agent")))
        or (_is_rllibs(connector) and name == "FlattenObservations" and arguments.get("agent_ids") is not None)
    )


def joint_pieces(connectors: Iterable[Any]) -> list[Any]:
    """Return translations of those RLlib connectors that process the observations of all agents at once."""
    return [translated(connector) for connector in connectors if is_joint(connector)]


def module_pieces(connectors: Iterable[Any], by_agent: bool = False) -> list[Connector]:
    """Return this library's equivalents of the RLlib connectors that process one agent at a time."""
    return [translated(connector, by_agent) for connector in connectors if not is_joint(connector)]


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


def _is_default(connector: Any) -> bool:
    return _is_rllibs(connector) and type(connector).__name__ in DEFAULTS


def _is_rllibs(connector: Any) -> bool:
    return type(connector).__module__.startswith("ray.rllib.connectors")

"""RLlib's PPO learner, changed to make train batches by the learner pipelines of this library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from ray.rllib.algorithms.ppo.ppo_learner import PPOLearner
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns as RLlibColumns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from connectors import learner_pipeline
from connectors.agent_to_module_mapping import AgentToModuleMapping
from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from episode_runners.rllib.advantages import RLlibAdvantages
from episode_runners.rllib.module_policy import ModulePolicy
from episode_runners.rllib.translation import (
    DEFAULTS,
    is_rllibs,
    module_pieces,
    translated,
    users_connectors,
    views_of,
    without_defaults,
)
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack

if TYPE_CHECKING:
    from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2


__all__ = [
    "EpisodesLearner",
    "EpisodesPPOTorchLearner",
    "learner_class_with_episodes",
    "learner_class_without_episodes",
]

_VIEWS = ("FlattenObservations", "FrameStacking", "PrevActionsPrevRewards")  # the views of the env runners replace them


class AddWeightsSeqNo(Connector):
    """Connector that adds RLlib's column of weight sequence numbers [B], for which it uses policy versions."""

    reads_tracks = True
    writes = (WEIGHTS_SEQ_NO,)

    def __call__(self, *, batch: ColumnDict, episodes: Any, **kwargs: object) -> ColumnDict:
        batch[WEIGHTS_SEQ_NO] = in_batch_form(episodes.get_policy_versions(), batch, episodes)
        return batch


class EpisodesToBatches(ConnectorV2):
    """RLlib connector that makes each module's train batch by a learner pipeline of this library.

    A batch has exactly the steps of the episodes. RLlib's pipeline adds an artificial step per episode, which its loss
    masks.

    Args:
        replaced: RLlib's learner pipeline, whose connectors are translated. It has their states.
        view_pieces: function that returns new env-to-module connectors for an episode's spaces.
        device: device of the batches.
        max_seq_len: length of padded rows for recurrent modules.
    """

    def __init__(
        self,
        *,
        replaced: ConnectorPipelineV2,
        view_pieces: Callable[[Any, Any], list[Connector]],
        device: torch.device | str | None,
        max_seq_len: int,
    ) -> None:
        self.replaced, self.device, self.max_seq_len = replaced, device, max_seq_len
        self._view_pieces = view_pieces
        self._pipelines: dict[Any, Any] = {}  # by module
        self._pieces = _pieces_of(replaced)
        super().__init__(replaced.input_observation_space, replaced.input_action_space)

    def __call__(
        self,
        *,
        rl_module: Any,
        episodes: Any,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[Any, Any]:
        batches = {}
        for module_id, module_episodes in AgentToModuleMapping.episodes_by_module(episodes).items():
            if module_id not in rl_module or not isinstance(rl_module[module_id].unwrapped(), ValueFunctionAPI):
                continue  # RLlib trains no module without values by PPO, such as a heuristic
            pack = EpisodePack.from_episodes(module_episodes)
            policy = ModulePolicy(lambda module_id=module_id: rl_module[module_id])
            if module_id not in self._pipelines:
                self._pipelines[module_id] = self._make_pipeline(pack, policy)
            batch = self._pipelines[module_id](rl_module=policy, episodes=pack, metrics=kwargs.get("metrics"))
            if shared_data is not None and RLlibColumns.LOSS_MASK in batch:
                shared_data[f"_zero_padded_for_mid={module_id}"] = True
            batches[module_id] = dict(batch)
            if policy.changes_batches:  # its losses need these changes, which RLlib's pipeline keeps, too
                with torch.no_grad():
                    rl_module[module_id].unwrapped().compute_values(batches[module_id])
        return batches

    def _make_pipeline(self, pack: EpisodePack, policy: ModulePolicy) -> Any:
        """Return the learner pipeline with the user's views and pieces, which is made for the spaces of the pack's
        first episode.
        """
        episode = pack[0]
        spaces = episode.observation_space, episode.action_space
        (advantages,) = [piece for piece in self.replaced.connectors if _is_gae(piece)]
        pipeline = learner_pipeline(
            *spaces,
            pieces=[*views_of(self._view_pieces(*spaces)), *[piece for piece, after in self._pieces if not after]],
            returns=RLlibAdvantages(gamma=advantages.gamma, lambda_=advantages.lambda_, normalize=True),
            policy=policy,
            max_seq_len=self.max_seq_len if policy.get_initial_state() else None,
            device=self.device,
        )
        for piece, after in reversed(self._pieces):
            if after:
                pipeline.insert_after("RLlibAdvantages" if after == "returns" else "AddColumns", piece)
        pipeline.insert_after("AddColumns", AddWeightsSeqNo())
        return pipeline

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        return self.replaced.get_state(components, not_components=not_components, **kwargs)

    def set_state(self, state: dict[str, Any]) -> None:
        self.replaced.set_state(state)

    def reset_state(self) -> None:
        self.replaced.reset_state()


def _pieces_of(replaced: ConnectorPipelineV2) -> list[tuple[Connector, str]]:
    """Return translations of the user's connectors in an RLlib learner pipeline,
    each with its place in the new pipeline.

    Returns:
        Pairs of a connector and "" (before the default ones), "columns" or "returns".
    """
    pieces: list[tuple[Connector, str]] = []
    after = ""
    for connector in replaced.connectors:
        name = type(connector).__name__
        if connector in users_connectors(replaced):
            if name not in _VIEWS or not is_rllibs(connector):
                pieces.append((translated(connector, others=[piece for piece, _ in pieces]), after))
        elif _is_gae(connector):
            after = "returns"
        elif name in DEFAULTS and name != "AddOneTsToEpisodesAndTruncate":
            after = after or "columns"
    return pieces


def _is_gae(connector: ConnectorV2) -> bool:
    return type(connector).__name__ == "GeneralAdvantageEstimation"


class EpisodesLearner(Learner):
    """Mixin for RLlib's PPO learner that makes it learn from this library's episodes."""

    def build(self) -> None:
        """Build RLlib's learner, and replace its connector pipeline."""
        super().build()
        if self._learner_connector is not None and not isinstance(self._learner_connector, EpisodesToBatches):
            connector: Any = EpisodesToBatches(
                replaced=self._learner_connector,
                view_pieces=self._make_view_pieces,
                device=self._device,
                max_seq_len=self.config.model_config.get("max_seq_len", 20),
            )
            self._learner_connector = connector

    def _make_view_pieces(self, observation_space: gym.Space, action_space: gym.Space) -> list[Connector]:
        """Translate the user's env-to-module connectors for the learner pipeline, and return the translations. The list
        is empty if the user gave no such connectors.

        The user's function is called with an object that has the spaces of the stored observations in place of an
        environment.

        Raises:
            InvalidArgument: the user's function fails with this object.
        """
        make = getattr(vars(self.config)["_env_to_module_connector"], "users_function", None)
        if make is None:
            return []
        env = SimpleNamespace(
            observation_space=observation_space,
            action_space=action_space,
            single_observation_space=observation_space,
            single_action_space=action_space,
        )
        spaces = {"__env__": (observation_space, action_space), "__env_single__": (observation_space, action_space)}
        try:
            made = make(env, spaces, self._device)
        except TypeError:
            made = make(env)
        except Exception as error:
            raise InvalidArgument(
                "install(config): env_to_module_connector failed in the learner, where `env` has only "
                "observation_space and action_space: let it read the spaces only"
            ) from error
        connectors: Iterable[Any] = made if isinstance(made, list | tuple) else [made]
        return module_pieces(without_defaults(connectors))


class EpisodesPPOTorchLearner(EpisodesLearner, PPOTorchLearner):
    """RLlib's PPO learner for torch, with the learner pipelines of this library."""


def learner_class_with_episodes(learner_class: type[Learner]) -> type[Learner]:
    """Return a subclass of a PPO learner class that learns from this library's episodes.
    Other classes are returned unchanged.
    """
    if issubclass(learner_class, EpisodesLearner) or not issubclass(learner_class, PPOLearner):
        return learner_class
    if learner_class is PPOTorchLearner:
        return EpisodesPPOTorchLearner
    return type(f"Episodes{learner_class.__name__}", (EpisodesLearner, learner_class), {})


def learner_class_without_episodes(learner_class: type[Learner]) -> type[Learner]:
    """Return the learner class from which `learner_class_with_episodes` has made this class."""
    if not issubclass(learner_class, EpisodesLearner):
        return learner_class
    return next(base for base in learner_class.__bases__ if base is not EpisodesLearner)

"""RLlib's PPO learner with the learner pipeline of this library."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns as RLlibColumns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from connectors import learner_pipeline
from connectors.agent_to_module_mapping import AgentToModuleMapping
from connectors.connector import ColumnDict, Connector
from connectors.learner import GeneralizedAdvantageEstimation
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from episode_runners.rllib.module_policy import ModulePolicy
from episodes.pack import EpisodePack

__all__ = ["EpisodesLearner", "EpisodesPPOTorchLearner", "learner_class_with_episodes"]


class AddWeightsSeqNo(Connector):
    """Connector that adds RLlib's column of weight sequence numbers [B], the policy version of each step."""

    reads_tracks = True
    writes = (WEIGHTS_SEQ_NO,)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: Any) -> ColumnDict:
        batch[WEIGHTS_SEQ_NO] = in_batch_form(episodes.get_policy_versions(), batch, episodes)
        return batch


class EpisodesToBatches(ConnectorV2):
    """Learner connector of RLlib that makes batches with this library's learner pipelines, one per module.

    A batch has exactly the steps of the episodes. RLlib's pipeline adds an artificial step per episode, which its loss
    masks.

    Args:
        replaced: RLlib's learner pipeline.
        device: device of the batches.
        max_seq_len: length of padded rows for recurrent modules.
    """

    def __init__(self, *, replaced: Any, device: Any, max_seq_len: int) -> None:
        self.replaced, self.device, self.max_seq_len = replaced, device, max_seq_len
        self.pipelines: dict[Any, Any] = {}
        super().__init__(replaced.input_observation_space, replaced.input_action_space)

    def __call__(
        self, *, rl_module: Any, episodes: Any, shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[Any, Any]:
        batches = {}
        for module_id, module_episodes in AgentToModuleMapping.dealt(episodes).items():
            if module_id not in rl_module:
                continue
            pack = EpisodePack.from_episodes(module_episodes)
            policy = ModulePolicy(lambda module_id=module_id: rl_module[module_id])
            if module_id not in self.pipelines:
                self.pipelines[module_id] = self._make_pipeline(pack, policy)
            batch = self.pipelines[module_id](rl_module=policy, episodes=pack, metrics=kwargs.get("metrics"))
            if shared_data is not None and RLlibColumns.LOSS_MASK in batch:
                shared_data[f"_zero_padded_for_mid={module_id}"] = True
            batches[module_id] = dict(batch)
        return batches

    def _make_pipeline(self, pack: EpisodePack, policy: ModulePolicy) -> Any:
        advantages = next(
            connector
            for connector in self.replaced.connectors
            if type(connector).__name__ == "GeneralAdvantageEstimation"
        )
        returns = GeneralizedAdvantageEstimation(gamma=advantages.gamma, lambda_=advantages.lambda_, normalize=True)
        episode = pack[0]
        return learner_pipeline(
            episode.observation_space,
            episode.action_space,
            pieces=[AddWeightsSeqNo()],
            returns=returns,
            policy=policy,
            max_seq_len=self.max_seq_len if policy.get_initial_state() else None,
            device=self.device,
        )


class EpisodesLearner(Learner):
    """Mixin for a PPO learner of RLlib that learns from this library's episodes."""

    def build(self) -> None:
        """Build the learner, and translate its connector pipeline."""
        super().build()
        if self._learner_connector is not None and not isinstance(self._learner_connector, EpisodesToBatches):
            connector: Any = EpisodesToBatches(
                replaced=self._learner_connector,
                device=self._device,
                max_seq_len=self.config.model_config.get("max_seq_len", 20),
            )
            self._learner_connector = connector


class EpisodesPPOTorchLearner(EpisodesLearner, PPOTorchLearner):
    """RLlib's PPO learner with this library's learner pipeline."""


def learner_class_with_episodes(learner_class: type[Learner]) -> type[Learner]:
    """Return the PPO learner class, or a derived one, with this library's learner pipeline."""
    if issubclass(learner_class, EpisodesLearner):
        return learner_class
    if learner_class is PPOTorchLearner:
        return EpisodesPPOTorchLearner
    return type(f"Episodes{learner_class.__name__}", (EpisodesLearner, learner_class), {})

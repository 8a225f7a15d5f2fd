"""`ModuleToEnvPipeline`: converts a policy's outputs to actions for the environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from connectors.acting import Acted
from connectors.column_parts import ColumnParts, joined
from connectors.connector import Connector
from connectors.module_to_env.get_actions import GetActions
from connectors.module_to_env.listify_for_vector_env import ListifyForVectorEnv
from connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from connectors.module_to_env.remove_time_dimension import RemoveTimeDimension
from connectors.module_to_env.tensor_to_numpy import TensorToNumpy
from connectors.module_to_env.unbatch_items import UnbatchItems, check_rows
from connectors.pipeline import ConnectorPipeline
from connectors.policy import module_of
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.space_checks import describe_mismatch
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, ShapeMismatch, UnknownKey, WrongType
from episodes.pack import EpisodePack
from episodes.tracks.policy_box import policy_space_of
from episodes.tracks.validation import checked_items

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["ModuleToEnvPipeline", "module_to_env_pipeline"]


class ModuleToEnvPipeline(ConnectorPipeline):
    """Pipeline that converts a policy's outputs to actions for the environments. Its other outputs are recorded in
    episodes.
    """

    input_columns = (
        Columns.ACTIONS,
        Columns.ACTION_DIST_INPUTS,
        Columns.ACTION_LOGP,
        Columns.VF_PREDS,
        Columns.STATE_OUT,
    )

    def act(
        self,
        policy: Policy | None,
        outputs: Mapping[str, Any],
        episodes: Sequence[SingleAgentEpisode],
        explore: bool,
        shared_data: dict[str, Any],
    ) -> Acted:
        """Return a tuple: the policy's actions [N, ...], the actions for the environments [N, ...], and a dict of the
        policy's other outputs.

        A runner calls this once per vector step.

        Args:
            policy: the policy.
            outputs: the dict that the policy returned.
            episodes: the ongoing episodes [N].
            explore: whether actions are sampled. False takes the most likely actions.
            shared_data: a dict that all connectors of an env step share.

        Raises:
            WrongType: the outputs are not a dict.
            UnknownKey: there are no actions.
            TrackMismatch: there are not N actions.
            ShapeMismatch: the first actions are not in the environment's action space.
        """
        if type(outputs) is not dict:
            check_answer(outputs)
        outputs = self.on_rows(policy, dict(outputs), episodes, explore, shared_data)
        if ColumnParts in map(type, outputs.values()):  # connectors may append items to columns
            outputs = {name: joined(column) for name, column in outputs.items()}
        actions = outputs.pop(Columns.ACTIONS, None)
        if actions is None:
            raise UnknownKey(f"the module-to-env pipeline returned no 'actions', but {', '.join(outputs) or 'nothing'}")
        if type(actions) is np.ndarray and (not actions.ndim or len(actions) != len(episodes)):
            if not actions.ndim:
                raise ShapeMismatch(f"the policy's actions have shape []; give {len(episodes)} of them, [N, ...]")
            check_rows({Columns.ACTIONS: actions}, len(episodes))
        if self.records_env_actions:  # no mapping in the action space could compute them again
            for_env = outputs.setdefault(Columns.ACTIONS_FOR_ENV, actions)
        else:
            for_env = outputs.pop(Columns.ACTIONS_FOR_ENV, actions)
        if type(for_env) is not self._acted_as or type(for_env) is not np.ndarray:
            self.check_actions(for_env, len(episodes), "environments")
            self._acted_as = type(for_env)
        return actions, for_env, outputs

    records_env_actions: bool = False
    """True if a connector of the user's computes the environment's actions: they are recorded as an extra output."""

    _acted_as: type | None = None  # type of checked actions; recorders compare later arrays with the first ones

    def check_actions(self, for_env: NestedArrays, num_rows: int, actors: str) -> None:
        """Raise `ShapeMismatch` unless `for_env` is a batch of `num_rows` actions of the environment's action space.

        The error calls the receivers of the actions `actors`, for example "environments".
        """
        misfit = describe_mismatch(for_env, self.input_action_space, num_rows)
        if misfit:
            raise ShapeMismatch(
                f"the policy's actions {misfit}; {num_rows} {actors} with the action space "
                f"{self.input_action_space} take one such action each, [{num_rows}, ...]"
            )

    def bind_policy(self, policy: Policy | None) -> None:
        """Prepend a `RemoveTimeDimension` if the policy is recurrent, unless the pipeline has such a connector."""
        if module_of(policy).is_recurrent and RemoveTimeDimension not in self:
            self.prepend(RemoveTimeDimension())

    def add_log_probs(self) -> None:
        """Make each `GetActions` connector add "action_logp" in every step, even if it was created with
        `log_probs=False`.
        """
        for sampler in self._samplers():
            sampler.adds_log_probs = True

    def seed(self, seed: int | None) -> None:
        """Seed the random generator that samples actions. A seed that was set earlier is kept."""
        for sampler in self._samplers():
            sampler.seed(seed)

    def policy_action_space(self, space: gym.Space) -> gym.Space:
        """Return the space of the policy's actions, which episodes record, for the action space `space` of an
        environment.
        """
        mappings = [piece.mapping for piece in self.connectors if isinstance(piece, NormalizeAndClipActions)]
        return policy_space_of(space, "recorded" if self.records_env_actions else (*mappings, "none")[0])

    def _set_pieces(self, pieces: dict[str, Connector]) -> None:
        """Store the pipeline's connectors. Raise `InvalidArgument` for one that changes observations."""
        for name, piece in pieces.items():
            if isinstance(piece, ObservationRewriter):
                raise InvalidArgument(
                    f"{self.name}: {name} changes observations before they are stored; add it to the env-to-module "
                    "pipeline"
                )
        super()._set_pieces(pieces)
        self.records_env_actions = any(map(_may_write_env_actions, pieces.values()))

    def log_probs(self, policy: Policy | None, outputs: Mapping[str, Any], actions: NestedArrays) -> np.ndarray | None:
        """Return the log-probabilities [n] of recorded actions [n, ...], given the recorded policy outputs of the same
        steps.

        Returns:
            None if `act` returns them in each step, or if `outputs` lacks "action_dist_inputs".
        """
        sampler = self._late_sampler()
        return None if sampler is None else sampler.log_probs(outputs, actions, policy)

    def with_log_probs(self, policy: Policy | None, pack: EpisodePack) -> EpisodePack:
        """Return the pack with "action_logp" for all steps, computed here if `GetActions(log_probs=False)` left it
        out.
        """
        sampler = self._late_sampler()
        return pack if sampler is None else sampler.with_log_probs(pack, policy)

    def _samplers(self) -> list[GetActions]:
        return [piece for piece in self.connectors if isinstance(piece, GetActions)]

    def _late_sampler(self) -> GetActions | None:
        return next((sampler for sampler in self._samplers() if not sampler.adds_log_probs), None)

    def _set_stages(self, stages: dict[str, Connector]) -> None:
        """Store what a call runs, and what `on_rows` runs: the connectors that can change a batch of complete arrays
        [N, ...].
        """
        self._stages = stages
        self._row_stages = tuple(stage for stage in stages.values() if stage.changes_rows)


def _may_write_env_actions(piece: Connector) -> bool:
    """Return True if a user's connector writes "actions_for_env", or does not declare the columns that it writes."""
    if type(piece) is NormalizeAndClipActions or isinstance(piece, _WITHOUT_ENV_ACTIONS):
        return False
    return Columns.ACTIONS_FOR_ENV in piece.writes or not piece.writes


_WITHOUT_ENV_ACTIONS = (RemoveTimeDimension, GetActions, TensorToNumpy, UnbatchItems, ListifyForVectorEnv)


def check_answer(outputs: object) -> None:
    """Raise `WrongType` unless `outputs`, the return value of a policy, is a mapping."""
    if not isinstance(outputs, Mapping):
        raise WrongType(
            f"the policy returned a {type(outputs).__name__}; return a dict with 'actions', or with "
            "'action_dist_inputs' to sample from"
        )


def module_to_env_pipeline(
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    pieces: Iterable[Connector] = (),
    policy: Policy | None = None,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    seed: int | None = None,
    log_probs: bool = True,
) -> ModuleToEnvPipeline:
    """Return the default pipeline that converts a policy's outputs to actions, including your connectors.

    Its output has "actions" (the policy's), "actions_for_env" (the environment's), and all other outputs as numpy
    arrays [N, ...].

    Args:
        observation_space: space of one environment's observations.
        action_space: space of one environment's actions.
        pieces: connectors that see numpy rows, before actions are converted to the environment's units.
        policy: see `ModuleToEnvPipeline.bind_policy`. Runners and `Actor` bind their policy themselves.
        normalize_actions: the policy acts in [-1, 1], which is mapped to the bounds of Box spaces.
        clip_actions: the policy acts in the environment's units, and actions are clipped to the bounds.
        seed: seed for sampling actions; by default torch's global generator is used.
        log_probs: add "action_logp" in each step. If False, a runner adds it to its samples. See `GetActions`.

    Raises:
        UnwiredPipeline: a connector reads a column that no earlier connector provides.
    """
    changes = NormalizeAndClipActions(normalize_actions=normalize_actions, clip_actions=clip_actions)
    first = [GetActions(seed=seed, log_probs=log_probs), TensorToNumpy(), UnbatchItems()]
    pipeline = ModuleToEnvPipeline(
        observation_space,
        action_space,
        connectors=[*first, *checked_items("pieces", pieces, "your pieces"), changes, ListifyForVectorEnv()],
    )
    if policy is not None:
        pipeline.bind_policy(policy)
    return pipeline

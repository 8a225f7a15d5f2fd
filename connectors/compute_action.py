"""`compute_action`: one observation in, one action out, through the pipelines that a runner acts through."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from connectors.acting import EnvToModule, ModuleToEnv, fingerprint_of
from connectors.env_to_module import env_to_module_pipeline
from connectors.fingerprint import check_fingerprint
from connectors.module_to_env import module_to_env_pipeline
from connectors.policy import module_of
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.spaces import as_rows

__all__ = ["ActingState", "compute_action"]


@dataclass(frozen=True, slots=True)
class ActingState:
    """What the next action of an episode depends on beside its observation: never changed, so acting may branch off.

    Attributes:
        env_to_module, module_to_env: the pipelines, with what they have learned.
        episode: as many of the newest steps as the pipelines look back.
        action, outputs: what the policy said last, the action in its own units; None, {} before the first observation.
    """

    env_to_module: EnvToModule
    module_to_env: ModuleToEnv
    episode: SingleAgentEpisode
    action: Any = None
    outputs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, policy: Any, env_to_module: EnvToModule | None = None, module_to_env: ModuleToEnv | None = None
    ) -> ActingState:
        """The state before an episode's first observation; pipelines that are not given are the default ones.

        Raises:
            InvalidArgument: the policy does not say its spaces, and the pipelines are not given.
            StateMismatch: the policy was trained in other pipelines.
        """
        if env_to_module is None:
            known = _spaces_of(policy, module_to_env)
            env_to_module = env_to_module_pipeline(*known, policy=policy, device=module_of(policy).device)
        if module_to_env is None:
            module_to_env = module_to_env_pipeline(*_spaces_of(policy), policy=policy, log_probs=False)
        check_fingerprint(policy, fingerprint_of(env_to_module, module_to_env))
        return cls(env_to_module, module_to_env, SingleAgentEpisode())

    def seeing(self, observation: Any, reward: float) -> tuple[ActingState, Any]:
        """The state with a new observation, and that as recorded rows [1, ...]."""
        space: Any = getattr(self.env_to_module, "input_observation_space", None)
        rows = nested.stack([observation]) if space is None else _rows(observation, space)
        episode = self.episode.cut(max(self.env_to_module.lookback, 1))  # a recurrent state is one step back
        if episode.is_reset:
            episode.add_env_step(nested.take(rows, 0), self.action, reward, extra_model_outputs=self.outputs)
        else:
            episode.add_env_reset(nested.take(rows, 0))
        if self.env_to_module.rewrites:
            rows = self.env_to_module.rewrite(rows, [episode], False)
            episode.set_observations(new_data=nested.take(rows, 0), at_indices=-1)
        return replace(self, episode=episode), rows


def compute_action(
    policy: Any,
    observation: Any,
    state: ActingState | None = None,
    *,
    reward: float = 0.0,
    explore: bool = False,
    env_to_module: EnvToModule | None = None,
    module_to_env: ModuleToEnv | None = None,
) -> tuple[Any, ActingState]:
    """The action for one observation, ready for `env.step`, and the state to hand in with the episode's next one.

    It is what a runner with one environment would do. Nothing is learned: filters stay as they are.

    Args:
        observation: of the environment, without a batch axis.
        state: None at an episode's start; then what the call before returned, which is not changed.
        reward: that the last action got, for pipelines that show it.
        explore: draw the action, with torch's random numbers; else the likeliest one.
        env_to_module, module_to_env: the pipelines that the policy was trained in, `runner.env_to_module` for instance,
            at an episode's start; later `state` has them. By default those of a runner without any.

    Raises:
        InvalidArgument: pipelines for an episode that goes on; the policy does not say its spaces.
        StateMismatch: the policy was trained in other pipelines.

    >>> import gymnasium as gym
    >>> from episode_learners import LSTMPolicy
    >>> env = gym.make("CartPole-v1")
    >>> policy, state = LSTMPolicy(env.observation_space, env.action_space), None
    >>> observation, _ = env.reset(seed=0)
    >>> for _ in range(3):
    ...     action, state = compute_action(policy, observation, state)
    ...     observation, *_ = env.step(action)
    >>> state.episode.t
    2
    """
    if state is None:
        state = ActingState.begin(policy, env_to_module, module_to_env)
    elif env_to_module is not None or module_to_env is not None:
        raise InvalidArgument("compute_action: an episode that goes on has its pipelines in state; leave them out")
    state, rows = state.seeing(observation, reward)
    seen_by, shared_data = [state.episode], {}
    with torch.inference_mode():
        batch = state.env_to_module.see(policy, {Columns.OBS: rows}, seen_by, explore, shared_data)
        outputs = policy(batch, explore=explore)
        actions, for_env, outputs = state.module_to_env.act(policy, outputs, seen_by, explore, shared_data)
    action = _first(for_env, state.module_to_env.input_action_space)
    return action, replace(state, action=nested.take(actions, 0), outputs=nested.take(outputs, 0))


def _spaces_of(policy: Any, module_to_env: ModuleToEnv | None = None) -> tuple[gym.Space, gym.Space]:
    observation_space = getattr(policy, "observation_space", None)
    action_space = getattr(policy, "action_space", None)
    if module_to_env is not None and module_to_env.input_action_space is not None:
        action_space = module_to_env.input_action_space
    if observation_space is None or action_space is None:
        raise InvalidArgument(
            f"compute_action: {type(policy).__name__} has no observation_space and action_space to make pipelines for; "
            "give env_to_module= and module_to_env=, a runner's for instance"
        )
    return observation_space, action_space


def _first(actions: Any, space: gym.Space | None) -> Any:
    """The first of a row of actions, as an environment with this space takes it."""
    if isinstance(space, spaces.Dict):
        return {key: _first(actions[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_first(part, own) for part, own in zip(actions, space.spaces, strict=True))
    return nested.take(actions, 0) if space is None else actions[0]


def _rows(observation: Any, space: gym.Space) -> Any:
    """One observation as the rows [1, ...] that a vector environment gives, in the space's dtypes."""
    return as_rows(concatenate(space, [observation], create_empty_array(space, 1)), space)

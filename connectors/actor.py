"""`Actor`, a policy together with its pipelines, and `compute_action`, which returns the action for one observation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from gymnasium.vector.utils import concatenate, create_empty_array

from connectors.acting import EnvToModule, ModuleToEnv, check_pipeline, fingerprint_of
from connectors.actor_file import as_unreadable, build_module_to_env, build_pieces, read_actor, state_of, write_actor
from connectors.connector import Connector
from connectors.env_to_module.pipeline import env_to_module_pipeline
from connectors.fingerprint import check_fingerprint, check_statistics, describe_space, stamp, stamped
from connectors.module_to_env.pipeline import module_to_env_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_interface, module_of
from connectors.tensors import NumpyToTensor
from connectors.views.view import View, Views
from episodes.columns import Columns
from episodes.errors import InvalidArgument, StateMismatch, WrongType
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import space_json
from episodes.tracks import nested
from episodes.tracks.space_kinds import map_items
from episodes.tracks.spaces import as_rows

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["ActingState", "Actor", "as_actor", "compute_action"]


class Actor:
    """A policy together with its pipelines: everything needed to act, evaluate, learn, save and export.

    Runners, algorithms, `evaluate` and `compute_action` take an actor in place of a policy. They then use its
    pipelines, with their statistics. Two runners of one actor share its statistics and its random numbers.

    Args:
        policy: a policy; or a class or `functools.partial`, such as `partial(MLPPolicy, hidden_sizes=(64,))`, that is
            called with the space of the policy's inputs and the action space, and returns a policy.
        observation_space: the environment's observation space; by default the policy's, if no `pieces` are given.
        action_space: the environment's action space; by default the policy's.
        pieces: connectors and views that compute the policy's input, as in `env_to_module_pipeline`.
        env_to_module: a complete pipeline to the policy's input; give either this or `pieces`.
        module_to_env: the pipeline to actions, in place of the default one.

    Raises:
        InvalidArgument: the policy cannot read the pipeline's batch; a class is given without both spaces; or `pieces`
            and `env_to_module` are both given.
        WrongType: `policy` is not a policy, or `pieces` is not a list.

    >>> from gymnasium import spaces
    >>> from connectors.env_to_module import FrameStacking
    >>> from episode_learners import LSTMPolicy
    >>> actor = Actor(LSTMPolicy, spaces.Box(-1, 1, (3,)), spaces.Discrete(2), pieces=[FrameStacking(num_frames=4)])
    >>> actor.policy.observation_space.shape
    (12,)
    >>> action, state = actor.act([0.5, 0.0, 0.1])
    >>> action, state = actor.act([0.4, 0.1, 0.1], state)
    """

    policy: Any
    env_to_module: Any
    module_to_env: Any

    def __init__(
        self,
        policy: Policy | type[Policy] | partial[Any],
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        *,
        pieces: Iterable[Connector | View] = (),
        env_to_module: EnvToModule | None = None,
        module_to_env: ModuleToEnv | None = None,
    ) -> None:
        if not isinstance(pieces, Iterable):
            raise WrongType(f"Actor: pieces= is one {type(pieces).__name__}; give a list of connectors and views")
        pieces = list(pieces)
        if pieces and env_to_module is not None:
            raise InvalidArgument("Actor: pieces= and env_to_module= were given; put the pieces into the pipeline")
        is_class = isinstance(policy, (type, partial))
        if not is_class:
            check_interface(policy, "Actor")
            if not pieces and env_to_module is None and observation_space is None:
                observation_space = getattr(policy, "observation_space", None)
            if module_to_env is None:
                _check_action_space(policy, action_space)
            action_space = getattr(policy, "action_space", None) if action_space is None else action_space
        if env_to_module is None:
            env_to_module = env_to_module_pipeline(observation_space, action_space, pieces=pieces)
        else:
            check_pipeline(env_to_module, EnvToModule, "env_to_module")
            env_to_module.bind(observation_space, action_space)
            action_space = _first_known(action_space, getattr(env_to_module, "input_action_space", None))
        if module_to_env is None:
            module_to_env = module_to_env_pipeline(observation_space, action_space, log_probs=False)
        else:
            check_pipeline(module_to_env, ModuleToEnv, "module_to_env")
            module_to_env.bind(observation_space, action_space)
            action_space = _first_known(action_space, module_to_env.input_action_space)
        self.env_to_module, self.module_to_env = env_to_module, module_to_env
        self.policy = self._create_policy(policy, action_space) if is_class else policy
        self._bind_policy()

    @classmethod
    def of_parts(cls, policy: Policy | None, env_to_module: EnvToModule, module_to_env: ModuleToEnv) -> Actor:
        """Return an actor made of a policy and two pipelines that already fit each other. No check is made."""
        actor = cls.__new__(cls)
        actor.policy, actor.env_to_module, actor.module_to_env = policy, env_to_module, module_to_env
        return actor

    def _create_policy(self, make: Callable[..., Any], action_space: gym.Space | None) -> Any:
        """Return the policy created by `make(observation_space, action_space)`, after a check of its interface.

        Raises:
            InvalidArgument: a space is None.
            WrongType: the result cannot be called as a policy.
        """
        if action_space is None or self.observation_space is None:
            name = getattr(make, "__name__", "the policy")
            raise InvalidArgument(f"Actor({name}): a class needs observation_space and action_space; give both")
        policy = make(self.env_to_module.observation_space, action_space)
        check_interface(policy, "Actor")
        return policy

    def _bind_policy(self) -> None:
        """Bind the pipelines to the policy, and send batches to its device."""
        self.env_to_module.bind_policy(self.policy)
        self.module_to_env.bind_policy(self.policy)
        self._send_batches_to(module_of(self.policy).device)

    # --- what it is made of ------------------------------------------------------------------------------------------

    @property
    def observation_space(self) -> gym.Space | None:
        """Space of the environment's observations, or None if it is not known."""
        return getattr(self.env_to_module, "input_observation_space", None)

    @property
    def action_space(self) -> gym.Space | None:
        """Space of the environment's actions, or None if it is not known."""
        return self.module_to_env.input_action_space

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """Space of the observations that this actor's episodes store (after normalization, for example), or None if it
        is not known.
        """
        return self.env_to_module.recorded_observation_space

    @property
    def views(self) -> Views:
        """Functions that compute the policy's inputs from stored observations, such as frame stacking, in order."""
        return self.env_to_module.views

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Spaces and connector settings of both pipelines as plain values. `check` compares this value with the
        fingerprint stored when the policy was trained.
        """
        return fingerprint_of(self.env_to_module, self.module_to_env)

    def check(self) -> None:
        """Raise `StateMismatch` if the policy was trained with other pipelines, or with filters whose statistics are
        missing. A policy that was not trained is accepted.

        Raises:
            StateMismatch: the pipelines differ from those of the training, or a filter has seen no observation.
        """
        check_fingerprint(self.policy, self.fingerprint)
        check_statistics(self.policy, self.env_to_module)

    def to(self, device: str | torch.device) -> Actor:
        """Move the policy and its future input batches to `device`, and return this actor."""
        if isinstance(self.policy, torch.nn.Module):
            self.policy.to(device)
        self._send_batches_to(torch.device(device))
        return self

    def _send_batches_to(self, device: torch.device) -> None:
        """Make the env-to-module pipeline create its tensors on `device`, if it has a `NumpyToTensor`."""
        pipeline = self.env_to_module
        if isinstance(pipeline, ConnectorPipeline) and NumpyToTensor in pipeline:
            to_tensors = pipeline[NumpyToTensor]
            if to_tensors.device != device:
                to_tensors.to(device)

    def copy_pipelines(self) -> Actor:
        """Return an actor that shares this actor's policy and has copies of its pipelines and their statistics."""
        return Actor.of_parts(self.policy, deepcopy(self.env_to_module), deepcopy(self.module_to_env))

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy's weights, the pipelines' statistics and their settings to a file, without pickle.

        Raises:
            InvalidArgument: the policy is not a `torch.nn.Module`, or a connector's state is not made of numbers.
        """
        write_actor(path, {**state_of(self), "trained_in": stamped(self.policy)})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        policy: Policy | type[Policy] | partial[Any],
        *,
        pieces: Iterable[Connector | View] | None = None,
        module_to_env: ModuleToEnv | None = None,
    ) -> Actor:
        """Return the actor that `save` wrote to the file `path`.

        Args:
            policy: a policy, or a class or `functools.partial` that makes one, as in `Actor(policy)`. Its weights are
                replaced.
            pieces: the connectors and views, as they were given to `Actor`. By default they are rebuilt from the file,
                which needs all of them to be classes of this library.
            module_to_env: the pipeline to actions; needed if the saved pipeline has connectors that are not of this
                library.

        Raises:
            UnreadableData: the file is damaged, or is not an actor's.
            InvalidArgument: connectors that are not of this library are missing.
            StateMismatch: the weights do not fit the policy, or the connectors have other settings than the saved ones.
        """
        state = read_actor(path)
        with as_unreadable(path):
            space, action_space = (space_json.from_json(state[f"{name}_space"]) for name in ("observation", "action"))
            connectors = build_pieces(state["pieces"], "pieces=") if pieces is None else list(pieces)
            if module_to_env is None:
                module_to_env = build_module_to_env(state["module_to_env"], (space, action_space))
            weights, states, trained_in = state["weights"], state["states"], state["trained_in"]
            saved, saved_policy = state["fingerprint"], state["policy"]
        actor = cls(policy, space, action_space, pieces=connectors, module_to_env=module_to_env)
        with as_unreadable(path):
            check_fingerprint(actor.policy, actor.fingerprint, saved)
            actor.env_to_module.set_state(states["env_to_module"])
            actor.module_to_env.set_state(states["module_to_env"])
        _load_weights(actor.policy, weights, saved_policy)
        stamp(actor.policy, trained_in)
        return actor

    def __repr__(self) -> str:
        return f"Actor({type(self.policy).__name__}, {self.env_to_module!r}, {self.module_to_env!r})"

    # --- acting ------------------------------------------------------------------------------------------------------

    def act(
        self, observation: object, state: ActingState | None = None, *, reward: float = 0.0, explore: bool = False
    ) -> tuple[Any, ActingState]:
        """Return the action for one observation, ready for `env.step`, and the state to pass to the episode's next
        call.

        Nothing is learned: statistics of filters stay as they are.

        Args:
            observation: the environment's observation, without a batch axis.
            state: None at the start of an episode; afterwards the state that the previous call returned. It is not
                changed, so acting may branch off from any state.
            reward: the reward of the last action, for views that show it.
            explore: sample the action with torch's random numbers. By default it is the most likely action.

        Raises:
            StateMismatch: the policy was trained in other pipelines, or with filters that have no statistics here.
            InvalidArgument: `state` is not an `ActingState` of this actor, or the action space is not known.
        """
        if state is None:
            if self.action_space is None:
                raise InvalidArgument(
                    f"{type(self.policy).__name__} has no observation_space and action_space: give them to Actor(...)"
                )
            self.check()
            state = ActingState(self)
        elif not isinstance(state, ActingState):
            raise InvalidArgument(
                f"act: the state is {state!r}; give None at the start of an episode, or the state that act returned"
            )
        elif state.actor is not self:
            raise InvalidArgument("act: the state belongs to another actor; give None at the start of an episode")
        state, rows = state.with_observation(observation, reward)
        episodes, shared_data = [state.episode], {}
        with torch.inference_mode():
            batch = self.env_to_module.see(self.policy, {Columns.OBS: rows}, episodes, explore, shared_data)
            outputs = self.policy(batch, explore=explore)
            actions, for_env, outputs = self.module_to_env.act(self.policy, outputs, episodes, explore, shared_data)
        action = _first_action(for_env, self.action_space)
        return action, replace(state, action=nested.take(actions, 0), outputs=nested.take(outputs, 0))


@dataclass(frozen=True, slots=True)
class ActingState:
    """State of one episode between calls of `compute_action`: its newest steps, its last action and the last policy
    outputs.

    Attributes:
        actor: the actor, with its statistics.
        episode: the newest steps, as many as the views look back.
        action: the last action, in the policy's units; None before the first one.
        outputs: the policy's other outputs for the last observation; empty before the first one.
    """

    actor: Actor
    episode: SingleAgentEpisode = field(default_factory=SingleAgentEpisode)
    action: Any = None
    outputs: dict[str, Any] = field(default_factory=dict)

    def with_observation(self, observation: object, reward: float) -> tuple[ActingState, Any]:
        """Add a new observation to the episode, and return the new state and the observation in stored form.

        The observation is returned as a batch [1, ...].
        """
        pipeline = self.actor.env_to_module
        space = self.actor.observation_space
        rows = nested.stack([observation]) if space is None else _rows(observation, space)
        episode = self.episode.cut(max(pipeline.lookback, 1))  # a recurrent state is one step back
        if episode.is_reset:
            episode.add_env_step(nested.take(rows, 0), self.action, reward, extra_model_outputs=self.outputs)
        else:
            episode.add_env_reset(nested.take(rows, 0))
        if pipeline.rewrites:
            rows = pipeline.rewrite(rows, [episode], False)
            episode.set_observations(new_data=nested.take(rows, 0), at_indices=-1)
        return replace(self, episode=episode), rows


def as_actor(policy: Policy | Actor) -> Actor:
    """Return `policy` itself if it is an actor, or else an actor that combines the policy with the default pipelines.

    Raises:
        WrongType: `policy` is neither a policy nor an actor.
    """
    return policy if isinstance(policy, Actor) else Actor(policy)


def compute_action(
    policy: Policy | Actor,
    observation: object,
    state: ActingState | None = None,
    *,
    reward: float = 0.0,
    explore: bool = False,
) -> tuple[Any, ActingState]:
    """Return the action of a policy or an actor for one observation, and the state to pass to the episode's next call.

    See `Actor.act`. A policy that is not an actor acts through the default pipelines. `reward` is that of the last
    action; with `explore` the action is sampled.

    Raises:
        InvalidArgument: `state` belongs to another policy. See also `Actor.act`.

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
    actor = as_actor(policy) if state is None else state.actor
    if state is not None and actor is not policy and actor.policy is not policy:
        raise InvalidArgument(
            "compute_action: the state belongs to another policy; give None at the start of an episode"
        )
    return actor.act(observation, state, reward=reward, explore=explore)


def _load_weights(policy: Any, weights: Mapping[str, torch.Tensor], saved_policy: str) -> None:
    """Replace the weights of `policy`. Raise `StateMismatch` if they do not fit, and leave the policy as it was."""
    before = deepcopy(policy.state_dict()) if isinstance(policy, torch.nn.Module) else None
    try:
        policy.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        if before is not None:
            policy.load_state_dict(before)  # torch has replaced the weights that do fit
        raise StateMismatch(
            f"Actor.load: the weights of a {saved_policy} do not fit {type(policy).__name__}: {error}"
        ) from error


def _check_action_space(policy: Policy | None, space: gym.Space | None) -> None:
    """Raise `InvalidArgument` if the policy was created for an action space other than `space`."""
    made_for = getattr(policy, "action_space", None)
    if None in (space, made_for) or describe_space(space, bounds=True) == describe_space(made_for, bounds=True):
        return
    raise InvalidArgument(
        f"Actor: {type(policy).__name__} was created for actions {made_for}, not {space}; give module_to_env= with a "
        "connector that maps its actions"
    )


def _first_known(*spaces: gym.Space | None) -> gym.Space | None:
    """Return the first space that is not None, or None."""
    return next((space for space in spaces if space is not None), None)


def _first_action(actions: Any, space: gym.Space | None) -> Any:
    """Return the first action in a batch of actions, in the form that `env.step` accepts."""
    return nested.take(actions, 0) if space is None else map_items(lambda part, _: part[0], actions, space)


def _rows(observation: object, space: gym.Space) -> Any:
    """Return one observation as a batch [1, ...] with the dtypes of `space`, like the result of a vector environment.

    Raises:
        InvalidArgument: the observation has another shape or structure.
    """
    try:
        return as_rows(concatenate(space, [observation], create_empty_array(space, 1)), space)
    except (ValueError, TypeError, LookupError) as error:
        raise InvalidArgument(
            f"act: the observation {nested.describe(observation)} is not in {describe_space(space)}; give one "
            f"observation of the environment, without a batch axis ({error})"
        ) from error

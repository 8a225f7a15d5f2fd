"""`SingleAgentEnvRunner`: lets a policy act in a vector environment, and returns the episodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import DTypeLike

from connectors import env_to_module_pipeline, module_to_env_pipeline
from connectors.acting import Acted, EnvToModule, ModuleToEnv, check_pipeline, fingerprint_of
from connectors.actor import Actor
from connectors.fingerprint import (
    check_fingerprint,
    check_spaces,
    check_statistics,
    stamp,
)
from connectors.policy import Policy, check_interface, module_of, random_action_probability_of
from episode_runners.dropped_envs import close_when_dropped, makes_envs
from episode_runners.environment_errors import check_distinct, raise_or_annotate
from episode_runners.process_envs import ProcessVectorEnv
from episode_runners.random_actions import sample_random_actions
from episode_runners.restarts import EnvReplacement
from episode_runners.runner import EnvRunner, ShownEpisodes, call_hooks, check_counts, copy_pipeline, quotas
from episode_runners.serial_envs import SerialVectorEnv
from episode_runners.stats import CollectStats, RunningReturns
from episode_runners.vector_envs import EnvLike, autoreset_mode_of, close_vector_env, env_like, envs_of, make_vector_env
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, WrongType
from episodes.pack import EpisodePack
from episodes.recorder.boundaries import Boundaries, final_observations_of, infos_at_ends
from episodes.recorder.env_turns import EnvTurns
from episodes.recorder.incoming import IncomingEpisodes
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.replay import EpisodeReplayBuffer
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.copies import copied
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.policy_box import has_policy_actions, to_env_actions, to_policy_actions
from episodes.tracks.spaces import as_rows
from episodes.tracks.validation import checked_flag

__all__ = ["SingleAgentEnvRunner"]


class SingleAgentEnvRunner(EnvRunner):
    """Runner that lets a policy act in a vector environment, and returns the episodes.

    Args:
        env: a Gymnasium id, a callable that makes an environment, or a vector environment.
        policy: a callable `policy(batch, explore=...)` on batches of the env-to-module pipeline. It returns a dict with
            "actions", or with "action_dist_inputs" from which `GetActions` samples actions. None: only random actions.
            An `Actor` has its own pipelines, and the runner updates their statistics.
        num_envs: number of environments to make, 1 by default. A given vector environment has its own number.
        env_to_module: pipeline from observations to the policy's batch; `env_to_module_pipeline(...)` by default.
        module_to_env: pipeline from the policy's outputs to actions; `module_to_env_pipeline(...)` by default.
        hooks: objects with methods of `Hook`, or callbacks (`RLlibCallback`).
        seed: seed of the environments, random actions, and action sampling in the default pipeline. Episode ids are
            random with any seed, so that they identify episodes also if a runner is created again.
        len_lookback_buffer: minimum number of earlier steps that a continued chunk contains. It is more if the
            env-to-module pipeline needs more, for recurrent states or frame stacks.
        reward_dtype: dtype of recorded rewards. None: the dtype of the environment's rewards.
        update_stats: whether connectors with statistics, such as `MeanStdFilter`, update them while exploring.
            "always": samples with `explore=False` update them too, for training without exploration.
        check_pipeline: reject a policy that was trained in other pipelines (see `connectors.fingerprint`).
        returns_interrupted: return the steps of an interrupted or failed call with the next `sample`. Otherwise only
            `take` returns them.
        vectorization: how environments are stepped; see `make_vector_env`.
        autoreset_mode: autoreset mode of environments made here, or of a vector environment that does not state its
            own.
        env_kwargs: arguments for `gymnasium.make`; see `make_vector_env`.
        restart_failed: replace an environment that fails; see `make_vector_env`. Its episode is cut at the last
            observation and never continued: it is not terminated, and no episode that ended in `stats`. The attribute
            `replacements` lists what happened.
        env_timeout_s: seconds after which an environment that does not reply has failed; see `make_vector_env`.

    Other outputs of the policy are recorded as extra model outputs. The env-to-module pipeline rewrites each
    observation once, before it is recorded. Sampling keeps no gradients.

    A first Ctrl-C stops `sample` after the current vector step, and no step is lost. A second Ctrl-C stops `sample` at
    once.

    Raises:
        InvalidArgument: both an actor and a pipeline are given, or an argument is invalid for `make_vector_env`.
        StateMismatch: the policy was trained in other pipelines, or the pipelines have other spaces than the
            environments.
        WrongType: `env`, `policy`, a pipeline or a hook has a wrong type.
    """

    def __init__(
        self,
        env: EnvLike,
        policy: Policy | Actor | None = None,
        *,
        num_envs: int | None = None,
        env_to_module: EnvToModule | None = None,
        module_to_env: ModuleToEnv | None = None,
        hooks: Sequence[Any] = (),
        seed: int | None = None,
        len_lookback_buffer: int = 0,
        reward_dtype: DTypeLike | None = np.float32,
        update_stats: bool | Literal["always"] = True,
        check_pipeline: bool = True,
        returns_interrupted: bool = False,
        vectorization: str = "sync",
        autoreset_mode: AutoresetMode | str | None = None,
        env_kwargs: dict[str, Any] | None = None,
        restart_failed: bool = False,
        env_timeout_s: float | None = None,
    ) -> None:
        super().__init__(hooks, seed, update_stats)
        seed = self.seed
        options = {"vectorization": vectorization, "env_kwargs": env_kwargs}
        options |= {"restart_failed": restart_failed, "env_timeout_s": env_timeout_s}
        self._make_envs(env, num_envs, autoreset_mode, options)
        if isinstance(policy, Actor):
            if env_to_module is not None or module_to_env is not None:
                raise InvalidArgument(
                    "SingleAgentEnvRunner: an actor has its pipelines; give env_to_module= and module_to_env= to Actor"
                )
            policy.module_to_env.seed(seed)
            policy, env_to_module, module_to_env = policy.policy, policy.env_to_module, policy.module_to_env
        self.policy: Any = policy  # without the pipelines of an actor
        self.returns_interrupted = checked_flag("returns_interrupted", returns_interrupted)
        self._interrupted: list[EpisodePack] = []  # steps of calls that failed or were interrupted
        self.stats = CollectStats()
        self._last_rows = np.zeros(0, np.intp)
        self._make_pipelines(env_to_module, module_to_env, check_pipeline)
        self._recorder = VectorRecorder(
            self.num_envs,
            self.env_to_module.recorded_observation_space,
            self._policy_action_space(),
            autoreset_mode=self.autoreset_mode,
            len_lookback_buffer=max(checked_lookback(len_lookback_buffer), self.env_to_module.lookback),
            reward_dtype=reward_dtype,
        )
        self._sink: VectorRecorder | ReplayRecorder = self._recorder  # records the rows of this call
        self._buffer: EpisodeReplayBuffer | None = None  # the buffer behind the sink
        self._stores_log_probs = False
        self._running = RunningReturns(self.num_envs, self.autoreset_mode)
        self._all = np.arange(self.num_envs)
        self._boundaries = Boundaries(self.num_envs, self.autoreset_mode)  # classifies rows before they are recorded
        self._is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._resets_itself = self.autoreset_mode is AutoresetMode.DISABLED
        self._explores = True  # in this call
        self._was_greedy = np.zeros((0, 0), bool)  # [N, L] whether the newest steps took the most likely actions
        self._random_share = 0.0  # probability of a random action in this call, see `connectors.Policy`
        self._shared_data: dict[str, Any] = {}
        self._observations: Any = None  # the newest row, rewritten
        self._raw_observations: Any = None  # the newest row as the environments returned it
        self._row: Any = None  # the environments' last result
        self._inference = torch.inference_mode()
        self._reset_seed = seed
        self._turn = 0  # the next environment that contributes an additional episode
        self._quotas = np.zeros(self.num_envs, int)  # episodes per environment in the last call for whole episodes
        self.env.action_space.seed(seed)

    def _make_envs(
        self, env: EnvLike, num_envs: int | None, mode: AutoresetMode | str | None, options: dict[str, Any]
    ) -> None:
        """Create the vector environment from `env`, or use it if it is one, and determine its autoreset mode."""
        self._made_of: tuple[EnvLike, dict[str, Any]] = (env, {**options, "autoreset_mode": mode})
        wanted_mode = None if isinstance(env, gym.vector.VectorEnv) else mode
        self.env = make_vector_env(env, num_envs, autoreset_mode=wanted_mode, **options)
        if isinstance(env, str) or makes_envs(env):
            self._keep_env = close_when_dropped(self, [self.env])
        self.autoreset_mode = autoreset_mode_of(self.env, mode)
        self.num_envs = self.env.num_envs
        self._turns = EnvTurns([self.env])
        inner = self.env.unwrapped
        self._restarting: ProcessVectorEnv | SerialVectorEnv | None = (
            None  # the environments, if failed ones are replaced
        )
        if isinstance(inner, (ProcessVectorEnv, SerialVectorEnv)) and inner.restart_failed:
            if inner is not self.env:
                raise InvalidArgument(
                    f"restart_failed=True below {self.env}: a vector wrapper takes the first observation of a new "
                    "environment for a step; wrap each environment in the callable instead"
                )
            self._restarting = inner

    def _make_pipelines(
        self, env_to_module: EnvToModule | None, module_to_env: ModuleToEnv | None, checks: bool
    ) -> None:
        """Set both pipelines, bind them to the spaces and the policy, and check that they fit.

        A pipeline of None is replaced by the default one.
        """
        spaces = (self.env.single_observation_space, self.env.single_action_space)
        if self.policy is not None:
            check_interface(self.policy, "SingleAgentEnvRunner")
        if env_to_module is None:
            env_to_module = env_to_module_pipeline(*spaces, device=module_of(self.policy).device)
        if module_to_env is None:
            module_to_env = module_to_env_pipeline(*spaces, seed=self.seed, log_probs=False)
        check_pipeline(env_to_module, EnvToModule, "env_to_module")
        check_pipeline(module_to_env, ModuleToEnv, "module_to_env")
        env_to_module.bind(*spaces)
        module_to_env.bind(*spaces)
        if self.policy is not None:
            env_to_module.bind_policy(self.policy)
            module_to_env.bind_policy(self.policy)
        self._fingerprint = fingerprint_of(env_to_module, module_to_env)
        self._checks = checked_flag("check_pipeline", checks)
        if self._checks:
            check_spaces(env_to_module, module_to_env, *spaces)
            check_fingerprint(self.policy, self._fingerprint)
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._rewrite = env_to_module.rewrite

    def _policy_action_space(self) -> gym.Space:
        """Return the space of the actions that episodes record, which are in the policy's units."""
        return self.module_to_env.policy_action_space(self.env.single_action_space)

    @property
    def episodes(self) -> OngoingEpisodes | ShownEpisodes:
        """Ongoing episodes, one per environment.
        While `on_step` hooks run, episodes that ended in this step are included.
        """
        return self._sink.episodes if self._shown is None else self._shown

    @property
    def actor(self) -> Actor:
        """Policy of the runner with its pipelines, whose statistics are shared with the runner.

        Raises:
            InvalidArgument: the runner has no policy.
        """
        if self.policy is None:
            raise InvalidArgument("this runner has no policy, so it has no actor")
        return Actor.of_parts(self.policy, self.env_to_module, self.module_to_env)

    @property
    def ending_order(self) -> np.ndarray:
        """Indices, int [n], that sort the n chunks of the last `sample` by the time of their last step.

        Chunks with the same last vector step are in the order of the environments. Chunks of an interrupted call are
        not included.
        """
        return np.argsort(self._last_rows, kind="stable")

    @property
    def replacements(self) -> Sequence[EnvReplacement]:
        """All failed environments that were replaced (`restart_failed=True`), with the reasons."""
        return () if self._restarting is None else self._restarting.replacements

    @property
    def num_steps(self) -> int:
        """Number of environment steps in all calls of `sample` and `sample_into` so far."""
        return self._num_steps

    # --- sampling ------------------------------------------------------------------------------------------------

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool = True,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> EpisodePack:
        """Sample at least `num_timesteps` steps, or exactly `num_episodes` whole episodes,
        and return them as a pack of arrays.

        Args:
            num_timesteps: minimum number of environment steps, sampled in as few vector steps as possible. Episodes
                that are ongoing at the end are returned as cut chunks, and continue in the next call.
            num_episodes: exact number of whole episodes. Each environment contributes its first ones, so that short
                episodes are not favoured. All environments are reset before the call, and before the next one.
            explore: passed to the policy and both pipelines. False: the actions are the most likely ones, their
                "action_logp" are 0, and statistics of observations do not change, unless the runner has
                `update_stats="always"`.
            random_actions: sample actions from the action space and do not call the policy. If observations are a
                `Dict` with an "action_mask" of `Discrete` actions, only legal actions are sampled.
            force_reset: reset all environments first.

        Returns:
            An `EpisodePack` of n chunks.

        Raises:
            InvalidArgument: both counts or none are given, or a count is below 1.
            EpisodeStateError: the runner is closed, or is sampling already (a hook called this method), or another
                runner is sampling from the same environment object.
            KeyboardInterrupt: Ctrl-C. `take` returns the steps sampled so far.
            StateMismatch: a filter has no statistics, and this call does not update them.
        """
        check_counts(num_timesteps, num_episodes)
        if self._closed or self._is_sampling:
            self._check_may_sample()
        try:
            self._is_sampling = True
            self._needs_reset |= not self._turns.begin()
            with self._interrupts as interrupts:
                began = perf_counter()
                if num_episodes is not None or not self.returns_interrupted or explore != self._explores:
                    self._store_interrupted()
                self._explores = explore
                self._updates = self._updates_if(explore)
                self._record_into_packs()
                self._recorder.stand_ins[Columns.STATE_OUT] = module_of(self.policy).initial_state() or None
                if self._needs_reset or force_reset or num_episodes is not None:
                    self._start_episodes()
                if num_episodes is not None:
                    self._recorder.take()  # steps before the reset do not count
                self._run(num_timesteps, num_episodes, explore, random_actions)
                pack = self._take_interrupted_steps() if interrupts.pending else self._take(num_episodes, began)
            if interrupts.pending:
                self._interrupted.append(pack)
                interrupts.raise_pending()
            return pack
        finally:
            self._is_sampling = False
            self._turns.end()

    def sample_into(
        self,
        buffer: EpisodeReplayBuffer,
        *,
        num_timesteps: int,
        explore: bool = True,
        random_actions: bool = False,
        force_reset: bool = False,
        extra_model_outputs: Collection[str] | None = None,
    ) -> CollectStats:
        """Sample at least `num_timesteps` steps directly into a replay buffer, and return the statistics of the call.

        Episodes continue from call to call. New episodes start with the first call for a buffer, after a call of
        `sample`, and if the ongoing episodes are no longer in the buffer.

        Args:
            buffer: the replay buffer.
            num_timesteps: minimum number of environment steps.
            explore: as in `sample`.
            random_actions: as in `sample`.
            force_reset: as in `sample`.
            extra_model_outputs: names of other policy outputs to store, "state_out" for example. None: those that the
                buffer stores already, or none if it has no steps yet. All steps of a buffer have the same outputs.
                Random actions have none.

        Raises:
            InvalidArgument: `num_timesteps` is below 1, or the buffer is too small for the runner's environments.
            UnknownKey: the policy has no such extra output.
            EpisodeStateError: the runner is closed, or is sampling already (a hook called this method), or another
                runner is sampling from the same environment object.
            KeyboardInterrupt: Ctrl-C. The buffer has the steps sampled so far.
        """
        if type(num_timesteps) is not int or num_timesteps < 1:
            check_counts(num_timesteps, None)
        if self._closed or self._is_sampling:
            self._check_may_sample()
        try:
            self._is_sampling = True
            self._needs_reset |= not self._turns.begin()
            if num_timesteps <= self.num_envs:  # one vector step: an interrupt loses that step in any case
                return self._sample_into(
                    buffer, num_timesteps, explore, random_actions, force_reset, extra_model_outputs
                )
            with self._interrupts as interrupts:
                stats = self._sample_into(
                    buffer, num_timesteps, explore, random_actions, force_reset, extra_model_outputs
                )
            interrupts.raise_pending()
            return stats
        finally:
            self._is_sampling = False
            self._turns.end()

    def _sample_into(
        self,
        buffer: EpisodeReplayBuffer,
        num_timesteps: int,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
        keys: Collection[str] | None,
    ) -> CollectStats:
        """Sample for `sample_into`: select the recorder, start episodes if needed,
        count the steps, and call the hooks.
        """
        began = perf_counter()
        self._updates, self._explores = self._updates_if(explore), explore
        self._was_greedy[...] = not explore
        continues = self._record_into(buffer, keys)
        if force_reset or self._needs_reset or not continues:
            self._start_episodes()
        num_steps = self._run(num_timesteps, None, explore, random_actions)
        stats = self._count(num_steps, perf_counter() - began)
        if self._on_sample_end:
            self._call_sample_end_hooks(stats)
        return stats

    @property
    def policy_version(self) -> int | None:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self._recorder.policy_version = version
        self._policy_version = version
        self._sink.policy_version = version

    def take(self) -> EpisodePack:
        """Return the steps of failed or interrupted calls of `sample` as a pack, which may be empty.

        It also works if the runner is closed or its environments died. Steps are returned once.

        Raises:
            EpisodeStateError: `sample` was never called, or failed before its first reset; or the runner is sampling (a
                hook called this method).
        """
        self._check_not_sampling("take")
        self._store_interrupted()
        if not self._interrupted:
            self._interrupted = [self._recorder.take()]
        pack = self._concat_packs(self._interrupted)
        self._interrupted = []
        return pack

    def _concat_packs(self, packs: Sequence[EpisodePack]) -> EpisodePack:
        """Return the packs concatenated to one pack, after adding log-probabilities of the actions."""
        return EpisodePack.concat([self.module_to_env.with_log_probs(self.policy, pack) for pack in packs])

    def _with_log_probs(self, pack: EpisodePack, envs: np.ndarray) -> EpisodePack:
        """Return the chunks that this call recorded with "action_logp": 0 for steps that took the most likely actions,
        in the lookbacks too.

        `envs` [n] are the environments of the chunks.
        """
        result = self.module_to_env.with_log_probs(self.policy, pack)
        before = self._was_greedy
        if result is pack or (self._explores and not before.any()):
            return result
        if len(before) < self.num_envs:
            before = np.zeros((self.num_envs, self._recorder.len_lookback_buffer), bool)
        after, greedy = before.copy(), []
        for env, length, lookback in zip(envs.tolist(), pack.lengths.tolist(), pack.lookbacks.tolist(), strict=True):
            new = np.full(length, not self._explores)
            greedy += [after[env, after.shape[1] - lookback :].copy(), new]
            after[env] = np.concatenate([after[env], new])[length:]
        log_probs = np.where(np.concatenate(greedy), 0, result.extra_model_outputs[Columns.ACTION_LOGP])
        self._was_greedy = after
        log_probs = log_probs.astype(np.float32)
        return result.replace(extra_model_outputs={**result.extra_model_outputs, Columns.ACTION_LOGP: log_probs})

    def _store_interrupted(self) -> None:
        if self._sink is self._recorder and self._needs_reset and self._recorder.count_steps():
            recorded = self._recorder.take()
            self._interrupted.append(self._with_log_probs(recorded, self._recorder.taken_envs))

    def _record_into_packs(self) -> None:
        """Record the next steps into packs. Ongoing episodes of a replay buffer continue if the buffer still stores
        them.
        """
        if isinstance(self._sink, ReplayRecorder) and not self._needs_reset:
            if self._sink.is_reset:
                self._sink.hand_over_to(self._recorder)
            else:
                self._needs_reset = True
        self._sink, self._buffer = self._recorder, None

    def _record_into(self, buffer: EpisodeReplayBuffer, keys: Collection[str] | None) -> bool:
        """Record the next steps into `buffer`. Return True if the ongoing episodes continue, False if they need a
        reset.

        Args:
            buffer: the replay buffer.
            keys: names of the policy outputs to store. None: those that the buffer stores already.

        Raises:
            WrongType: the object is not an `EpisodeReplayBuffer`.
        """
        if not isinstance(buffer, EpisodeReplayBuffer):
            raise WrongType(
                f"sample_into cannot write into a {type(buffer).__name__}; give an EpisodeReplayBuffer, "
                "or add the pack of sample()"
            )
        keys = buffer.extra_model_outputs if keys is None else keys
        self._stores_log_probs = Columns.ACTION_LOGP in keys
        sink = self._sink
        if isinstance(sink, ReplayRecorder) and self._buffer is buffer and sink.is_reset:
            sink.keys = list(keys)
            return True
        self._store_interrupted()
        self._sink = buffer.recorder(
            self.num_envs,
            autoreset_mode=self.autoreset_mode,
            observation_space=self._recorder.observation_space,
            action_space=self._recorder.action_space,
            len_lookback_buffer=self._recorder.len_lookback_buffer,
            keys=keys,
        )
        self._buffer = buffer
        return False

    def _start_episodes(self) -> None:
        """Reset all environments to start new episodes. Errors are explained by `raise_or_annotate`."""
        self._needs_reset = True  # stays True if the reset fails
        try:
            self._reset()
        except Exception as error:
            raise_or_annotate(error, self.env, self._row, lambda: np.full(self.num_envs, -1), self, self._sink)
            raise

    def _run(self, num_timesteps: int | None, num_episodes: int | None, explore: bool, random_actions: bool) -> int:
        """Step the environments until there are enough steps or episodes.

        Return the number of steps, or 0 for episodes. If an error occurs, all environments are reset before the next
        step.

        Raises:
            InvalidArgument: there is no policy, and `random_actions` is False.
        """
        if self.policy is None and not random_actions:
            raise InvalidArgument("this runner has no policy; give policy=, or pass random_actions=True")
        act = self._random_actions if random_actions else self._policy_actions
        self._sink.policy_version = None if random_actions else self._policy_version
        self._sink.acting_pipeline = getattr(self.env_to_module, "acting_pipeline", None)  # unknown for other pipelines
        if self._updates and not random_actions:
            stamp(self.policy, self._fingerprint)
        elif self._checks and not random_actions:
            check_statistics(self.policy, self.env_to_module)
        self._rewrites = self.env_to_module.rewrites
        stores_alone = self.num_envs == 1 and isinstance(self._sink, ReplayRecorder) and not self._sink.keys
        self._random_share = random_action_probability_of(self.policy) if explore and stores_alone else 0.0
        try:
            with self._inference:
                if num_timesteps is not None:
                    return self._run_steps(num_timesteps, act, explore)
                self._quotas, self._turn = quotas(num_episodes or 0, self.num_envs, self._turn)
                self._run_episodes(self._quotas, act, explore)
                return 0
        except BaseException as error:
            self._needs_reset = True  # the environments may be a step ahead of the recorder
            raise_or_annotate(error, self.env, self._row, lambda: self._sink.ages, self, self._sink)
            raise

    def _count(self, num_steps: int, seconds: float) -> CollectStats:
        """Update `stats` and the total counts by `num_steps` steps and the episodes that
        ended, and return the statistics.
        """
        returns, lengths = self._running.take()
        self.stats = stats = CollectStats(num_steps, seconds, returns, lengths)
        self._num_steps += num_steps
        self.num_episodes += len(returns)
        return stats

    def _reset(self) -> None:
        """Reset all environments, record the first observations, and call the hooks. Ongoing episodes are cut."""
        self._row = self.env.reset(seed=self._reset_seed)
        observations, infos = self._row
        self._reset_seed = None
        self._raw_observations = observations = self._as_rows(observations)
        self._observations = self._rewrite_rows(observations, self._all, self._all, infos=infos)
        self._boundaries.reset(np.ones(self.num_envs, bool))
        self._sink.reset(self._observations, infos)
        if self._buffer is not None:
            self._running.reset(np.ones(self.num_envs, bool))
        self._needs_reset = False
        self._call_start_hooks(self._all)

    def _run_steps(self, num_timesteps: int, act: Callable[..., Any], explore: bool) -> int:
        """Take at least `num_timesteps` steps in as few vector steps as possible, and return how many were taken.

        `act` computes the actions of a vector step. After Ctrl-C the method stops early.
        """
        counted = self._sink if self._buffer is None else self._running
        stop, missing, interrupts = counted.count_steps() + num_timesteps, num_timesteps, self._interrupts
        while missing > 0:
            for _ in range(-(-missing // self.num_envs)):
                self._step(*act(explore))
                if interrupts.pending:
                    return num_timesteps - stop + counted.count_steps()
            missing = stop - counted.count_steps()
        return num_timesteps - missing

    def _run_episodes(self, quotas: np.ndarray, act: Callable[..., Any], explore: bool) -> None:
        """Step the environments until each environment has ended as many episodes as its entry in `quotas` [N].

        `act` computes the actions of a vector step. After Ctrl-C the method stops early. The environments are reset
        before the next step.
        """
        missing = quotas.copy()
        while np.any(missing > 0) and not self._interrupts.pending:
            self._step(*act(explore))
            missing[self._sink.newest.ended] -= 1
        self._needs_reset = True

    def _policy_actions(self, explore: bool) -> Acted:
        """Return the policy's actions for the newest observations,
        the actions for the environments, and its other outputs.
        """
        policy: Any = self.policy
        episodes, shared_data = self._sink.episodes, self._shared_data
        if self._random_share:
            if self.env.action_space.np_random.random() < self._random_share:
                return self._random_actions(explore)
            explore = False
        batch = self.env_to_module.see(policy, {Columns.OBS: self._observations}, episodes, explore, shared_data)
        outputs = policy(batch, explore=explore)
        return self.module_to_env.act(policy, outputs, episodes, explore, shared_data)

    def _random_actions(self, explore: bool) -> Acted:
        """Sample random actions. Return the actions to record, the actions for the environments, and extra outputs."""
        space, sampled = self._recorder.action_space, sample_random_actions(self.env, self._raw_observations)
        if not has_policy_actions(space):
            return sampled, sampled, {}
        actions = to_policy_actions(space, sampled)
        if self.module_to_env.records_env_actions:
            return actions, sampled, {Columns.ACTIONS_FOR_ENV: sampled}
        return actions, to_env_actions(space, actions), {}  # so that the recorded actions are exactly those sent

    def _step(self, actions: NestedArrays, actions_for_env: NestedArrays, outputs: dict[str, Any]) -> None:
        """Take one step in all environments, record the step, and call the hooks.

        Args:
            actions: actions [N, ...] to record, in the policy's units.
            actions_for_env: actions [N, ...] that are sent to the environments.
            outputs: other outputs of the policy by name, [N, ...].
        """
        self._row = self.env.step(copied(actions_for_env))  # environments may clip or scale them in place
        observations, rewards, terminateds, truncateds, infos = self._row
        if self._restarting is not None and self._restarting.replaced:
            self._cut(np.array(self._restarting.replaced))
        last = self._last_observations(infos, np.logical_or(terminateds, truncateds)) if self._is_same_step else None
        if type(observations) is not np.ndarray:
            observations = self._as_rows(observations)
        self._raw_observations = observations
        if self._rewrites:
            row = self._boundaries.classify(terminateds, truncateds)
            self._boundaries.commit(row)
            if last is not None:
                final_infos, _ = infos_at_ends(infos)
                last = self._rewrite_rows(last, row.ended, row.ended[:0], actions, rewards, final_infos)
            observations = self._rewrite_rows(observations, self._all, row.begun, actions, rewards, infos)
        self._observations = observations
        stored = outputs
        if self._buffer is not None:
            if self._stores_log_probs:
                stored = self._add_log_probs(outputs, actions)
            rewards = np.asarray(rewards, self._recorder.reward_dtype)
        self._sink.step(observations, actions, rewards, terminateds, truncateds, infos, stored, final_observations=last)
        if self._buffer is not None:
            self._running.add_row(rewards, terminateds, truncateds)
        if self._has_hooks:
            self._call_step_hooks()
        if self._resets_itself:
            self._reset_where(np.logical_or(terminateds, truncateds))

    def _cut(self, envs: np.ndarray) -> None:
        """Cut the episodes of environments `envs` [k], which failed: their row is the reset of new environments."""
        for part in (self._sink, self._boundaries, self._running):
            part.cut(envs)

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _call_step_hooks(self) -> None:
        """Call the hooks' methods after a vector step, for episodes that started,
        for the step, and for episodes that ended.
        """
        row, sink = self._sink.newest, self._sink
        if not self._is_same_step:
            self._call_start_hooks(row.begun)
        if self._on_step:
            at_once = self._is_same_step and len(row.ended)
            self._call_on_step(ShownEpisodes(sink.episodes, self._ended_episodes if at_once else dict))
        if self._on_episode_end and len(row.ended):
            call_hooks(self._on_episode_end, self, row.ended, sink.ended_episodes())
        if self._is_same_step:
            self._call_start_hooks(row.begun)

    def _ended_episodes(self) -> dict[int, SingleAgentEpisode]:
        return dict(zip(self._sink.newest.ended.tolist(), self._sink.ended_episodes(), strict=True))

    def _call_start_hooks(self, envs: np.ndarray) -> None:
        if self._on_episode_start and len(envs):
            call_hooks(self._on_episode_start, self, envs, [self._sink.episodes[env] for env in envs.tolist()])

    # --- recording -------------------------------------------------------------------------------------------------

    def _add_log_probs(self, outputs: dict[str, Any], actions: NestedArrays) -> dict[str, Any]:
        """Return the policy's outputs with the log-probabilities of `actions`,
        if the module-to-env pipeline has left them out.
        """
        log_probs = self.module_to_env.log_probs(self.policy, outputs, actions)
        if log_probs is not None and not self._explores:
            log_probs = np.zeros_like(log_probs)
        return outputs if log_probs is None else {**outputs, Columns.ACTION_LOGP: log_probs}

    def _last_observations(self, infos: dict[str, Any], done: np.ndarray) -> Any:
        envs = np.flatnonzero(done)
        return final_observations_of(infos, envs, self.env.single_observation_space) if len(envs) else None

    def _as_rows(self, observations: NestedArrays) -> Any:
        """Convert observations of the vector environment to nested arrays [N, ...]."""
        return as_rows(observations, self.env.single_observation_space)

    def _rewrite_rows(
        self,
        observations: NestedArrays,
        envs: np.ndarray,
        begun: np.ndarray,
        actions: NestedArrays | None = None,
        rewards: np.ndarray | None = None,
        infos: dict[str, Any] | None = None,
    ) -> Any:
        """Return the observations [n, ...] of environments `envs` [n] after the connectors that
        change observations before recording.

        Args:
            observations: as the environments returned them, [n, ...].
            envs: indices of the environments, [n].
            begun: environments [k] whose observation is the first of an episode.
            actions: the actions [N, ...] that led to the other observations.
            rewards: the rewards [N] of these actions.
            infos: infos of the vector environment that came with the observations.
        """
        episodes = IncomingEpisodes(self._sink.episodes, observations, envs, begun, actions, rewards, infos)
        rewritten = self._rewrite(observations, episodes, self._updates)
        episodes.close()
        return rewritten

    def _reset_where(self, done: np.ndarray) -> None:
        """Reset the environments flagged in `done`, bool [N],
        and record the first observations of their new episodes.
        """
        if not np.count_nonzero(done):
            return
        observations, infos = self.env.reset(options={"reset_mask": done.copy()})
        envs = np.flatnonzero(done)
        self._raw_observations = observations = self._as_rows(observations)
        first_observations = self._rewrite_rows(nested.take(observations, envs), envs, envs, infos=infos)
        self._boundaries.reset(done)
        if self._buffer is not None:
            self._running.reset(done)
        self._observations = nested.with_rows(self._observations, envs, first_observations)
        self._sink.reset(self._observations, infos, done)
        self._call_start_hooks(envs)

    def _take_interrupted_steps(self) -> EpisodePack:
        """Return the recorded steps of an interrupted call as a pack, and count its episode returns.
        No hooks are called.
        """
        recorded = self._recorder.take()
        return self._select_and_count(self._with_log_probs(recorded, self._recorder.taken_envs), None)

    def _take(self, num_episodes: int | None, began: float) -> EpisodePack:
        """Return the recorded episodes as a pack, after they were counted and hooks were called.

        `began` is the `perf_counter()` at the start of the call. If this fails, `take` returns the episodes.
        """
        recorded = self._recorder.take()
        try:
            recorded = self._with_log_probs(recorded, self._recorder.taken_envs)
            pack = self._select_and_count(recorded, num_episodes)
            left = self._interrupted if self.returns_interrupted and num_episodes is None else []
            if left:
                pack = EpisodePack.concat([self._concat_packs(left), pack])
            self._count(pack.num_steps, perf_counter() - began)
            pack = self._call_sample_end_hooks(pack)
        except BaseException:
            self._interrupted.append(recorded)
            raise
        self._interrupted = self._interrupted[len(left) :]
        return pack

    def _select_and_count(self, pack: EpisodePack, num_episodes: int | None) -> EpisodePack:
        """Select the chunks that `sample` returns, add them to the running episode returns, and return them as a pack.

        Args:
            pack: all recorded chunks.
            num_episodes: if given, only the first whole episodes of each environment are selected.
        """
        envs, self._last_rows = self._recorder.taken_envs, self._recorder.taken_rows
        if num_episodes is not None:
            whole = pack.terminated | pack.truncated
            num_before = np.concatenate([[0], np.cumsum(whole)])[:-1]  # whole episodes before each chunk
            ranks = num_before - num_before[np.searchsorted(envs, envs)]
            whole &= ranks < self._quotas[envs]
            pack, envs, self._last_rows = pack.select(whole), envs[whole], self._last_rows[whole]
        self._running.add_pack(pack, envs)
        return pack

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> SingleAgentEnvRunner:
        env, options = self._made_of
        num_envs = self.num_envs if num_envs is None else num_envs
        made_anew = env_like(env, num_envs)
        runner = SingleAgentEnvRunner(
            made_anew,
            self.policy,
            num_envs=None if isinstance(made_anew, gym.vector.VectorEnv) else num_envs,
            env_to_module=copy_pipeline(self.env_to_module),
            module_to_env=copy_pipeline(self.module_to_env),
            hooks=hooks,
            seed=seed,
            reward_dtype=self._recorder.reward_dtype,
            update_stats=False,
            check_pipeline=self._checks,
            **options,
        )
        check_distinct(envs_of(runner.env), envs_of(self.env))
        return runner

    # --- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the runner's state for a checkpoint: pipeline statistics,
        counts and the seed, without environments.
        """
        return super().get_state() | {"turn": self._turn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned.
        The next `sample` starts new episodes, with seeds derived from the state.

        Raises:
            StateMismatch: the state belongs to another kind of object. The runner is unchanged.
        """
        super().set_state(state)
        self._turn = state["turn"] % self.num_envs

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        self._reset_seed = int(sequence.generate_state(1)[0] >> 1)
        self.env.action_space.seed(self._reset_seed)

    def _close(self) -> None:
        close_vector_env(self.env)
        self._keep_env()

    def __repr__(self) -> str:
        mode = self.autoreset_mode.value
        return f"SingleAgentEnvRunner({self.num_envs} environments, {mode} autoreset, {self.num_steps} steps sampled)"

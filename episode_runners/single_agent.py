"""`SingleAgentEnvRunner`: lets a policy act in a vector environment, and returns the episodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import DTypeLike

from connectors.acting import Acted, EnvToModule, ModuleToEnv
from connectors.actor import Actor
from connectors.policy import Policy, module_of, random_action_probability_of
from episode_runners.acting_pipelines import ActingPipelines
from episode_runners.env_use import EnvUse
from episode_runners.environment_errors import check_distinct, raise_or_annotate
from episode_runners.random_actions import sample_random_actions
from episode_runners.recordings import Recordings
from episode_runners.restarts import EnvReplacement
from episode_runners.runner import (
    EnvRunner,
    ShownEpisodes,
    call_hooks,
    check_counts,
    check_flags,
    copy_pipeline,
    quotas,
)
from episode_runners.runner_envs import RunnerEnvs
from episode_runners.stats import CollectStats
from episode_runners.vector_envs import EnvLike, envs_of
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import InvalidArgument, UnknownKey
from episodes.pack import EpisodePack
from episodes.recorder.boundaries import Boundaries, infos_at_ends
from episodes.recorder.incoming import IncomingEpisodes
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.replay import EpisodeReplayBuffer
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.replay.stored_outputs import chosen_outputs
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.policy_box import has_policy_actions, to_env_actions, to_policy_actions
from episodes.tracks.validation import checked_count, checked_flag, reading_state

__all__ = ["SingleAgentEnvRunner"]


@dataclass(slots=True)
class SampleCall:
    """One call of `sample` or `sample_into`: its arguments, and what holds until it returns.

    Attributes:
        explore: whether the policy explores.
        updates: whether connectors with statistics learn.
        random_actions: whether actions are random.
        began: time of the beginning, in seconds of `perf_counter`.
        num_episodes: number of whole episodes to sample, or None.
        quotas: number of whole episodes per environment, int [N], or None.
        rewrites: whether observations are rewritten before they are recorded.
        random_share: probability of a random action, see `connectors.Policy`.
    """

    explore: bool
    updates: bool
    random_actions: bool
    began: float = 0.0
    num_episodes: int | None = None
    quotas: np.ndarray | None = None
    rewrites: bool = False
    random_share: float = 0.0


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
        self._envs = RunnerEnvs(self, env, num_envs, autoreset_mode, options)
        self._use = EnvUse([self.env], self._envs.forget)
        if isinstance(policy, Actor):
            if env_to_module is not None or module_to_env is not None:
                raise InvalidArgument(
                    "SingleAgentEnvRunner: an actor has its pipelines; give env_to_module= and module_to_env= to Actor"
                )
            policy.module_to_env.seed(seed)
            policy, env_to_module, module_to_env = policy.policy, policy.env_to_module, policy.module_to_env
        self.policy: Policy | None = cast(Policy | None, policy)
        self.returns_interrupted = checked_flag("returns_interrupted", returns_interrupted)
        self.stats = CollectStats()
        spaces = (self.env.single_observation_space, self.env.single_action_space)
        self._pipelines = ActingPipelines(env_to_module, module_to_env, self.policy, spaces, seed, check_pipeline)
        self._recordings = Recordings(
            VectorRecorder(
                self.num_envs,
                self.env_to_module.recorded_observation_space,
                self._policy_action_space(),
                autoreset_mode=self.autoreset_mode,
                len_lookback_buffer=max(checked_lookback(len_lookback_buffer), self.env_to_module.lookback),
                reward_dtype=reward_dtype,
            )
        )
        self._boundaries = Boundaries(self.num_envs, self.autoreset_mode)  # classifies rows before they are recorded
        self._observations: Any = None  # the newest row, rewritten
        self._last_rows = np.zeros(0, np.intp)  # of the chunks that `sample` returned, see `ending_order`
        self._call = SampleCall(True, bool(update_stats), False)
        self._turn = 0  # the next environment that contributes an additional episode
        self._envs.seed(seed)

    def _policy_action_space(self) -> gym.Space:
        """Return the space of the actions that episodes record, which are in the policy's units."""
        return self.module_to_env.policy_action_space(self.env.single_action_space)

    @property
    def env(self) -> gym.vector.VectorEnv:
        """Vector environment that the runner steps."""
        return self._envs.env

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self._envs.env.num_envs

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """Autoreset mode of the environments."""
        return self._envs.mode

    @property
    def env_to_module(self) -> EnvToModule:
        """Pipeline from observations to the policy's batch."""
        return self._pipelines.env_to_module

    @property
    def module_to_env(self) -> ModuleToEnv:
        """Pipeline from the policy's outputs to actions."""
        return self._pipelines.module_to_env

    @property
    def episodes(self) -> OngoingEpisodes | ShownEpisodes:
        """Ongoing episodes, one per environment.
        While `on_step` hooks run, episodes that ended in this step are included.
        """
        shown = self._hooks.shown
        return self._recordings.sink.episodes if shown is None else shown

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
        return () if self._envs.restarting is None else self._envs.restarting.replacements

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
            InvalidArgument: both counts or none are given, a count is below 1, or there is no policy and actions are
                not random.
            EpisodeStateError: the runner is closed, or is sampling already (a hook called this method), or another
                runner is sampling from the same environment object.
            KeyboardInterrupt: Ctrl-C. `take` returns the steps sampled so far.
            StateMismatch: a filter has no statistics, and this call does not update them.
            WrongType: a flag is not a bool.
        """
        check_counts(num_timesteps, num_episodes)
        check_flags(explore, random_actions, force_reset)
        use = self._use
        use.check_may_sample()
        try:
            use.begin()
            with use.interrupts:
                if num_episodes is not None or not self.returns_interrupted or explore != self._call.explore:
                    self._store_interrupted()
                call = self._begin_call(explore, random_actions)
                call.num_episodes = num_episodes
                recordings = self._recordings
                use.needs_reset = recordings.record_into_packs(use.needs_reset)
                recordings.packs.stand_ins[Columns.STATE_OUT] = module_of(self.policy).initial_state() or None
                if use.needs_reset or force_reset or num_episodes is not None:
                    self._start_episodes()
                if num_episodes is not None:
                    recordings.packs.take()  # steps before the reset do not count
                self._run(num_timesteps)
                pack = self._take_interrupted_steps() if use.interrupts.pending else self._take()
            if use.interrupts.pending:
                recordings.interrupted.append(pack)
                use.interrupts.raise_pending()
            return pack
        finally:
            use.end()

    def _begin_call(self, explore: bool, random_actions: bool) -> SampleCall:
        """Begin a call of `sample` or `sample_into`. A rejected call changes nothing.

        Raises:
            InvalidArgument: there is no policy, and the call does not take random actions.
            StateMismatch: a filter has no statistics, and this call does not update them.
        """
        updates = self._updates_if(explore)
        if not random_actions:
            if self.policy is None:
                raise InvalidArgument("this runner has no policy; give policy=, or pass random_actions=True")
            self._pipelines.begin(self.policy, updates)
        self._call = call = SampleCall(explore, updates, random_actions, perf_counter())
        return call

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
            InvalidArgument: `num_timesteps` is below 1, the buffer is too small for the runner's environments, or there
                is no policy and actions are not random.
            TrackMismatch: the buffer stores other outputs than `extra_model_outputs`.
            UnknownKey: the policy has no such extra output, which is found after the reset and before the first step;
                or random actions have none.
            EpisodeStateError: the runner is closed, or is sampling already (a hook called this method), or another
                runner is sampling from the same environment object.
            KeyboardInterrupt: Ctrl-C. The buffer has the steps sampled so far.
            StateMismatch: a filter has no statistics, and this call does not update them.
            WrongType: an argument has a wrong type.
        """
        if type(num_timesteps) is not int or num_timesteps < 1:
            check_counts(num_timesteps, None)
        if not (type(explore) is type(random_actions) is type(force_reset) is bool):
            check_flags(explore, random_actions, force_reset)
        use = self._use
        use.check_may_sample()
        try:
            use.begin()
            arguments = buffer, num_timesteps, explore, random_actions, force_reset, extra_model_outputs
            if num_timesteps <= self.num_envs:  # one vector step: an interrupt loses that step in any case
                return self._sample_into(*arguments)
            with use.interrupts:
                stats = self._sample_into(*arguments)
            use.interrupts.raise_pending()
            return stats
        finally:
            use.end()

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
        recordings = self._recordings
        if random_actions:
            self._check_random_outputs(recordings.keys_of(buffer, keys))
        self._begin_call(explore, random_actions)
        continues = recordings.continue_in(buffer, keys)
        recordings.was_greedy[...] = not explore
        if not continues:
            self._store_interrupted()
            recordings.record_into(buffer, keys)
        if force_reset or self._use.needs_reset or not continues:
            self._start_episodes()
        stats = self._count(self._run(num_timesteps))
        if self._hooks.on_sample_end:
            self._hooks.call_on_sample_end(self, stats)
        return stats

    def _check_random_outputs(self, keys: Collection[str]) -> None:
        """Raise `UnknownKey` if random actions do not have the extra model outputs `keys`."""
        records_both = (
            has_policy_actions(self._recordings.packs.action_space) and self.module_to_env.records_env_actions
        )
        missing = set(keys) - ({Columns.ACTIONS_FOR_ENV} if records_both else set())
        if missing:
            raise UnknownKey(
                f"sample_into: random actions have no extra model outputs {sorted(missing)}, which are to be stored; "
                "let the policy act, or take a buffer without them"
            )

    @property
    def policy_version(self) -> int | None:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self._recordings.packs.policy_version = version
        self._policy_version = version
        self._recordings.sink.policy_version = version

    def take(self) -> EpisodePack:
        """Return the steps of failed or interrupted calls of `sample` as a pack, which may be empty.

        It also works if the runner is closed or its environments died. Steps are returned once.

        Raises:
            EpisodeStateError: `sample` was never called, or failed before its first reset; or the runner is sampling (a
                hook called this method).
        """
        self._use.check_not_sampling("take")
        self._store_interrupted()
        recordings = self._recordings
        if not recordings.interrupted:
            recordings.interrupted = [recordings.packs.take()]
        pack = self._concat_packs(recordings.interrupted)
        recordings.interrupted = []
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
        recordings, explores = self._recordings, self._call.explore
        before = recordings.was_greedy
        if result is pack or (explores and not before.any()):
            return result
        if len(before) < self.num_envs:
            before = np.zeros((self.num_envs, recordings.packs.len_lookback_buffer), bool)
        after, greedy = before.copy(), []
        for env, length, lookback in zip(envs.tolist(), pack.lengths.tolist(), pack.lookbacks.tolist(), strict=True):
            new = np.full(length, not explores)
            greedy += [after[env, after.shape[1] - lookback :].copy(), new]
            after[env] = np.concatenate([after[env], new])[length:]
        log_probs = np.where(np.concatenate(greedy), 0, result.extra_model_outputs[Columns.ACTION_LOGP])
        recordings.was_greedy = after
        log_probs = log_probs.astype(np.float32)
        return result.replace(extra_model_outputs={**result.extra_model_outputs, Columns.ACTION_LOGP: log_probs})

    def _store_interrupted(self) -> None:
        """Move the steps of a failed call out of the recorder into packs."""
        recordings, packs = self._recordings, self._recordings.packs
        if recordings.sink is packs and self._use.needs_reset and packs.count_steps():
            recorded = packs.take()
            recordings.interrupted.append(self._with_log_probs(recorded, packs.taken_envs))

    def _start_episodes(self) -> None:
        """Reset all environments to start new episodes. Errors are explained by `raise_or_annotate`."""
        self._use.needs_reset = True  # stays True if the reset fails
        try:
            self._reset()
        except Exception as error:
            self._explain(error, lambda: np.full(self.num_envs, -1))
            raise

    def _explain(self, error: BaseException, get_ages: Callable[[], np.ndarray]) -> None:
        """Explain an error of a vector step by `raise_or_annotate`."""
        readers = (self, self._envs, self._pipelines)
        raise_or_annotate(error, self.env, self._envs.row, get_ages, readers, self._recordings.sink)

    def _run(self, num_timesteps: int | None) -> int:
        """Step the environments until there are enough steps, or the episodes of the call.

        Return the number of steps, or 0 for episodes. If an error occurs, all environments are reset before the next
        step.
        """
        call, sink = self._call, self._recordings.sink
        act = self._random_actions if call.random_actions else self._policy_actions
        sink.policy_version = None if call.random_actions else self._policy_version
        pipeline = self.env_to_module
        sink.acting_pipeline = getattr(pipeline, "acting_pipeline", None)  # unknown for other pipelines
        call.rewrites = pipeline.rewrites
        if call.explore and self.num_envs == 1 and isinstance(sink, ReplayRecorder) and not sink.keys:
            call.random_share = random_action_probability_of(self.policy)
        try:
            with self._pipelines.inference:
                if num_timesteps is not None:
                    return self._run_steps(num_timesteps, act)
                call.quotas, self._turn = quotas(call.num_episodes or 0, self.num_envs, self._turn)
                self._run_episodes(call.quotas, act)
                return 0
        except BaseException as error:
            self._use.needs_reset = True  # the environments may be a step ahead of the recorder
            self._explain(error, lambda: sink.ages)
            raise

    def _count(self, num_steps: int) -> CollectStats:
        """Update `stats` and the total counts by `num_steps` steps and the episodes that
        ended, and return the statistics.
        """
        returns, lengths = self._recordings.returns.take()
        self.stats = stats = CollectStats(num_steps, perf_counter() - self._call.began, returns, lengths)
        self._num_steps += num_steps
        self.num_episodes += len(returns)
        return stats

    def _reset(self) -> None:
        """Reset all environments, record the first observations, and call the hooks. Ongoing episodes are cut."""
        infos, everyone = self._envs.reset(), self._envs.all
        self._observations = self._rewrite_rows(self._envs.observations, everyone, everyone, infos=infos)
        self._boundaries.reset(np.ones(self.num_envs, bool))
        self._recordings.reset(self._observations, infos)
        self._use.needs_reset = False
        self._call_start_hooks(everyone)

    def _run_steps(self, num_timesteps: int, act: Callable[[], Acted]) -> int:
        """Take at least `num_timesteps` steps in as few vector steps as possible, and return how many were taken.

        `act` computes the actions of a vector step. After Ctrl-C the method stops early.
        """
        recordings, interrupts, num_envs = self._recordings, self._use.interrupts, self.num_envs
        stop, missing = recordings.count_steps() + num_timesteps, num_timesteps
        while missing > 0:
            for _ in range(-(-missing // num_envs)):
                self._step(*act())
                if interrupts.pending:
                    return num_timesteps - stop + recordings.count_steps()
            missing = stop - recordings.count_steps()
        return num_timesteps - missing

    def _run_episodes(self, quotas: np.ndarray, act: Callable[[], Acted]) -> None:
        """Step the environments until each environment has ended as many episodes as its entry in `quotas` [N].

        `act` computes the actions of a vector step. After Ctrl-C the method stops early. The environments are reset
        before the next step.
        """
        missing, sink = quotas.copy(), self._recordings.sink
        while np.any(missing > 0) and not self._use.interrupts.pending:
            self._step(*act())
            missing[sink.newest.ended] -= 1
        self._use.needs_reset = True

    def _policy_actions(self) -> Acted:
        """Return the policy's actions for the newest observations,
        the actions for the environments, and its other outputs.
        """
        explore, random_share = self._call.explore, self._call.random_share
        if random_share:
            if self.env.action_space.np_random.random() < random_share:
                return self._random_actions()
            explore = False
        return self._pipelines.act(self.policy, self._observations, self._recordings.sink.episodes, explore)

    def _random_actions(self) -> Acted:
        """Sample random actions. Return the actions to record, the actions for the environments, and extra outputs."""
        space, sampled = self._recordings.packs.action_space, sample_random_actions(self.env, self._envs.observations)
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
        envs, recordings, stored = self._envs, self._recordings, outputs
        if isinstance(recordings.sink, ReplayRecorder) and (keys := recordings.sink.keys):
            if Columns.ACTION_LOGP in keys:
                stored = self._add_log_probs(outputs, actions)
            chosen_outputs(stored, keys)  # raises if one is missing, before the environments step
        rewards, terminateds, truncateds, infos = envs.step(actions_for_env)
        if envs.restarting is not None and envs.restarting.replaced:
            self._cut(np.array(envs.restarting.replaced))
        last, observations = None, envs.observations
        if envs.mode is AutoresetMode.SAME_STEP:
            last = envs.last_observations(infos, np.logical_or(terminateds, truncateds))
        if self._call.rewrites:
            row = self._boundaries.classify(terminateds, truncateds)
            self._boundaries.commit(row)
            if last is not None:
                final_infos, _ = infos_at_ends(infos)
                last = self._rewrite_rows(last, row.ended, row.ended[:0], actions, rewards, final_infos)
            observations = self._rewrite_rows(observations, envs.all, row.begun, actions, rewards, infos)
        self._observations = observations
        if recordings.buffer is not None:
            rewards = np.asarray(rewards, recordings.packs.reward_dtype)
        ends = terminateds, truncateds
        recordings.sink.step(observations, actions, rewards, *ends, infos, stored, final_observations=last)
        if recordings.buffer is not None:
            recordings.returns.add_row(rewards, terminateds, truncateds)
        if self._hooks.follow_steps:
            self._call_step_hooks()
        if envs.mode is AutoresetMode.DISABLED:
            self._reset_where(np.logical_or(terminateds, truncateds))

    def _cut(self, envs: np.ndarray) -> None:
        """Cut the episodes of environments `envs` [k], which failed: their row is the reset of new environments."""
        for part in (self._recordings.sink, self._boundaries, self._recordings.returns):
            part.cut(envs)

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _call_step_hooks(self) -> None:
        """Call the hooks' methods after a vector step, for episodes that started,
        for the step, and for episodes that ended.
        """
        sink, hooks = self._recordings.sink, self._hooks
        row, is_same_step = sink.newest, self.autoreset_mode is AutoresetMode.SAME_STEP
        if not is_same_step:
            self._call_start_hooks(row.begun)
        if hooks.on_step:
            at_once = is_same_step and len(row.ended)
            hooks.call_on_step(self, ShownEpisodes(sink.episodes, self._ended_episodes if at_once else dict))
        if hooks.on_episode_end and len(row.ended):
            call_hooks(hooks.on_episode_end, self, row.ended, sink.ended_episodes())
        if is_same_step:
            self._call_start_hooks(row.begun)

    def _ended_episodes(self) -> dict[int, SingleAgentEpisode]:
        sink = self._recordings.sink
        return dict(zip(sink.newest.ended.tolist(), sink.ended_episodes(), strict=True))

    def _call_start_hooks(self, envs: np.ndarray) -> None:
        if self._hooks.on_episode_start and len(envs):
            episodes = [self._recordings.sink.episodes[env] for env in envs.tolist()]
            call_hooks(self._hooks.on_episode_start, self, envs, episodes)

    # --- recording -------------------------------------------------------------------------------------------------

    def _add_log_probs(self, outputs: dict[str, Any], actions: NestedArrays) -> dict[str, Any]:
        """Return the policy's outputs with the log-probabilities of `actions`,
        if the module-to-env pipeline has left them out.
        """
        log_probs = self.module_to_env.log_probs(self.policy, outputs, actions)
        if log_probs is not None and not self._call.explore:
            log_probs = np.zeros_like(log_probs)
        return outputs if log_probs is None else {**outputs, Columns.ACTION_LOGP: log_probs}

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
        ongoing = self._recordings.sink.episodes
        episodes = IncomingEpisodes(ongoing, observations, envs, begun, actions, rewards, infos)
        rewritten = self.env_to_module.rewrite(observations, episodes, self._call.updates)
        episodes.close()
        return rewritten

    def _reset_where(self, done: np.ndarray) -> None:
        """Reset the environments flagged in `done`, bool [N],
        and record the first observations of their new episodes.
        """
        if not np.count_nonzero(done):
            return
        infos, envs = self._envs.reset_where(done), np.flatnonzero(done)
        observations = nested.take(self._envs.observations, envs)
        first_observations = self._rewrite_rows(observations, envs, envs, infos=infos)
        self._boundaries.reset(done)
        self._observations = nested.with_rows(self._observations, envs, first_observations)
        self._recordings.reset(self._observations, infos, done)
        self._call_start_hooks(envs)

    def _take_interrupted_steps(self) -> EpisodePack:
        """Return the recorded steps of an interrupted call as a pack, and count its episode returns.
        No hooks are called.
        """
        packs = self._recordings.packs
        recorded = packs.take()
        return self._select_and_count(self._with_log_probs(recorded, packs.taken_envs), None)

    def _take(self) -> EpisodePack:
        """Return the recorded episodes of the call as a pack, after they were counted and hooks were called.

        If this fails, `take` returns the episodes.
        """
        recordings, call = self._recordings, self._call
        recorded = recordings.packs.take()
        try:
            recorded = self._with_log_probs(recorded, recordings.packs.taken_envs)
            pack = self._select_and_count(recorded, call.quotas)
            left = recordings.interrupted if self.returns_interrupted and call.num_episodes is None else []
            if left:
                pack = EpisodePack.concat([self._concat_packs(left), pack])
            self._count(pack.num_steps)
            pack = self._hooks.call_on_sample_end(self, pack)
        except BaseException:
            recordings.interrupted.append(recorded)
            raise
        recordings.interrupted = recordings.interrupted[len(left) :]
        return pack

    def _select_and_count(self, pack: EpisodePack, quotas: np.ndarray | None) -> EpisodePack:
        """Select the chunks that `sample` returns, add them to the running episode returns, and return them as a pack.

        Args:
            pack: all recorded chunks.
            quotas: if given, only the first whole episodes of each environment are selected, as many as its entry [N].
        """
        envs, last_rows = self._recordings.packs.taken_envs, self._recordings.packs.taken_rows
        if quotas is not None:
            whole = pack.terminated | pack.truncated
            num_before = np.concatenate([[0], np.cumsum(whole)])[:-1]  # whole episodes before each chunk
            ranks = num_before - num_before[np.searchsorted(envs, envs)]
            whole &= ranks < quotas[envs]
            pack, envs, last_rows = pack.select(whole), envs[whole], last_rows[whole]
        self._last_rows = last_rows
        self._recordings.returns.add_pack(pack, envs)
        return pack

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> SingleAgentEnvRunner:
        env, options = self._envs.like(num_envs)
        runner = SingleAgentEnvRunner(
            env,
            self.policy,
            env_to_module=copy_pipeline(self.env_to_module),
            module_to_env=copy_pipeline(self.module_to_env),
            hooks=hooks,
            seed=seed,
            reward_dtype=self._recordings.packs.reward_dtype,
            update_stats=False,
            check_pipeline=self._pipelines.checks,
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
        with reading_state(type(self)):
            turn = checked_count("turn", state["turn"], 0) if "turn" in state else 0  # the base class has the error
        super().set_state(state)
        self._turn = turn % self.num_envs

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        self._envs.seed(int(sequence.generate_state(1)[0] >> 1))

    def _close(self) -> None:
        self._envs.close()
        self._use.forget()

    def __repr__(self) -> str:
        mode = self.autoreset_mode.value
        return f"SingleAgentEnvRunner({self.num_envs} environments, {mode} autoreset, {self.num_steps} steps sampled)"

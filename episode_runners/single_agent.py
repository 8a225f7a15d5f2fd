"""`SingleAgentEnvRunner`: an environment and a policy in, an `EpisodePack` out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import DTypeLike

from connectors import env_to_module_pipeline, module_to_env_pipeline
from connectors.acting import Acted, EnvToModule, ModuleToEnv, check_pipeline, fingerprint_of
from connectors.actor import Actor
from connectors.fingerprint import check_fingerprint, check_statistics, stamp
from connectors.policy import Policy, check_interface, module_of, random_action_probability_of
from episode_runners.dropped_envs import close_when_dropped
from episode_runners.environment_errors import raise_or_annotate
from episode_runners.random_actions import RandomActions
from episode_runners.runner import EnvRunner, ShownEpisodes, check_counts, copied, quotas, tell
from episode_runners.stats import CollectStats, RunningReturns
from episode_runners.vector_envs import EnvLike, autoreset_mode_of, close_vector_env, env_like, make_vector_env
from episodes.columns import Columns
from episodes.errors import InvalidArgument, WrongType
from episodes.pack import EpisodePack
from episodes.recorder import IncomingEpisodes, OngoingEpisodes, VectorRecorder
from episodes.recorder.boundaries import Boundaries, final_observations_of, infos_at_ends
from episodes.replay import EpisodeReplayBuffer, ReplayRecorder
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.policy_box import has_policy_actions, to_env_actions, to_policy_actions
from episodes.tracks.spaces import as_rows
from episodes.tracks.validation import checked_flag

__all__ = ["SingleAgentEnvRunner"]


class SingleAgentEnvRunner(EnvRunner):
    """Samples episodes of a policy in a vector environment.

    Args:
        env: a Gymnasium id, a callable that makes an environment, or a vector environment.
        policy: called with the env-to-module pipeline's batch, `policy(batch, explore=...)`; it answers with a dict of
            actions, or of "action_dist_inputs" from which `GetActions` samples. None: only random actions. An `Actor`
            brings its own pipelines, and the runner updates their statistics.
        num_envs: how many environments to make; a vector environment has its own number.
        env_to_module: the pipeline to the policy's batch; `env_to_module_pipeline(...)` by default.
        module_to_env: the pipeline to actions; `module_to_env_pipeline(...)` by default.
        hooks: objects with methods of `Hook`.
        seed: of the environments, of the random actions, of sampling actions in the default pipeline, and of the ids of
            the episodes.
        len_lookback_buffer: how many items from before its first step a continued chunk brings along, at least; more
            where the env-to-module pipeline needs them (recurrent states, frame stacks).
        vectorization, env_kwargs: see `make_vector_env`.
        reward_dtype: of the rewards that are recorded; None: as the environments give them.
        update_stats: pieces that learn from observations, such as a `MeanStdFilter`, learn while exploring; what is
            sampled with `explore=False` never changes them.
        check_pipeline: refuse a policy that was trained in other pipelines (see `connectors.fingerprint`).
        returns_interrupted: let `sample` return also what a call before it recorded that failed or was interrupted
            (Ctrl-C); else it is put aside for `take`.
        autoreset_mode: of the environments made here, or of a vector environment that does not say its own.

    What the policy puts out beside its actions is recorded as extra model outputs. The env-to-module pipeline rewrites
    each observation once, before it is recorded. No gradients are kept while sampling.
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
        update_stats: bool = True,
        check_pipeline: bool = True,
        returns_interrupted: bool = False,
        vectorization: str = "sync",
        autoreset_mode: AutoresetMode | str | None = None,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(hooks, seed, update_stats)
        seed = self.seed
        self._make_envs(env, num_envs, autoreset_mode, {"vectorization": vectorization, "env_kwargs": env_kwargs})
        if isinstance(policy, Actor):
            if env_to_module is not None or module_to_env is not None:
                raise InvalidArgument(
                    "SingleAgentEnvRunner: an actor has its pipelines; give env_to_module= and module_to_env= to Actor"
                )
            policy.module_to_env.seed(seed)
            policy, env_to_module, module_to_env = policy.policy, policy.env_to_module, policy.module_to_env
        self.policy = policy
        self.returns_interrupted = checked_flag("returns_interrupted", returns_interrupted)
        self._interrupted: list[EpisodePack] = []  # what calls that failed have left
        self.stats = CollectStats()  # of the last call of sample
        self._make_pipelines(env_to_module, module_to_env, check_pipeline)
        self._recorder = VectorRecorder(
            self.num_envs,
            self.env_to_module.recorded_observation_space,
            self._policy_action_space(),
            autoreset_mode=self.autoreset_mode,
            len_lookback_buffer=max(checked_lookback(len_lookback_buffer), self.env_to_module.lookback),
            reward_dtype=reward_dtype,
        )
        self._seed_ids(seed)
        self._sink: VectorRecorder | ReplayRecorder = self._recorder  # where the rows of this call go
        self._buffer: EpisodeReplayBuffer | None = None  # that the sink writes into
        self._stores_log_probs = False
        self._running = RunningReturns(self.num_envs, self.autoreset_mode)
        self._all = np.arange(self.num_envs)
        self._boundaries = Boundaries(self.num_envs, self.autoreset_mode)  # of rows before they are recorded
        self._is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._resets_itself = self.autoreset_mode is AutoresetMode.DISABLED
        # With one environment, the row after an ending is a reset and nothing else: the policy need not be asked.
        self._skips_ignored = self.autoreset_mode is AutoresetMode.NEXT_STEP and self.num_envs == 1
        self._ignored_actions: tuple[Any, Any, dict[str, Any]] | None = None
        self._random_share = 0.0  # of the actions in this call of `sample_into`, see `connectors.Policy`
        self._shared_data: dict[str, Any] = {}
        self._observations: Any = None  # the newest row, rewritten
        self._raw_observations: Any = None  # and as the environments gave it
        self._row: Any = None  # what they gave last
        self._random = RandomActions(self.env)
        self._inference = torch.inference_mode()  # for each call anew: a runner samples once at a time
        self._reset_seed = seed
        self._turn = 0  # the environment whose turn it is to give an episode more
        self._quotas = np.zeros(self.num_envs, int)  # of the last call for whole episodes
        self.env.action_space.seed(seed)

    def _make_envs(
        self, env: EnvLike, num_envs: int | None, mode: AutoresetMode | str | None, options: dict[str, Any]
    ) -> None:
        self._made_of: tuple[EnvLike, dict[str, Any]] = (env, {**options, "autoreset_mode": mode})
        asked = None if isinstance(env, gym.vector.VectorEnv) else mode
        self.env = make_vector_env(env, num_envs, autoreset_mode=asked, **options)
        if isinstance(env, str) or not hasattr(env, "step"):
            self._keep_env = close_when_dropped(self, [self.env])
        self.autoreset_mode = autoreset_mode_of(self.env, mode)
        self.num_envs = self.env.num_envs

    def _make_pipelines(
        self, env_to_module: EnvToModule | None, module_to_env: ModuleToEnv | None, checks: bool
    ) -> None:
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
            check_fingerprint(self.policy, self._fingerprint)
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._rewrite = env_to_module.rewrite

    def _policy_action_space(self) -> gym.Space:
        """The space of the actions as the policy makes them, which are recorded."""
        return self.module_to_env.policy_action_space(self.env.single_action_space)

    @property
    def episodes(self) -> OngoingEpisodes | ShownEpisodes:
        """The ongoing episodes, made when someone looks; in `on_step` the ones that the step belongs to."""
        return self._sink.episodes if self._shown is None else self._shown

    @property
    def actor(self) -> Actor:
        """The policy with the runner's pipelines and their statistics.

        Raises:
            InvalidArgument: the runner has no policy.
        """
        if self.policy is None:
            raise InvalidArgument("this runner has no policy, so it has no actor")
        return Actor.of_parts(self.policy, self.env_to_module, self.module_to_env)

    @property
    def num_steps(self) -> int:
        """Of all calls of `sample` and `sample_into`."""
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
        """Episodes sampled until there are enough steps, or so many whole episodes.

        Args:
            num_timesteps: at least so many environment steps, in as few vector steps as that takes. Episodes that are
                going on at the end come as cut chunks and go on in the next call.
            num_episodes: exactly so many whole episodes. Every environment contributes in turn, how long its episodes
                may be, so that short ones have no advantage; it is reset before and, for the next call, after.
            explore: passed to the policy and to both pipelines; without, statistics of observations stay as they are.
            random_actions: sampled from the action space (legal ones where `Dict` observations have an "action_mask" of
                `Discrete` actions); the policy is not asked.
            force_reset: reset all environments first.

        Raises:
            InvalidArgument: neither count, both, or one below 1.
            EpisodeStateError: the runner is closed, or samples already (a hook called this).
        """
        check_counts(num_timesteps, num_episodes)
        if self._closed or self._is_sampling:
            self._check_may_sample()
        try:
            self._is_sampling = True
            with self._interrupts as interrupts:
                began = perf_counter()
                if num_episodes is not None or not self.returns_interrupted:
                    self._put_interrupted_aside()
                self._updates = self.update_stats and explore
                self._record_into_packs()
                self._recorder.stand_ins[Columns.STATE_OUT] = module_of(self.policy).initial_state() or None
                if self._needs_reset or force_reset or num_episodes is not None:
                    self._begin()
                if num_episodes is not None:
                    self._recorder.take()  # nothing from before the reset counts
                self._run(num_timesteps, num_episodes, explore, random_actions)
                pack = self._take_steps() if interrupts.pending else self._take(num_episodes, began)
            if interrupts.pending:
                self._interrupted.append(pack)
                interrupts.raise_pending()
            return pack
        finally:
            self._is_sampling = False

    def sample_into(
        self,
        buffer: EpisodeReplayBuffer,
        *,
        num_timesteps: int,
        explore: bool = True,
        random_actions: bool = False,
        force_reset: bool = False,
        extra_model_outputs: Collection[str] = (),
    ) -> CollectStats:
        """As `sample`, with every vector step written straight into a replay buffer instead of a pack.

        Episodes go on from call to call. The first call with a buffer, and the first after a `sample`, or after the
        buffer was cleared or restored or got so many other steps that they are no longer there, begins new ones.

        Args:
            extra_model_outputs: which of the policy's other outputs to store, "state_out" for example. All steps of a
                buffer have the same ones, so random actions have none.

        Raises:
            InvalidArgument: a count below 1, or a buffer too small for the runner's environments.
            UnknownKey: an extra model output that there is not.
            EpisodeStateError: the runner is closed, or samples already (a hook called this).
        """
        if type(num_timesteps) is not int or num_timesteps < 1:
            check_counts(num_timesteps, None)
        if self._closed or self._is_sampling:
            self._check_may_sample()
        try:
            self._is_sampling = True
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

    def _sample_into(
        self,
        buffer: EpisodeReplayBuffer,
        num_timesteps: int,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
        keys: Collection[str],
    ) -> CollectStats:
        began = perf_counter()
        self._updates = self.update_stats and explore
        continues = self._record_into(buffer, keys)
        if force_reset or self._needs_reset or not continues:
            self._begin()
        num_steps = self._run(num_timesteps, None, explore, random_actions)
        stats = self._count(num_steps, perf_counter() - began)
        if self._on_sample_end:
            self._tell_end_of_sample(stats)
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
        """What calls of `sample` recorded that failed or were interrupted, and that nobody has got; it may be empty.

        It can also be taken of a runner that is closed or whose environments died.

        Raises:
            EpisodeStateError: nothing was recorded, not even a reset; or the runner samples (a hook called this).
        """
        self._check_not_sampling("take")
        self._put_interrupted_aside()
        if not self._interrupted:
            self._interrupted = [self._recorder.take()]
        pack = self._joined(self._interrupted)
        self._interrupted = []
        return pack

    def _joined(self, packs: Sequence[EpisodePack]) -> EpisodePack:
        """Return the packs as one, with log-probabilities."""
        return EpisodePack.concat([self.module_to_env.with_log_probs(self.policy, pack) for pack in packs])

    def _put_interrupted_aside(self) -> None:
        if self._sink is self._recorder and self._needs_reset and self._recorder.count_steps():
            self._interrupted.append(self._recorder.take())

    def _record_into_packs(self) -> None:
        """Let the rows become packs; episodes that a replay recorder is in the middle of go on."""
        if isinstance(self._sink, ReplayRecorder) and not self._needs_reset:
            if self._sink.is_reset:
                self._sink.hand_over_to(self._recorder)
            else:
                self._needs_reset = True
        self._sink, self._buffer = self._recorder, None

    def _record_into(self, buffer: EpisodeReplayBuffer, keys: Collection[str]) -> bool:
        """Let the rows go into the buffer; whether episodes go on from the last call."""
        if not isinstance(buffer, EpisodeReplayBuffer):
            raise WrongType(
                f"cannot feed a {type(buffer).__name__}: give an EpisodeReplayBuffer, or add what sample() gives"
            )
        self._stores_log_probs = Columns.ACTION_LOGP in keys
        sink = self._sink
        if isinstance(sink, ReplayRecorder) and self._buffer is buffer and sink.is_reset:
            sink.keys = list(keys)
            return True
        self._put_interrupted_aside()
        self._sink = buffer.recorder(
            self.num_envs,
            autoreset_mode=self.autoreset_mode,
            observation_space=self._recorder.observation_space,
            action_space=self._recorder.action_space,
            len_lookback_buffer=self._recorder.len_lookback_buffer,
            keys=keys,
        )
        if self._id_generator is not None:
            self._sink.seed(self._id_generator)
        self._buffer = buffer
        return False

    def _begin(self) -> None:
        """Begin new episodes everywhere, for a call that samples."""
        self._needs_reset = True  # until it is done
        try:
            self._reset()
        except Exception as error:
            raise_or_annotate(error, self.env, self._row, lambda: np.full(self.num_envs, -1), self, self._sink)
            raise

    def _run(self, num_timesteps: int | None, num_episodes: int | None, explore: bool, random_actions: bool) -> int:
        """Step until there is enough; how many steps that were, where they are asked for."""
        if self.policy is None and not random_actions:
            raise InvalidArgument("this runner has no policy; give it one, or sample with random_actions=True")
        act = self._random_actions if random_actions else self._policy_actions
        self._sink.policy_version = None if random_actions else self._policy_version
        if self._updates and not random_actions:
            stamp(self.policy, self._fingerprint)
        elif self._checks and not random_actions:
            check_statistics(self.policy, self.env_to_module)
        self._rewrites = self.env_to_module.rewrites
        stores_alone = self.num_envs == 1 and isinstance(self._sink, ReplayRecorder) and not self._sink.keys
        self._random_share = random_action_probability_of(self.policy) if explore and stores_alone else 0.0
        try:
            with self._inference:
                if self._ignored_actions:  # of the last call, whose outputs may have had other names
                    self._ignored_actions = act(explore)
                if num_timesteps is not None:
                    return self._run_steps(num_timesteps, act, explore)
                self._quotas, self._turn = quotas(num_episodes or 0, self.num_envs, self._turn)
                self._run_episodes(self._quotas, act, explore)
                return 0
        except BaseException as error:
            self._needs_reset = True  # the environments may be a step ahead of what is recorded
            raise_or_annotate(error, self.env, self._row, lambda: self._sink.ages, self, self._sink)
            raise

    def _count(self, num_steps: int, seconds: float) -> CollectStats:
        returns, lengths = self._running.take()
        self.stats = stats = CollectStats(num_steps, seconds, returns, lengths)
        self._num_steps += num_steps
        self.num_episodes += len(returns)
        return stats

    def _reset(self) -> None:
        """Begin new episodes everywhere; those that were going on are cut."""
        self._row = self.env.reset(seed=self._reset_seed)
        observations, infos = self._row
        self._reset_seed = None
        self._raw_observations = observations = self._rows(observations)
        self._observations = self._rewritten(observations, self._all, self._all, infos=infos)
        self._boundaries.reset(np.ones(self.num_envs, bool))
        self._sink.reset(self._observations, infos)
        if self._buffer is not None:
            self._running.reset(np.ones(self.num_envs, bool))
        self._needs_reset = False
        self._ignored_actions = None
        self._tell_starts(np.arange(self.num_envs))

    def _run_steps(self, num_timesteps: int, act: Callable[..., Any], explore: bool) -> int:
        """So many steps at least, in as few vector steps as that takes; how many they were."""
        counted = self._sink if self._buffer is None else self._running
        stop, missing, interrupts = counted.count_steps() + num_timesteps, num_timesteps, self._interrupts
        while missing > 0:
            for _ in range(-(-missing // self.num_envs)):
                self._step(*(self._ignored_actions or act(explore)))
                if interrupts.pending:
                    return num_timesteps - stop + counted.count_steps()
            missing = stop - counted.count_steps()
        return num_timesteps - missing

    def _run_episodes(self, quotas: np.ndarray, act: Callable[..., Any], explore: bool) -> None:
        missing = quotas.copy()
        while np.any(missing > 0) and not self._interrupts.pending:
            self._step(*(self._ignored_actions or act(explore)))
            missing[self._sink.newest.ended] -= 1
        self._needs_reset = True

    def _policy_actions(self, explore: bool) -> Acted:
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
        space, sampled = self._recorder.action_space, self._random.draw(self._raw_observations)
        if not has_policy_actions(space):
            return sampled, sampled, {}
        actions = to_policy_actions(space, sampled)
        if self.module_to_env.records_env_actions:
            return actions, sampled, {Columns.ACTIONS_FOR_ENV: sampled}
        return actions, to_env_actions(space, actions), {}  # so that what is recorded is exactly what was sent

    def _step(self, actions: Any, actions_for_env: Any, outputs: dict[str, Any]) -> None:
        """One vector step, recorded."""
        self._row = self.env.step(actions_for_env)
        observations, rewards, terminateds, truncateds, infos = self._row
        last = self._last_observations(infos, np.logical_or(terminateds, truncateds)) if self._is_same_step else None
        if type(observations) is not np.ndarray:
            observations = self._rows(observations)
        self._raw_observations = observations
        if self._rewrites:
            row = self._boundaries.classify(terminateds, truncateds)
            self._boundaries.commit(row)
            if last is not None:
                told, _ = infos_at_ends(infos)
                last = self._rewritten(last, row.ended, row.ended[:0], actions, rewards, told)
            observations = self._rewritten(observations, self._all, row.begun, actions, rewards, infos)
        self._observations = observations
        stored = outputs
        if self._buffer is not None:
            stored = self._with_log_probs(outputs, actions) if self._stores_log_probs else outputs
            rewards = np.array(rewards, self._recorder.reward_dtype)  # an array of our own
        self._sink.step(observations, actions, rewards, terminateds, truncateds, infos, stored, final_observations=last)
        if self._buffer is not None:
            self._running.add_row(rewards, terminateds, truncateds)
        if self._skips_ignored:  # the row whose action is ignored is a reset, whatever its flags say
            done = self._ignored_actions is None and (terminateds[0] or truncateds[0])
            self._ignored_actions = (actions, actions_for_env, outputs) if done else None
        if self._has_hooks:
            self._tell_step()
        if self._resets_itself:
            self._reset_where(np.logical_or(terminateds, truncateds))

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _tell_step(self) -> None:
        """Let hooks see the newest row: what began with it, the step, and what ended."""
        row, sink = self._sink.newest, self._sink
        if not self._is_same_step:
            self._tell_starts(row.begun)
        if self._on_step:
            at_once = self._is_same_step and len(row.ended)
            self._show(ShownEpisodes(sink.episodes, self._ended_episodes if at_once else dict))
        if self._on_episode_end and len(row.ended):
            tell(self._on_episode_end, self, row.ended, sink.ended_episodes())
        if self._is_same_step:
            self._tell_starts(row.begun)

    def _ended_episodes(self) -> dict[int, SingleAgentEpisode]:
        return dict(zip(self._sink.newest.ended.tolist(), self._sink.ended_episodes(), strict=True))

    def _tell_starts(self, envs: np.ndarray) -> None:
        if self._on_episode_start and len(envs):
            tell(self._on_episode_start, self, envs, [self._sink.episodes[env] for env in envs.tolist()])

    # --- recording -------------------------------------------------------------------------------------------------

    def _with_log_probs(self, outputs: dict[str, Any], actions: Any) -> dict[str, Any]:
        """The outputs that are stored in a buffer, log-probabilities among them."""
        found = self.module_to_env.log_probs(self.policy, outputs, actions)
        return outputs if found is None else {**outputs, Columns.ACTION_LOGP: found}

    def _last_observations(self, infos: dict[str, Any], done: np.ndarray) -> Any:
        envs = np.flatnonzero(done)
        return final_observations_of(infos, envs, self.env.single_observation_space) if len(envs) else None

    def _rows(self, observations: Any) -> Any:
        """What the environments observe as nested arrays [N, ...]."""
        return as_rows(observations, self.env.single_observation_space)

    def _rewritten(
        self,
        observations: Any,
        envs: np.ndarray,
        begun: np.ndarray,
        actions: Any = None,
        rewards: Any = None,
        infos: dict[str, Any] | None = None,
    ) -> Any:
        """Observations [n, ...] of the environments [n] as the pipeline rewrites them; it may look at their episodes.

        Args:
            begun: environments [k] of these whose observation is the first one of an episode.
            actions, rewards: [N, ...] that led to the others.
            infos: of the vector environment, those that came with the observations.
        """
        episodes = IncomingEpisodes(self._sink.episodes, observations, envs, begun, actions, rewards, infos)
        rewritten = self._rewrite(observations, episodes, self._updates)
        episodes.close()
        return rewritten

    def _reset_where(self, done: np.ndarray) -> None:
        if not np.count_nonzero(done):
            return
        observations, infos = self.env.reset(options={"reset_mask": done.copy()})
        envs = np.flatnonzero(done)
        self._raw_observations = observations = self._rows(observations)
        fresh = self._rewritten(nested.take(observations, envs), envs, envs, infos=infos)
        self._boundaries.reset(done)
        if self._buffer is not None:
            self._running.reset(done)
        self._observations = nested.with_rows(self._observations, envs, fresh)
        self._sink.reset(self._observations, infos, done)
        self._tell_starts(envs)

    def _take_steps(self) -> EpisodePack:
        """Return the steps of an interrupted call. They count when they are returned, and hooks are not called."""
        return self._counted(self._recorder.take(), None)

    def _take(self, num_episodes: int | None, began: float) -> EpisodePack:
        """What was recorded, counted and shown to hooks; when that fails, it is left for `take`."""
        taken = self._recorder.take()
        try:
            pack = self._counted(taken, num_episodes)
            left = self._interrupted if self.returns_interrupted and num_episodes is None else []
            if left:
                pack = EpisodePack.concat([self._joined(left), pack])
            self._count(pack.num_steps, perf_counter() - began)
            pack = self._tell_end_of_sample(pack)
        except BaseException:
            self._interrupted.append(taken)
            raise
        self._interrupted = self._interrupted[len(left) :]
        return pack

    def _counted(self, pack: EpisodePack, num_episodes: int | None) -> EpisodePack:
        """The pack, its episodes counted; of whole episodes, each environment's first ones up to its quota."""
        envs = self._recorder.taken_envs
        if num_episodes is not None:
            ranks = np.arange(len(envs)) - np.searchsorted(envs, envs)
            whole = (pack.terminated | pack.truncated) & (ranks < self._quotas[envs])
            pack, envs = pack.select(whole), envs[whole]
        self._running.add_pack(pack, envs)
        return self.module_to_env.with_log_probs(self.policy, pack)

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> SingleAgentEnvRunner:
        """See `EnvRunner.for_evaluation`."""
        env, options = self._made_of
        num_envs = self.num_envs if num_envs is None else num_envs
        made_anew = env_like(env, num_envs)
        return SingleAgentEnvRunner(
            made_anew,
            self.policy,
            num_envs=None if isinstance(made_anew, gym.vector.VectorEnv) else num_envs,
            env_to_module=copied(self.env_to_module),
            module_to_env=copied(self.module_to_env),
            hooks=hooks,
            seed=seed,
            reward_dtype=self._recorder.reward_dtype,
            update_stats=False,
            check_pipeline=self._checks,
            **options,
        )

    # --- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The pipelines' states, the counts, the seed and whose turn it is. Environments cannot be saved."""
        return super().get_state() | {"turn": self._turn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave. The next `sample` begins new episodes, seeded by the seed and the steps."""
        super().set_state(state)
        self._turn = state["turn"] % self.num_envs

    def _seed_ids(self, seed: Any) -> None:
        """Let the ids of the episodes to come follow from a seed, in packs as in buffers; None: they are random."""
        self._id_generator = None if seed is None else np.random.default_rng(seed)
        if self._id_generator is not None:
            self._recorder.seed(self._id_generator)

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        self._seed_ids(sequence)
        self._reset_seed = int(sequence.generate_state(1)[0] >> 1)
        self.env.action_space.seed(self._reset_seed)

    def _close(self) -> None:
        close_vector_env(self.env)
        self._keep_env()

    def __repr__(self) -> str:
        mode = self.autoreset_mode.value
        return f"SingleAgentEnvRunner({self.num_envs} environments, {mode} autoreset, {self.num_steps} steps sampled)"

"""`MultiAgentEnvRunner`: lets policies act for the agents of an environment, and returns the multi-agent episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike

from connectors.actor import Actor
from connectors.multi_agent_pipelines import MultiAgentEnvToModule, MultiAgentModuleToEnv
from connectors.policy import check_interface, module_of
from episode_runners.dropped_envs import close_when_dropped, makes_envs
from episode_runners.env_use import EnvUse
from episode_runners.environment_errors import check_distinct
from episode_runners.multi_agent_chunks import NewEpisodes, SampledChunks
from episode_runners.multi_agent_envs import EnvStep, MultiAgentEnv
from episode_runners.multi_agent_pipelines import Answers, ByAgent, RunnerPipelines, checked_pipelines, split_actors
from episode_runners.multi_agent_restarts import EnvCopies
from episode_runners.multi_agent_stats import MultiAgentCollectStats, stats_of
from episode_runners.multi_agent_versions import carry_versions, checked_versions, switch_versions, write_versions
from episode_runners.restarts import EnvReplacement, advised
from episode_runners.runner import EnvRunner, check_counts, check_flags, copy_pipeline, quotas
from episodes.columns import DEFAULT_MODULE_ID, Columns
from episodes.data_types import ModuleID
from episodes.errors import EpisodeError, InvalidArgument, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.episode import ALL
from episodes.multi_agent.timeline import RESTS
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.validation import checked_choice, checked_count, checked_flag, checked_number_dtype, reading_state

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episode_runners.multi_agent_versions import Versions

__all__ = ["MultiAgentEnvRunner"]


class MultiAgentCall:
    """One call of `sample`.

    Attributes:
        updates: whether connectors with statistics learn.
        resuming: (copy, agent) that had no step of this chunk before the call, and did not act in the call yet.
    """

    __slots__ = ("resuming", "updates")

    def __init__(self, updates: bool) -> None:
        self.updates = updates
        self.resuming: set[tuple[int, Any]] = set()

    def forget_agents(self, i: int) -> None:
        """Forget the agents of copy `i`, whose episode is over."""
        self.resuming = {place for place in self.resuming if place[0] != i}


class MultiAgentEnvRunner(EnvRunner):
    """Runner that lets policies act for the agents of one or several copies of an
    environment, and returns the episodes.

    Args:
        env: a PettingZoo environment (parallel or AEC), an environment whose `reset` and `step` take and return dicts
            by agent, or a callable that makes one (needed for several copies).
        policies: `{module_id: policy or actor}`, each called as in `SingleAgentEnvRunner`; or one policy for all
            agents. None: only random actions. The attribute of this name is a dict, to which modules may be added
            later.
        num_envs: number of copies, 1 by default. Agents of one module are batched together over all copies.
        agent_to_module_mapping_fn: `(agent_id, episode) -> module_id`, called once for each agent and episode. The
            attribute of this name may be changed; episodes that start afterwards use the new function.
        env_to_module: pipelines from observations to batches, by module. Modules without one get the default pipeline.
        module_to_env: pipelines from the policies' outputs to actions, by module. Modules without one get the default.
        hooks: objects with methods of `Hook`, or callbacks (`RLlibCallback`).
        seed: seed of the environments (copy i gets `seed + i`), random actions, and action sampling in default
            pipelines. Episode ids are random with any seed.
        len_lookback_buffer: minimum number of earlier env steps that a continued chunk contains.
        update_stats: whether connectors with statistics update them while exploring, or "always".
        reward_dtype: dtype of recorded rewards. None: the dtype of the environment's rewards.
        check_pipeline: reject a policy that was trained in other pipelines.
        returns_interrupted: return the steps of an interrupted or failed call with the next `sample`. Otherwise only
            `take` returns them.
        missing_final_observation: "raise" or "repeat"; see `MultiAgentEpisode`.
        vectorization: "sync" steps the copies one after another, "async" runs a process for each.
        restart_failed: replace a copy that raises an error, or whose process dies or does not reply in time. Its
            episode is cut at the last observations and never continued. The attribute `replacements` lists what
            happened.
        env_timeout_s: seconds within which a copy must be made, be reset, or step ("async" only). None: no limit.

    Policies are called for agents that must act only. Other outputs of a policy are recorded. Sampling keeps no
    gradients.

    Raises:
        InvalidArgument: `num_envs` is above 1 with a single environment, or a module has an actor and a pipeline.
        WrongType: `env`, a policy, a pipeline, a hook or `agent_to_module_mapping_fn` has a wrong type.
    """

    steps_counted = "num_env_steps"

    def __init__(
        self,
        env: object,
        policies: Mapping[Any, Any] | Callable[..., Any] | None = None,
        *,
        num_envs: int | None = None,
        agent_to_module_mapping_fn: Callable[[Any, Any], Any] | None = None,
        env_to_module: MultiAgentEnvToModule | None = None,
        module_to_env: MultiAgentModuleToEnv | None = None,
        hooks: Sequence[Any] = (),
        seed: int | None = None,
        len_lookback_buffer: int = 0,
        update_stats: bool | Literal["always"] = True,
        reward_dtype: DTypeLike | None = np.float32,
        check_pipeline: bool = True,
        returns_interrupted: bool = False,
        missing_final_observation: str = "raise",
        vectorization: str = "sync",
        restart_failed: bool = False,
        env_timeout_s: float | None = None,
    ) -> None:
        super().__init__(hooks, seed, update_stats)
        seed = self.seed
        num_envs = 1 if num_envs is None else checked_count("num_envs", num_envs)
        if num_envs > 1 and not makes_envs(env):
            raise InvalidArgument(f"num_envs={num_envs}: give a callable that makes an environment for several copies")
        seeing = checked_pipelines("env_to_module", MultiAgentEnvToModule, env_to_module)
        acting = checked_pipelines("module_to_env", MultiAgentModuleToEnv, module_to_env)
        if not (policies is None or isinstance(policies, Mapping)):
            policies = {DEFAULT_MODULE_ID: policies}
        self.policies = split_actors(policies, seeing, acting, seed)
        for policy in (self.policies or {}).values():
            check_interface(policy, "MultiAgentEnvRunner")
        self._copies = EnvCopies(env, num_envs, vectorization, restart_failed, env_timeout_s)
        self._copies.seeds = [None if seed is None else seed + i for i in range(num_envs)]
        forget = close_when_dropped(self, self.envs) if makes_envs(env) else None
        self._use = EnvUse(self.envs, forget)
        if not (agent_to_module_mapping_fn is None or callable(agent_to_module_mapping_fn)):
            raise WrongType(f"agent_to_module_mapping_fn={agent_to_module_mapping_fn!r}: give a function, or None")
        checks = checked_flag("check_pipeline", check_pipeline)
        self._pipelines = RunnerPipelines(self.policies, seeing, acting, self.envs, seed, checks)
        self.stats = MultiAgentCollectStats()
        self.episodes: list[MultiAgentEpisode] = []  # ongoing episodes
        missing = checked_choice("missing_final_observation", missing_final_observation, ("raise", "repeat"))
        self._new_episodes = NewEpisodes(agent_to_module_mapping_fn, missing, np.random.default_rng(seed))
        self._chunks = SampledChunks(num_envs, checked_lookback(len_lookback_buffer, "env steps"))
        self.reward_dtype = None if reward_dtype is None else checked_number_dtype("reward_dtype", reward_dtype)
        self.returns_interrupted = checked_flag("returns_interrupted", returns_interrupted)
        self._call = MultiAgentCall(False)

    @property
    def envs(self) -> list[MultiAgentEnv]:
        """Copies of the environment."""
        return self._copies.envs

    @property
    def num_envs(self) -> int:
        """Number of copies of the environment."""
        return len(self._copies.envs)

    @property
    def env_to_module(self) -> MultiAgentEnvToModule:
        """Pipelines from observations to batches, by module."""
        return self._pipelines.env_to_module

    @property
    def module_to_env(self) -> MultiAgentModuleToEnv:
        """Pipelines from the policies' outputs to actions, by module."""
        return self._pipelines.module_to_env

    @property
    def agent_to_module_mapping_fn(self) -> Callable[[Any, Any], Any] | None:
        """Function `(agent_id, episode) -> module_id` of episodes that start from now on."""
        return self._new_episodes.mapping_fn

    @agent_to_module_mapping_fn.setter
    def agent_to_module_mapping_fn(self, mapping_fn: Callable[[Any, Any], Any] | None) -> None:
        self._new_episodes.mapping_fn = mapping_fn

    # --- sampling ------------------------------------------------------------------------------------------------

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool = True,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[MultiAgentEpisode]:
        """Sample multi-agent episodes: at least `num_timesteps` env steps, or exactly `num_episodes` whole episodes.

        Args:
            num_timesteps: minimum number of env steps, summed over all copies. Episodes that are ongoing at the end are
                returned as cut chunks, and continue in the next call with their pending actions.
            num_episodes: exact number of whole episodes. Each copy contributes its first ones, so that short episodes
                are not favoured. All copies are reset before the call, and before the next one.
            explore: passed to the policies and pipelines. False: statistics of observations do not change, unless the
                runner has `update_stats="always"`.
            random_actions: sample actions from the action spaces, legal ones if there is an "action_mask".
            force_reset: reset all copies first.

        Raises:
            InvalidArgument: both counts or none are given, a count is below 1, or there are no policies and actions are
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
        if self.policies is None and not random_actions:
            raise InvalidArgument("this runner has no policies; give policies=, or pass random_actions=True")
        try:
            use.begin()
            with use.interrupts as interrupts:
                chunks = self._sample(num_timesteps, num_episodes, explore, random_actions, force_reset)
            if interrupts.pending:
                self._chunks.interrupted += chunks
                interrupts.raise_pending()
            return chunks
        finally:
            use.end()

    def _sample(
        self,
        num_timesteps: int | None,
        num_episodes: int | None,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
    ) -> list[MultiAgentEpisode]:
        """Sample for `sample`, count the steps, and call the hooks. If this fails, `take` returns the steps."""
        began, sampled = perf_counter(), self._chunks
        updates = self._updates_if(explore)
        if not (updates or random_actions):
            self._pipelines.check_statistics()  # before any change; below, also of modules that a reset makes known
        self._call = MultiAgentCall(updates)
        self._store_interrupted()
        if self._use.needs_reset or force_reset or num_episodes is not None:
            self._reset_all()
        act = self._random_actions if random_actions else self._policy_actions
        if updates and not random_actions:
            self._pipelines.stamp()
        elif not random_actions:
            self._pipelines.check_statistics()
        self._call.resuming = {
            (i, agent_id)
            for i, episode in enumerate(self.episodes)
            for agent_id, line in episode.agents.timelines.items()
            if not len(line.episode)
        }
        try:
            with torch.inference_mode():
                self._run(num_timesteps, num_episodes, act, explore)
            if self._use.interrupts.pending:  # these steps count when they are returned
                chunks, sampled.taken = list(map(self._finalize, sampled.taken)), []
                return chunks
            left = sampled.interrupted if self.returns_interrupted and num_timesteps is not None else []
            chunks = [*left, *map(self._finalize, sampled.taken)]
            self.stats = stats_of(chunks, sampled.counters, perf_counter() - began)
            self._num_steps += self.stats.num_env_steps
            self.num_episodes += self.stats.num_episodes
            chunks = self._hooks.call_on_sample_end(self, chunks)
            later = sampled.interrupted[len(left) :]
        except BaseException:
            self._use.needs_reset = sampled.has_failed = True
            raise
        sampled.taken, sampled.interrupted = [], later
        return chunks

    def _run(
        self, num_timesteps: int | None, num_episodes: int | None, act: Callable[[bool], Answers], explore: bool
    ) -> None:
        """Step the environment copies until there are enough steps or episodes, and collect the episode chunks.

        The chunks are added to `_chunks`. `act` computes the actions of all copies. After Ctrl-C the method stops
        early.
        """
        num_envs = len(self.envs)
        if num_timesteps is not None:
            num_steps = 0
            while num_steps < num_timesteps and not self._use.interrupts.pending:
                num_steps += self._step_all(range(num_envs), *act(explore))
            self._cut_all()
            return
        missing = quotas(num_episodes or 0, num_envs)[0].tolist()
        while going := [i for i in range(num_envs) if missing[i] > 0]:
            self._step_all(going, *act(explore), missing=missing)
            if self._use.interrupts.pending:
                self._cut_all()
                break
        self._use.needs_reset = True

    def _finalize(self, chunk: MultiAgentEpisode) -> MultiAgentEpisode:
        """Convert the lists of an episode chunk to arrays, record policy versions,
        cast the rewards, and return the chunk.
        """
        write_versions(chunk, self._policy_version)
        self._pipelines.write_acting_pipelines(chunk)
        chunk.to_numpy()
        if (dtype := self.reward_dtype) is not None:
            for agent_episode in chunk.agent_episodes.values():
                rewards = agent_episode.rewards.map_arrays(lambda path, array: array.astype(dtype, copy=False))
                agent_episode.tracks = agent_episode.tracks.replaced(rewards)
        return chunk

    @property
    def policy_version(self) -> Any:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: Versions) -> None:
        versions = checked_versions(version)
        for episode in self.episodes:
            switch_versions(episode, self._policy_version, versions)
        self._policy_version = versions

    def take(self) -> list[MultiAgentEpisode]:
        """Return the episode chunks that were sampled in failed or interrupted calls of `sample`.
        Each chunk is returned once.

        It also works if the runner is closed or its environments died. A step that failed is left out. A chunk whose
        items do not fit together, which can be the reason of the failure, is returned as it grew.

        Raises:
            EpisodeStateError: the runner is sampling (a hook called this method).
        """
        self._use.check_not_sampling("take")
        self._store_interrupted()
        chunks = self._chunks.interrupted
        self._chunks.interrupted = []
        return chunks

    def _store_interrupted(self) -> None:
        """Move the chunks of a failed call to `_chunks.interrupted`, without steps that were only partly recorded."""
        sampled = self._chunks
        if not sampled.has_failed:
            return
        for i, env_t in sampled.in_step:
            self.episodes[i] = self.episodes[i][: env_t - self.episodes[i].env_t_started]
        taken = sampled.taken
        waiting = [
            episode for episode in self.episodes if len(episode) and not any(episode is chunk for chunk in taken)
        ]
        left = [*sampled.interrupted, *map(self._finalize_if_possible, [*taken, *waiting])]
        sampled.interrupted, sampled.has_failed, sampled.taken, self.episodes, sampled.in_step = left, False, [], [], []

    def _finalize_if_possible(self, chunk: MultiAgentEpisode) -> MultiAgentEpisode:
        """Finalize an episode chunk. If its items do not fit together in arrays, return it unconverted."""
        try:
            return self._finalize(chunk)
        except EpisodeError:
            return chunk

    def _cut_all(self) -> None:
        """Cut all ongoing episodes: add the chunks to `_chunks`, and continue the episodes in new chunks."""
        for i, episode in enumerate(self.episodes):
            if len(episode):
                successor = episode.cut(self._lookback_of(episode))
                agent_episodes = episode.agent_episodes
                parts = [(agent_episodes[agent_id], later) for agent_id, later in successor.agent_episodes.items()]
                for part, later in ((episode, successor), *parts):  # hooks keep the dict that they write to
                    part.custom_data, later.custom_data = later.custom_data, part.custom_data
                carry_versions(episode, successor)
                self._chunks.add(i, episode)
                self.episodes[i] = successor

    def _lookback_of(self, episode: MultiAgentEpisode) -> int:
        """Return the number of an episode's last env steps that its next chunk must repeat as lookback."""
        return max(self._chunks.lookback, episode.env_steps_back(self.env_to_module.lookback))

    def _reset_all(self) -> None:
        """Reset all environment copies, start new episodes in place of the ongoing ones, and call the hooks."""
        self._use.needs_reset = True  # stays True if one reset fails
        self._chunks.begin()
        self.episodes = [self._reset_copy(i) for i in range(len(self.envs))]
        self._use.needs_reset = False
        for i in range(len(self.envs)):
            self._call_start_hooks(i)

    def _reset_copy(self, i: int) -> MultiAgentEpisode:
        """Reset environment copy `i`, and return the new episode with its first observations."""
        return self._begin_episode(i, *self._copies.reset(i))

    def _begin_episode(self, i: int, observations: dict[Any, Any], infos: dict[Any, Any]) -> MultiAgentEpisode:
        """Return the new episode of environment copy `i`, which was reset."""
        episode = self._new_episodes.make(self.seed is not None)
        rows = [(i, episode, observations)]
        self._pipelines.add_agents(rows)
        episode.add_env_reset(observations=observations, infos=infos)
        self._pipelines.rewrite(rows, self._call.updates)
        return episode

    # --- acting --------------------------------------------------------------------------------------------------

    def _policy_actions(self, explore: bool) -> Answers:
        """Run the policies for all agents that must act,
        and return their actions and other outputs by copy and agent.
        """
        for i, agent_id in self._call.resuming:
            line = self.episodes[i].agents.timelines[agent_id]
            if line.phase == RESTS:  # it acts now
                self._set_initial_state(line.episode)
        policies, context = self.policies, {"explore": explore, "shared_data": self._pipelines.shared_data}
        batch = self.env_to_module(rl_module=policies, episodes=self.episodes, **context)
        outputs = {module_id: policies[module_id](columns, explore=explore) for module_id, columns in batch.items()}  # type: ignore[index]
        result = self.module_to_env(rl_module=policies, batch=outputs, episodes=self.episodes, **context)
        return result[Columns.ACTIONS], result[Columns.ACTIONS_FOR_ENV], result["extra_model_outputs"]

    def _random_actions(self, explore: bool) -> Answers:
        return self._pipelines.random_actions(self.episodes)

    # --- stepping ------------------------------------------------------------------------------------------------

    def _step_all(
        self,
        going: Sequence[int],
        actions: list[ByAgent],
        for_env: list[ByAgent],
        outputs: list[ByAgent],
        *,
        missing: list[int] | None = None,
    ) -> int:
        """Take and record one env step in each of the environment copies with the indices `going`.

        Return the number of steps, which is smaller if copies failed and were replaced. Copies whose episode ended are
        reset, if they contribute another episode.

        Args:
            going: indices of the copies that are stepped.
            actions: actions to record, for each copy a dict by agent id.
            for_env: actions to send to the environments, in the same form.
            outputs: other outputs of the policies, in the same form.
            missing: number of episodes that each copy still has to contribute, updated in place. None: no limit.
        """
        if self._call.resuming:
            self._match_recorded_outputs(actions, outputs)
        for i in going:
            self.envs[i].begin_step(for_env[i])
        results = [(i, self._step_copy(i)) for i in going]
        steps = [(i, step) for i, step in results if step is not None]
        failed = [i for i, step in results if step is None]
        rows = [(i, self.episodes[i], step.observations) for i, step in steps]
        self._pipelines.add_agents(rows)
        self._chunks.in_step = [(i, episode.env_t) for i, episode, _ in rows]
        for i, step in steps:
            self._record(self.episodes[i], step, actions[i], outputs[i])
        self._pipelines.rewrite(rows, self._call.updates)
        self._chunks.in_step = []
        for i in failed:
            self._begin_again(i, keeps=missing is None)
        for call in self._hooks.on_step:
            call(self)
        for i, _ in steps:
            if self.episodes[i].is_done:
                self._end(i, self.episodes[i])
                if missing is not None:
                    missing[i] -= 1
                if missing is None or missing[i] > 0:
                    self.episodes[i] = self._reset_copy(i)
                    self._call_start_hooks(i)
        return len(steps)

    def _step_copy(self, i: int) -> EnvStep | None:
        """Return the result of the env step of copy `i`, or None if the copy has failed and was replaced.

        Errors get a note that names the copy.
        """
        try:
            try:
                return self.envs[i].finish_step()
            except Exception as error:
                if not self._copies.restart_failed:
                    raise advised(error) from error.__cause__
                self._copies.restarted[i] = self._copies.replace(i, error)
                return None
        except Exception as error:
            error.add_note(f"environment {i}, env step {self.episodes[i].env_t + 1} of its episode")
            raise

    def _begin_again(self, i: int, *, keeps: bool) -> None:
        """Cut the episode of copy `i`, which failed and was replaced, and begin an episode of the new environment.

        Args:
            i: index of the copy.
            keeps: whether the cut chunk is one of those that `sample` returns.
        """
        episode = self.episodes[i]
        if keeps and len(episode):
            self._chunks.taken.append(episode)
        self._chunks.counters[i].so_far = {}
        self._call.forget_agents(i)
        self.episodes[i] = self._begin_episode(i, *self._copies.restarted.pop(i))
        self._call_start_hooks(i)

    def _match_recorded_outputs(self, actions: list[ByAgent], outputs: list[ByAgent]) -> None:
        """Change the extra outputs recorded for agents so that they have the keys of the agents' new outputs.

        An agent resumes if it acts for the first time in a chunk. Its policy may have been replaced by one with other
        outputs. Outputs that the policy no longer returns are dropped. In earlier steps new outputs are zeros, and
        new recurrent states are the initial state, with which the policy and learners start.
        """
        resuming = self._call.resuming
        for i, agent_id in [place for place in resuming if place[1] in actions[place[0]]]:
            resuming.remove((i, agent_id))
            episode, items = self.episodes[i].agent_episodes[agent_id], outputs[i].get(agent_id) or {}
            known = dict(episode.extra_model_outputs)
            if known.keys() == items.keys():
                continue
            episode.extra_model_outputs = {key: track for key, track in known.items() if key in items and track.total}
            if not episode.actions.total:
                continue
            if Columns.STATE_OUT in items:
                self._set_initial_state(episode)
            missing = {key: item for key, item in items.items() if key not in episode.extra_model_outputs}
            for key, item in nested.map_leaves(lambda leaf: np.zeros_like(np.asarray(leaf)), missing).items():
                episode.set_extra_model_outputs(key=key, new_data=[item] * episode.actions.total)

    def _set_initial_state(self, agent_episode: SingleAgentEpisode) -> None:
        """Record the policy's initial recurrent state for all steps of an agent that has no recorded states."""
        if agent_episode.actions.total and Columns.STATE_OUT not in agent_episode.extra_model_outputs:
            initial = module_of((self.policies or {}).get(agent_episode.module_id)).initial_state()
            if initial:
                state = nested.map_leaves(np.asarray, initial)
                agent_episode.set_extra_model_outputs(
                    key=Columns.STATE_OUT, new_data=[state] * agent_episode.actions.total
                )

    def _record(self, episode: MultiAgentEpisode, step: EnvStep, actions: ByAgent, outputs: ByAgent) -> None:
        """Add an env step to an episode.
        If the environment is over and some agents have no end flag, all are truncated.
        """
        terminateds, truncateds = step.terminateds, step.truncateds
        if step.is_over and not _all_flagged(episode, terminateds, truncateds):
            truncateds = {**truncateds, ALL: True}
        episode.add_env_step(
            step.observations,
            actions,
            step.rewards,
            step.infos,
            terminateds=terminateds,
            truncateds=truncateds,
            extra_model_outputs=outputs,
        )

    def _end(self, i: int, episode: MultiAgentEpisode) -> None:
        self._copies.note_end(i)
        self._chunks.add(i, episode)
        self._call.forget_agents(i)
        for call in self._hooks.on_episode_end:
            call(self, i, episode)

    def _call_start_hooks(self, i: int) -> None:
        for call in self._hooks.on_episode_start:
            call(self, i, self.episodes[i])

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> MultiAgentEnvRunner:
        env, options = self._copies.like()
        runner = MultiAgentEnvRunner(
            env,
            self.policies,
            num_envs=self.num_envs if num_envs is None else num_envs,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
            env_to_module=copy_pipeline(self.env_to_module),
            module_to_env=copy_pipeline(self.module_to_env),
            hooks=hooks,
            seed=seed,
            update_stats=False,
            reward_dtype=self.reward_dtype,
            check_pipeline=self._pipelines.checks,
            missing_final_observation=self._new_episodes.missing_final_observation,
            **options,
        )
        check_distinct(runner._copies.unadapted(), self._copies.unadapted())
        return runner

    @property
    def actors(self) -> dict[Any, Actor]:
        """Policies with their pipelines, as actors by module id.
        Modules whose pipelines do not exist yet are left out.
        """
        readers, writers, policies = self.env_to_module.modules, self.module_to_env.modules, self.policies or {}
        known = [name for name in policies if name in readers and name in writers]
        return {name: Actor.of_parts(policies[name], readers[name], writers[name]) for name in known}

    def set_module(self, module_id: ModuleID, policy: Policy | Actor) -> None:
        """Add a module with its policy or actor, or replace the policy or actor of an existing module.

        Agents can be mapped to a new module in episodes that start afterwards. If agents have acted with an earlier
        policy of the module, the next `sample` starts new episodes. A policy uses the pipelines that the runner has for
        the module, or default ones. An actor brings its own, which replace them.

        Raises:
            InvalidArgument: the runner has no policies.
            EpisodeStateError: the runner is sampling (a hook called this method).
            WrongType: the policy cannot be called as `policy(batch, explore=...)`.
        """
        self._use.check_not_sampling("set_module")
        if not isinstance(self.policies, MutableMapping):
            raise InvalidArgument("set_module: this runner has no dict of policies; create it with {module_id: policy}")
        check_interface(policy.policy if isinstance(policy, Actor) else policy, "MultiAgentEnvRunner")
        self._use.needs_reset |= self._pipelines.set_module(module_id, policy)

    def remove_module(self, module_id: ModuleID) -> None:
        """Remove a module with its policy and pipelines. Other modules do not change.

        If agents have acted with it, the next `sample` starts new episodes. No agent may be mapped to it in these.

        Raises:
            EpisodeStateError: the runner is sampling (a hook called this method).
        """
        self._use.check_not_sampling("remove_module")
        self._use.needs_reset |= self._pipelines.remove_module(module_id)

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def replacements(self) -> Sequence[EnvReplacement]:
        """All failed copies that were replaced (`restart_failed=True`), with the reasons."""
        return self._copies.replacements

    @property
    def num_env_steps(self) -> int:
        """Number of env steps in all calls of `sample` so far."""
        return self._num_steps

    def get_state(self) -> dict[str, Any]:
        """Return the runner's state for a checkpoint: pipeline statistics, step and episode counts, and the seed.

        Environments that were never reset are reset first, because that creates the pipelines.
        """
        self._create_pipelines()
        state = super().get_state()
        for name, later in self._pipelines.later_states.items():
            states = state[name] | later
            state[name] = {
                module_id: module_state
                for module_id, module_state in states.items()
                if self._pipelines.is_in_use(module_id)
            }
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned.
        The next `sample` starts new episodes, with seeds derived from the state.

        The state of a module whose pipelines do not exist yet is restored when its first agent appears.

        Raises:
            StateMismatch: the state belongs to another kind of object.
        """
        self._create_pipelines()
        later = dict(self._pipelines.later_states)
        try:
            with reading_state(type(self)):
                known = self._pipelines.restorable_states(state)
            super().set_state(state | known)
        except BaseException:
            self._pipelines.later_states = later
            raise

    def _create_pipelines(self) -> None:
        """Create the pipelines of the modules of the first agents, if the environments were never reset.

        The next `sample` resets the environments with the same seeds, and filters learn nothing here.
        """
        if not self.episodes and not self._use.is_closed:
            before = self._new_episodes.generator.bit_generator.state
            self._use.turns.begin()
            try:
                for i in range(self.num_envs):
                    observations, _ = self._copies.reset(i, keep_seed=True)
                    episode = self._new_episodes.make(self.seed is not None)
                    self._pipelines.add_agents([(i, episode, observations)])
            finally:
                self._use.turns.end()
            self._new_episodes.generator.bit_generator.state = before

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        self._new_episodes.generator = np.random.default_rng(sequence)
        *seeds, spaces_seed = (int(seed) for seed in sequence.generate_state(self.num_envs + 1) >> 1)
        self._copies.seeds = list(seeds)
        self._pipelines.reseed_spaces(spaces_seed)

    def _close(self) -> None:
        errors = self._copies.close()
        self._use.forget()
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        modules = "random actions" if self.policies is None else ", ".join(map(str, self.policies))
        return f"MultiAgentEnvRunner({len(self.envs)} environments, {modules}, {self.num_env_steps} env steps sampled)"


def _all_flagged(episode: MultiAgentEpisode, terminateds: Mapping[Any, bool], truncateds: Mapping[Any, bool]) -> bool:
    """Return True if each agent has ended earlier or has an end flag in this step."""
    return all(
        agent_episode.is_done or terminateds.get(agent_id) or truncateds.get(agent_id)
        for agent_id, agent_episode in episode.agent_episodes.items()
    )

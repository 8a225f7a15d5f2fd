"""`MultiAgentEnvRunner`: an environment of several agents and their policies in, `MultiAgentEpisode`s out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import DTypeLike

from connectors.actor import Actor
from connectors.multi_agent_pipelines import MultiAgentEnvToModule, MultiAgentModuleToEnv
from connectors.policy import check_interface, module_of
from episode_runners.dropped_envs import close_when_dropped
from episode_runners.multi_agent_envs import EnvStep, as_multi_agent_env, makes_envs
from episode_runners.multi_agent_pipelines import RunnerPipelines, split_actors
from episode_runners.multi_agent_stats import MultiAgentCollectStats, ReturnCounter, stats_of
from episode_runners.multi_agent_versions import carry_versions, checked_versions, switch_versions, write_versions
from episode_runners.runner import EnvRunner, check_counts, copied
from episodes.columns import DEFAULT_MODULE_ID, Columns
from episodes.errors import EpisodeError, InvalidArgument, WrongType
from episodes.facts.facts import random_ids
from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.episode import ALL
from episodes.multi_agent.timeline import RESTS
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.validation import checked_choice, checked_count, checked_flag, checked_number_dtype

__all__ = ["MultiAgentEnvRunner"]

ByAgent = dict[Any, Any]
Answers = tuple[list[ByAgent], list[ByAgent], list[ByAgent]]  # actions, actions for the environments, other outputs


class MultiAgentEnvRunner(EnvRunner):
    """Samples episodes of several agents in one or several copies of an environment.

    Args:
        env: a PettingZoo environment (parallel or AEC), an environment whose `reset` and `step` take and give dicts by
            agent, or a callable that makes one (needed for several copies).
        policies: `{module_id: policy or actor}`, each called as in `SingleAgentEnvRunner`; or one policy for all
            agents. None: only random actions.
        num_envs: how many copies; 1 by default. Agents of one module are batched together over all of them.
        agent_to_module_mapping_fn: `(agent_id, episode) -> module_id`, called once for each agent and episode. The
            attribute of this name may be changed; episodes that begin afterwards use the new function.
        env_to_module, module_to_env: pipelines; those of modules they do not have are made with the defaults.
        hooks: objects with methods of `Hook`.
        seed: of the environments (copy i gets `seed + i`), of random actions, of sampling actions by default, and of
            the episodes' ids.
        len_lookback_buffer: how many env steps from before its first one a continued chunk brings along, at least.
        update_stats, reward_dtype, check_pipeline, returns_interrupted: as in `SingleAgentEnvRunner`.
        missing_final_observation: see `MultiAgentEpisode`.

    Only agents that must act are asked. What a policy puts out beside its actions is recorded. No gradients are kept.
    """

    steps_counted = "num_env_steps"

    def __init__(
        self,
        env: Any,
        policies: Mapping[Any, Any] | Callable[..., Any] | None = None,
        *,
        num_envs: int | None = None,
        agent_to_module_mapping_fn: Callable[[Any, Any], Any] | None = None,
        env_to_module: MultiAgentEnvToModule | None = None,
        module_to_env: MultiAgentModuleToEnv | None = None,
        hooks: Sequence[Any] = (),
        seed: int | None = None,
        len_lookback_buffer: int = 0,
        update_stats: bool = True,
        reward_dtype: DTypeLike | None = np.float32,
        check_pipeline: bool = True,
        returns_interrupted: bool = False,
        missing_final_observation: str = "raise",
    ) -> None:
        super().__init__(hooks, seed, update_stats)
        seed = self.seed
        num_envs = 1 if num_envs is None else checked_count("num_envs", num_envs)
        if num_envs > 1 and not makes_envs(env):
            raise InvalidArgument(f"num_envs={num_envs}: give a callable that makes an environment for several copies")
        self.policies = policies if isinstance(policies, Mapping) or policies is None else {DEFAULT_MODULE_ID: policies}
        self.policies, env_to_module, module_to_env = split_actors(self.policies, env_to_module, module_to_env, seed)
        for policy in (self.policies or {}).values():
            check_interface(policy, "MultiAgentEnvRunner")
        self._made_of = env
        self.num_envs = num_envs
        self.envs = [as_multi_agent_env(env) for _ in range(num_envs)]
        self._open = self.envs
        if makes_envs(env):
            self._keep_env = close_when_dropped(self, [cast(Any, env).env for env in self.envs])
        if not (agent_to_module_mapping_fn is None or callable(agent_to_module_mapping_fn)):
            raise WrongType(f"agent_to_module_mapping_fn={agent_to_module_mapping_fn!r}: give a function, or None")
        self._pipelines = RunnerPipelines(
            self.policies, env_to_module, module_to_env, self.envs, seed, checked_flag("check_pipeline", check_pipeline)
        )
        self.env_to_module, self.module_to_env = self._pipelines.env_to_module, self._pipelines.module_to_env
        self.stats = MultiAgentCollectStats()  # of the last call of sample
        self.episodes: list[MultiAgentEpisode] = []  # the ongoing ones
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._missing = checked_choice("missing_final_observation", missing_final_observation, ("raise", "repeat"))
        self._lookback = checked_lookback(len_lookback_buffer, "env steps")
        self.reward_dtype = None if reward_dtype is None else checked_number_dtype("reward_dtype", reward_dtype)
        self.returns_interrupted = checked_flag("returns_interrupted", returns_interrupted)
        self._interrupted: list[MultiAgentEpisode] = []  # what calls that failed have left
        self._failed = False  # the last call did, and what it left is still in its place
        self._in_step: list[tuple[int, int]] = []  # (copy, env step before) of steps that are being recorded
        self._tallies = [ReturnCounter() for _ in self.envs]
        self._taken: list[MultiAgentEpisode] = []  # ended since the last call began
        self._resuming: set[tuple[int, Any]] = set()  # (copy, agent) that began this call without a step
        self._shared_data: dict[str, Any] = {}
        self._id_generator = np.random.default_rng(seed)
        self._seeds: list[int | None] = [None if seed is None else seed + i for i in range(num_envs)]

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
        """Finalized episodes and chunks, sampled until there are enough env steps, or so many whole episodes.

        Args:
            num_timesteps: at least so many env steps of all copies together. Episodes that are going on at the end come
                as cut chunks and go on in the next call, with what is pending.
            num_episodes: exactly so many whole episodes. Every copy contributes in turn, how long its episodes may be;
                all are reset before and, for the next call, after.
            explore: passed to the policies and pipelines; without, statistics of observations stay as they are.
            random_actions: sampled from the action spaces (legal ones where there is an "action_mask").
            force_reset: reset all copies first.

        Raises:
            InvalidArgument: neither count, both, or one below 1.
            EpisodeStateError: the runner is closed, or samples already (a hook called this).
        """
        check_counts(num_timesteps, num_episodes)
        self._check_may_sample()
        try:
            self._is_sampling = True
            if self.policies is None and not random_actions:
                raise InvalidArgument("this runner has no policies; give them, or sample with random_actions=True")
            with self._interrupts as interrupts:
                chunks = self._sample(num_timesteps, num_episodes, explore, random_actions, force_reset)
            if interrupts.pending:
                self._interrupted += chunks
                interrupts.raise_pending()
            return chunks
        finally:
            self._is_sampling = False

    def _sample(
        self,
        num_timesteps: int | None,
        num_episodes: int | None,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
    ) -> list[MultiAgentEpisode]:
        began = perf_counter()
        self._updates = self.update_stats and explore
        self._put_interrupted_aside()
        if self._needs_reset or force_reset or num_episodes is not None:
            self._reset_all()
        act = self._random_actions if random_actions else self._policy_actions
        if self._updates and not random_actions:
            self._pipelines.stamp()
        elif not random_actions:
            self._pipelines.check_statistics()
        self._resuming = {
            (i, agent_id)
            for i, episode in enumerate(self.episodes)
            for agent_id, line in episode.agents.timelines.items()
            if not len(line.episode)
        }
        try:
            with torch.inference_mode():
                self._run(num_timesteps, num_episodes, act, explore)
            if self._interrupts.pending:  # these steps count when they are returned
                chunks, self._taken = list(map(self._finished, self._taken)), []
                return chunks
            left = self._interrupted if self.returns_interrupted and num_timesteps is not None else []
            chunks = [*left, *map(self._finished, self._taken)]
            self.stats = stats_of(chunks, self._tallies, perf_counter() - began)
            self._num_steps += self.stats.num_env_steps
            self.num_episodes += self.stats.num_episodes
            chunks = self._tell_end_of_sample(chunks)
            later = self._interrupted[len(left) :]
        except BaseException:
            self._needs_reset = self._failed = True
            raise
        self._taken, self._interrupted = [], later
        return chunks

    def _run(
        self, num_timesteps: int | None, num_episodes: int | None, act: Callable[[bool], Answers], explore: bool
    ) -> None:
        num_envs = len(self.envs)
        if num_timesteps is not None:
            for _ in range(-(-num_timesteps // num_envs)):
                self._step_all(range(num_envs), *act(explore))
                if self._interrupts.pending:
                    break
            self._cut_all()
            return
        missing = [(num_episodes or 0) // num_envs + (i < (num_episodes or 0) % num_envs) for i in range(num_envs)]
        while going := [i for i in range(num_envs) if missing[i] > 0]:
            self._step_all(going, *act(explore), missing=missing)
            if self._interrupts.pending:
                self._cut_all()
                break
        self._needs_reset = True

    def _finished(self, chunk: MultiAgentEpisode) -> MultiAgentEpisode:
        """The chunk, finalized, with the policies' versions and rewards of the runner's dtype."""
        write_versions(chunk, self._policy_version)
        chunk.to_numpy()
        if (dtype := self.reward_dtype) is not None:
            for own in chunk.agent_episodes.values():
                rewards = own.rewards.map_arrays(lambda path, array: array.astype(dtype, copy=False))
                own.tracks = own.tracks.replaced(rewards)
        return chunk

    @property
    def policy_version(self) -> Any:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: Any) -> None:
        told = checked_versions(version)
        for episode in self.episodes:
            switch_versions(episode, self._policy_version, told)
        self._policy_version = told

    def take(self) -> list[MultiAgentEpisode]:
        """What calls of `sample` recorded that failed or were interrupted, and that nobody has got; finalized chunks.

        It can also be taken of a runner that is closed or whose environments died. A step in the middle of which it
        failed is left out. A chunk whose items do not fit together, which may be why the call failed, comes as it grew.

        Raises:
            EpisodeStateError: the runner samples (a hook called this).
        """
        self._check_not_sampling("take")
        self._put_interrupted_aside()
        taken = self._interrupted
        self._interrupted = []
        return taken

    def _put_interrupted_aside(self) -> None:
        if not self._failed:
            return
        for i, env_t in self._in_step:
            self.episodes[i] = self.episodes[i][: env_t - self.episodes[i].env_t_started]
        waiting = [own for own in self.episodes if len(own) and not any(own is taken for taken in self._taken)]
        left = [*self._interrupted, *map(self._left, [*self._taken, *waiting])]
        self._interrupted = left
        self._failed, self._taken, self.episodes, self._in_step = False, [], [], []

    def _left(self, chunk: MultiAgentEpisode) -> MultiAgentEpisode:
        """What a failed call left of an episode, finalized where its items fit together."""
        try:
            return self._finished(chunk)
        except EpisodeError:
            return chunk

    def _cut_all(self) -> None:
        """Take the ongoing chunks that have steps; their successors go on."""
        for i, episode in enumerate(self.episodes):
            if len(episode):
                successor = episode.cut(self._lookback_of(episode))
                own = episode.agent_episodes
                parts = [(own[agent_id], later) for agent_id, later in successor.agent_episodes.items()]
                for part, later in ((episode, successor), *parts):  # hooks go on with what they have
                    part.custom_data, later.custom_data = later.custom_data, part.custom_data
                carry_versions(episode, successor)
                self._tallies[i].add(episode)
                self._taken.append(episode)
                self.episodes[i] = successor

    def _lookback_of(self, episode: MultiAgentEpisode) -> int:
        """How many env steps back reach what the pipelines need of each agent's own steps."""
        return max(self._lookback, episode.env_steps_back(self.env_to_module.lookback))

    def _reset_all(self) -> None:
        self._needs_reset = True  # until all are: some may be when one fails
        self._taken = []
        self._tallies = [ReturnCounter() for _ in self.envs]
        self.episodes = [self._fresh(i) for i in range(len(self.envs))]
        self._needs_reset = False
        for i in range(len(self.envs)):
            self._tell_start(i)

    def _fresh(self, i: int) -> MultiAgentEpisode:
        """A new episode of copy i, reset."""
        seed, self._seeds[i] = self._seeds[i], None
        observations, infos = self.envs[i].reset(seed=seed)
        episode = MultiAgentEpisode(
            id_=None if self.seed is None else random_ids(1, self._id_generator).item(),
            observation_space={},  # of the agents that come
            action_space={},
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
            missing_final_observation=self._missing,
        )
        rows = [(i, episode, observations)]
        self._pipelines.welcome(rows)
        episode.add_env_reset(observations=observations, infos=infos)
        self._pipelines.rewrite(rows, self._updates)
        return episode

    # --- acting --------------------------------------------------------------------------------------------------

    def _policy_actions(self, explore: bool) -> Answers:
        for i, agent_id in self._resuming:
            line = self.episodes[i].agents.timelines[agent_id]
            if line.phase == RESTS:  # it acts now, and what it did before is there
                self._begin_state(line.episode)
        policies, context = self.policies, {"explore": explore, "shared_data": self._shared_data}
        batch = self.env_to_module(rl_module=policies, episodes=self.episodes, **context)
        outputs = {module_id: policies[module_id](columns, explore=explore) for module_id, columns in batch.items()}  # type: ignore[index]
        told = self.module_to_env(rl_module=policies, batch=outputs, episodes=self.episodes, **context)
        return told[Columns.ACTIONS], told[Columns.ACTIONS_FOR_ENV], told["extra_model_outputs"]

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
    ) -> None:
        """One env step of each copy that goes on, recorded."""
        if self._resuming:
            self._fit_outputs(actions, outputs)
        steps = [(i, self._stepped(i, for_env[i])) for i in going]
        rows = [(i, self.episodes[i], step.observations) for i, step in steps]
        self._pipelines.welcome(rows)
        self._in_step = [(i, episode.env_t) for i, episode, _ in rows]
        for i, step in steps:
            self._record(self.episodes[i], step, actions[i], outputs[i])
        self._pipelines.rewrite(rows, self._updates)
        self._in_step = []
        for call in self._on_step:
            call(self)
        for i in going:
            if self.episodes[i].is_done:
                self._end(i, self.episodes[i])
                if missing is not None:
                    missing[i] -= 1
                if missing is None or missing[i] > 0:
                    self.episodes[i] = self._fresh(i)
                    self._tell_start(i)

    def _stepped(self, i: int, actions: ByAgent) -> EnvStep:
        """One env step of copy i; its errors tell where they came from."""
        try:
            return self.envs[i].step(actions)
        except Exception as error:
            error.add_note(f"environment {i}, env step {self.episodes[i].env_t + 1} of its episode")
            raise

    def _fit_outputs(self, actions: list[ByAgent], outputs: list[ByAgent]) -> None:
        """Give the lookback of each agent that acts for the first time in this chunk, and its step that waited, the
        keys of the outputs that come now; random actions have none.

        Items of steps that had no such output are zeros; of a recurrent state, the initial one: the policy begins with
        it, and so does a learner.
        """
        for i, agent_id in [place for place in self._resuming if place[1] in actions[place[0]]]:
            self._resuming.remove((i, agent_id))
            own, given = self.episodes[i].agent_episodes[agent_id], outputs[i].get(agent_id) or {}
            known = dict(own.extra_model_outputs)
            if known.keys() == given.keys():
                continue
            own.extra_model_outputs = {key: track for key, track in known.items() if key in given and track.total}
            if not own.actions.total:
                continue
            if Columns.STATE_OUT in given:
                self._begin_state(own)
            missing = {key: item for key, item in given.items() if key not in own.extra_model_outputs}
            for key, item in nested.map_leaves(lambda leaf: np.zeros_like(np.asarray(leaf)), missing).items():
                own.set_extra_model_outputs(key=key, new_data=[item] * own.actions.total)

    def _begin_state(self, own: SingleAgentEpisode) -> None:
        """Let an agent whose steps so far have no state begin with its policy's initial one, if that has a memory."""
        if own.actions.total and Columns.STATE_OUT not in own.extra_model_outputs:
            initial = module_of((self.policies or {}).get(own.module_id)).initial_state()
            if initial:
                state = nested.map_leaves(np.asarray, initial)
                own.set_extra_model_outputs(key=Columns.STATE_OUT, new_data=[state] * own.actions.total)

    def _record(self, episode: MultiAgentEpisode, step: EnvStep, actions: ByAgent, outputs: ByAgent) -> None:
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
        self._tallies[i].add(episode)
        self._taken.append(episode)
        self._resuming = {place for place in self._resuming if place[0] != i}
        for call in self._on_episode_end:
            call(self, i, episode)

    def _tell_start(self, i: int) -> None:
        for call in self._on_episode_start:
            call(self, i, self.episodes[i])

    def for_evaluation(
        self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()
    ) -> MultiAgentEnvRunner:
        """See `EnvRunner.for_evaluation`."""
        if not makes_envs(self._made_of):
            raise InvalidArgument(
                f"{self._made_of} is one environment: give the runner a callable that makes it, or call "
                "evaluate(env, runner.actors, ...) with one for evaluation"
            )
        return MultiAgentEnvRunner(
            self._made_of,
            self.policies,
            num_envs=self.num_envs if num_envs is None else num_envs,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
            env_to_module=copied(self.env_to_module),
            module_to_env=copied(self.module_to_env),
            hooks=hooks,
            seed=seed,
            update_stats=False,
            reward_dtype=self.reward_dtype,
            check_pipeline=self._pipelines.checks,
            missing_final_observation=self._missing,
        )

    @property
    def actors(self) -> dict[Any, Actor]:
        """An actor for each module that has a policy and has acted, with the runner's pipelines and statistics."""
        pipelines = self.env_to_module.modules, self.module_to_env.modules
        known = [module_id for module_id in self.policies or {} if all(module_id in modules for modules in pipelines)]
        policies = self.policies or {}
        return {one: Actor.of_parts(policies[one], *(modules[one] for modules in pipelines)) for one in known}

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def num_env_steps(self) -> int:
        """Of all calls of `sample`."""
        return self._num_steps

    def get_state(self) -> dict[str, Any]:
        """Return the states of the pipelines, the counts and the seed. A runner that never sampled is reset first."""
        self._create_pipelines()
        state = super().get_state()
        for name, later in self._pipelines.later_states.items():
            states = state[name] | later
            state[name] = {one: own for one, own in states.items() if self._pipelines.is_in_use(one)}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`. The next `sample` begins new episodes, seeded by the seed and the steps.

        The state of a module's pipelines that have not been made yet is restored when the module's first agent comes.
        """
        self._create_pipelines()
        super().set_state(state | self._pipelines.states_for_now(state))

    def _create_pipelines(self) -> None:
        """Reset the environments if that never happened, because pipelines of modules are created with their agents."""
        if not self.episodes and not self._closed:
            self._reset_all()

    def _reseed(self, sequence: np.random.SeedSequence) -> None:
        self._id_generator = np.random.default_rng(sequence)
        *seeds, spaces_seed = (int(seed) for seed in sequence.generate_state(len(self.envs) + 1) >> 1)
        self._seeds = list(seeds)
        self._pipelines.reseed_spaces(spaces_seed)

    def _close(self) -> None:
        errors = []
        while self._open:  # all of them, also where one fails
            try:
                self._open[0].close()
            except Exception as error:
                errors.append(error)
            self._open = self._open[1:]
        self._keep_env()
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        modules = "random actions" if self.policies is None else ", ".join(map(str, self.policies))
        return f"MultiAgentEnvRunner({len(self.envs)} environments, {modules}, {self.num_env_steps} env steps sampled)"


def _all_flagged(episode: MultiAgentEpisode, terminateds: Mapping[Any, bool], truncateds: Mapping[Any, bool]) -> bool:
    """True when every agent that goes on is said to end."""
    return all(
        own.is_done or terminateds.get(agent_id) or truncateds.get(agent_id)
        for agent_id, own in episode.agent_episodes.items()
    )

"""Pipelines of a multi-agent runner by module. They are created when the first agent of a module appears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from connectors.acting import fingerprint_of
from connectors.actor import Actor
from connectors.agent_to_module_mapping import newest_rows
from connectors.env_to_module.pipeline import env_to_module_pipeline
from connectors.fingerprint import check_fingerprint, check_statistics, stamp
from connectors.module_to_env.pipeline import module_to_env_pipeline
from connectors.multi_agent_pipelines import MultiAgentEnvToModule, MultiAgentModuleToEnv
from connectors.policy import module_of
from connectors.rewriting.agent_spaces import AgentSpaces
from episode_runners.multi_agent_envs import MultiAgentEnv
from episode_runners.random_actions import sample_random_action
from episode_runners.seeds import independent_seed
from episodes.columns import Columns
from episodes.data_types import AgentID, ModuleID
from episodes.errors import InvalidArgument, UnknownKey, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.policy_box import env_space_of, to_env_actions, to_policy_actions

if TYPE_CHECKING:
    from connectors.policy import Policy

ByAgent = dict[Any, Any]
Answers = tuple[list[ByAgent], list[ByAgent], list[ByAgent]]  # actions, actions for the environments, other outputs
Row = tuple[int, MultiAgentEpisode, ByAgent]  # index of a copy, its episode, and its agents' observations


def checked_pipelines(name: str, kind: type, pipeline: object) -> Any:
    """Return `pipeline` after a check that its class is `kind`. For `pipeline=None`, return a `kind` without modules.

    Raises:
        WrongType: `pipeline` is an object of another class.
    """
    if pipeline is not None and not isinstance(pipeline, kind):
        raise WrongType(
            f"{name}={pipeline!r}: give a {kind.__name__}, which has a pipeline for each module (multi_agent_{name} "
            "builds one), or None for the default ones"
        )
    return kind({}) if pipeline is None else pipeline


def split_actors(
    policies: Mapping[Any, Any] | None, seeing: MultiAgentEnvToModule, acting: MultiAgentModuleToEnv, seed: int | None
) -> Mapping[Any, Any] | None:
    """Return `policies` with each actor replaced by its policy, and add the actors' pipelines to the given pipelines.
    Without actors, return the same object.

    Raises:
        InvalidArgument: a module has both an actor and a pipeline.
    """
    actors = {module_id: policy for module_id, policy in (policies or {}).items() if isinstance(policy, Actor)}
    if policies is None or not actors:
        return policies
    for module_id in actors:
        if module_id in seeing.modules or module_id in acting.modules:
            raise InvalidArgument(
                f"MultiAgentEnvRunner: module {module_id!r} has an actor and a pipeline; leave the pipeline out"
            )
    for module_id, actor in actors.items():
        actor.module_to_env.seed(seed_of_module(seed, module_id))
        actor.module_to_env.add_log_probs()
        seeing.modules[module_id], acting.modules[module_id] = actor.env_to_module, actor.module_to_env
    return {**policies, **{module_id: actor.policy for module_id, actor in actors.items()}}


def seed_of_module(seed: int | None, module_id: object) -> int | None:
    """Return the seed for sampling a module's actions.

    It depends on the module's id, so that modules sample independently. For `seed=None` it is None.
    """
    return None if seed is None else independent_seed(seed, crc32(repr(module_id).encode()))


class RunnerPipelines:
    """Pipelines of all modules and spaces of all agents,
    which a multi-agent runner uses between environments and policies.

    Args:
        policies: policies by module. None: random actions only, which need no pipelines.
        env_to_module: pipelines from observations to batches, by module.
        module_to_env: pipelines from outputs to actions, by module.
        envs: the copies of the environment.
        seed: seed of random actions and of default pipelines.
        checks: whether policies that were trained in other pipelines are rejected.
    """

    def __init__(
        self,
        policies: Mapping[Any, Any] | None,
        env_to_module: MultiAgentEnvToModule,
        module_to_env: MultiAgentModuleToEnv,
        envs: Sequence[MultiAgentEnv],
        seed: int | None,
        checks: bool,
    ) -> None:
        self.policies, self.envs, self.seed, self.checks = policies, envs, seed, checks
        self._fingerprints: dict[Any, dict[str, Any]] = {}  # by module, for policies that were checked
        self.env_to_module, self.module_to_env = env_to_module, module_to_env
        self._agents = AgentSpaces(self.env_to_module.joint)
        self._num_seeded = 0  # number of seeded action spaces
        self.shared_data: dict[str, Any] = {}  # of all connectors
        # states of pipelines that have not been made yet, by module
        self.later_states: dict[str, dict[Any, Any]] = {"env_to_module": {}, "module_to_env": {}}

    def add_agents(self, rows: Sequence[Row]) -> None:
        """Register new agents: read their spaces from the environments,
        and create the pipelines of modules that have none.

        Args:
            rows: for each environment copy its index, its episode, and the newest observations by agent id.

        Raises:
            UnknownKey: an agent is mapped to a module without a policy.
        """
        for i, episode, observations in rows:
            known = episode.observation_space
            new = [agent_id for agent_id in observations if agent_id not in known]
            if new:
                env, agents = self.envs[i], self._agents
                agents.add_spaces(
                    {agent: env.space("observation_space", agent) for agent in new},
                    {agent: self._action_space(env, agent) for agent in new},
                )
                spaces = agents.rewritten
                for agent_id in new:
                    self._register_agent(episode, agent_id, (spaces[agent_id], agents.actions[agent_id]))

    def _register_agent(self, episode: MultiAgentEpisode, agent_id: object, spaces: tuple[Any, Any]) -> None:
        """Prepare the pipelines of a new agent's module,
        and store in the episode the spaces that are recorded for the agent.
        """
        module_id = episode.module_for(agent_id)
        if self.policies is not None:
            self._create_default_pipelines(module_id, agent_id, spaces)
        seeing = self.env_to_module.modules.get(module_id)
        for pipeline in (seeing, self.module_to_env.modules.get(module_id)):
            if pipeline is not None:
                pipeline.bind(*spaces)
        if self.policies is not None and module_id not in self._fingerprints:
            self._prepare_module(module_id)
        recorded = spaces[0]
        if seeing is not None and (seeing.rewrites or _have_same_shape(recorded, seeing.input_observation_space)):
            recorded = seeing.recorded_observation_space
        acting = self.module_to_env.modules.get(module_id)
        stored = spaces[1] if acting is None else acting.policy_action_space(spaces[1])
        episode.action_space[agent_id], episode.observation_space[agent_id] = stored, recorded

    def set_module(self, module_id: ModuleID, policy: Policy | Actor) -> bool:
        """Set the policy or actor of a module. Return True if agents have acted with the module's previous policy.

        Raises:
            InvalidArgument: an actor's module has a pipeline already.
        """
        has_acted = module_id in self._fingerprints
        if isinstance(policy, Actor):
            self.remove_module(module_id)
        policies = split_actors({module_id: policy}, self.env_to_module, self.module_to_env, self.seed)
        cast(dict[Any, Any], self.policies).update(policies or {})
        self._fingerprints.pop(module_id, None)
        return has_acted

    def remove_module(self, module_id: ModuleID) -> bool:
        """Remove the policy and pipelines of a module. Return True if agents have acted with this policy."""
        cast(dict[Any, Any], self.policies or {}).pop(module_id, None)
        for pipelines in (self.env_to_module, self.module_to_env):
            pipelines.modules.pop(module_id, None)
        return self._fingerprints.pop(module_id, None) is not None

    def is_in_use(self, module_id: ModuleID) -> bool:
        """Return False if a module has acted before but has no policy any more, else True."""
        return module_id in (self.policies or {}) or module_id not in self._fingerprints

    def restorable_states(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a saved state that belongs to existing pipelines.

        The states of other modules are stored until the module's first agent appears.

        A module that was removed, so that it has no policy, keeps the state of its pipelines.
        """
        policies, now = self.policies or {}, {}
        for name in ("env_to_module", "module_to_env"):
            current, states = getattr(self, name).get_state(), dict(state.get(name, {}))
            later = [module_id for module_id in states if module_id not in current and module_id in policies]
            self.later_states[name] = {module_id: states.pop(module_id) for module_id in later}
            is_new = not state.get(name)  # the state of a runner that has not sampled
            unchanged = [
                module_id for module_id in current if module_id not in states and (is_new or module_id not in policies)
            ]
            if name in state:
                now[name] = states | {module_id: current[module_id] for module_id in unchanged}
        return now

    def _prepare_module(self, module_id: ModuleID) -> None:
        """Prepare a module's pipelines for its policy, and check that the policy was trained with the same connectors.

        Raises:
            StateMismatch: the policy was trained in other pipelines.
        """
        policy, seeing = (self.policies or {})[module_id], self.env_to_module[module_id]
        seeing.bind_policy(policy)
        self.module_to_env[module_id].bind_policy(policy)
        acting, joint = self.module_to_env[module_id], self.env_to_module.joint.fingerprint
        fingerprint = self._fingerprints[module_id] = fingerprint_of(seeing, acting, joint)
        if self.checks:
            check_fingerprint(policy, fingerprint)

    def check_statistics(self) -> None:
        """Raise `StateMismatch` if a trained policy would act with a normalization
        filter that has no statistics yet.
        """
        for module_id, policy in (self.policies or {}).items():
            if self.checks and module_id in self._fingerprints:
                check_statistics(policy, self.env_to_module[module_id])

    def write_acting_pipelines(self, chunk: MultiAgentEpisode) -> None:
        """Record in each agent's episode which connectors have processed the observations of the agent's policy."""
        for agent_episode in chunk.agent_episodes.values():
            pipeline = self.env_to_module.modules.get(agent_episode.module_id)
            agent_episode.acting_pipeline = getattr(pipeline, "acting_pipeline", None)

    def stamp(self) -> None:
        """Store on each policy a fingerprint of the pipelines in which it is trained.
        Later checks compare the fingerprint.
        """
        policies = self.policies or {}
        for module_id, fingerprint in self._fingerprints.items():
            if module_id in policies:  # else it was removed
                stamp(policies[module_id], fingerprint)

    def _create_default_pipelines(self, module_id: ModuleID, agent_id: AgentID, spaces: tuple[Any, Any]) -> None:
        """Create default pipelines for a module that has none.
        `spaces` are the observation and action space of its first agent.

        Raises:
            UnknownKey: the module has no policy.
        """
        policies = self.policies or {}
        if module_id not in policies:
            raise UnknownKey(
                f"agent {agent_id!r} is mapped to module {module_id!r}, which has no policy; there are policies for "
                f"{list(policies)}: add a policy, or give an agent_to_module_mapping_fn"
            )
        if isinstance(policies[module_id], Actor):  # added to the runner's policies after the runner was made
            self.set_module(module_id, policies[module_id])
        if module_id not in self.env_to_module.modules:
            device = module_of(policies[module_id]).device
            self.env_to_module.modules[module_id] = env_to_module_pipeline(*spaces, device=device)
        if module_id not in self.module_to_env.modules:
            made = module_to_env_pipeline(*spaces, seed=seed_of_module(self.seed, module_id))
            self.module_to_env.modules[module_id] = made
        for name, later in self.later_states.items():
            if module_id in later:
                getattr(self, name)[module_id].set_state(later.pop(module_id))

    def _action_space(self, env: MultiAgentEnv, agent_id: object) -> Any:
        """Return an agent's action space.
        A space object that is new is seeded first, so that random actions are reproducible.
        """
        space, known = env.space("action_space", agent_id), self._agents.actions.get(agent_id)
        if known is not None and (known is space or known == space):
            return known
        self._num_seeded += 1
        if self.seed is not None:
            space.seed(self.seed + self._num_seeded)
        return space

    def reseed_spaces(self, seed: int) -> None:
        """Set the seed of random actions: seed the action spaces of known agents now,
        and of new agents when they appear.
        """
        self.seed, self._num_seeded = seed, 0
        for space in self._agents.actions.values():
            self._num_seeded += 1
            space.seed(seed + self._num_seeded)

    def rewrite(self, rows: Sequence[Row], update: bool) -> None:
        """Apply the observation preprocessors of each agent's module to the newest observations, in place.

        The episodes have the new step already: an agent's last observation is the new one, and its last action led to
        it.

        Args:
            rows: for each environment copy its index, its episode, and the newest observations by agent id.
            update: whether preprocessors update their statistics.
        """
        if len(self.env_to_module.joint):
            for _, episode, observations in rows:
                self.env_to_module.rewrite_joint(episode, observations, update)
        rewriting = {module_id for module_id, pipeline in self.env_to_module.modules.items() if pipeline.rewrites}
        if not rewriting:
            return
        seats: dict[Any, list[SingleAgentEpisode]] = {}
        for _, episode, observations in rows:
            owners = episode.agent_episodes
            for agent_id in observations:
                module_id = episode.module_for(agent_id)
                if module_id in rewriting:
                    seats.setdefault(module_id, []).append(owners[agent_id])
        for module_id, owners in seats.items():
            stacked = newest_rows(module_id, owners)
            rewritten = self.env_to_module[module_id].rewrite(stacked, owners, update)
            for row, agent_episode in enumerate(owners):
                agent_episode.set_observations(new_data=nested.take(rewritten, row), at_indices=-1)

    def random_actions(self, episodes: Sequence[MultiAgentEpisode]) -> Answers:
        """Sample a random action for each agent that must act. The results have one dict by agent id per environment.

        Returns:
            The actions to be recorded, in the policies' units; the actions to be sent; and extra model outputs.
        """
        actions, for_env, outputs = ([ByAgent() for _ in episodes] for _ in range(3))
        for i, episode in enumerate(episodes):
            for agent_id, agent_episode in episode.episodes_to_act():
                space = episode.action_space[agent_id]
                newest = agent_episode.get_observations(-1), agent_episode.get_infos(-1)
                sampled = sample_random_action(env_space_of(space), *newest)
                actions[i][agent_id] = to_policy_actions(space, sampled)
                pipeline = self.module_to_env.modules.get(episode.module_for(agent_id))
                if pipeline is not None and pipeline.records_env_actions:
                    for_env[i][agent_id], outputs[i][agent_id] = sampled, {Columns.ACTIONS_FOR_ENV: sampled}
                else:  # the environment gets the recorded action, in its units
                    for_env[i][agent_id] = to_env_actions(space, actions[i][agent_id])
        return actions, for_env, outputs


def _have_same_shape(space: object, known: object) -> bool:
    """Return True if two spaces have the same shape. `known=None` matches every space."""
    return known is None or getattr(space, "shape", None) == getattr(known, "shape", None)

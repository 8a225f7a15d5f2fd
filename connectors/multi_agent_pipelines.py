"""Multi-agent pipelines: agents are grouped by the module (policy) that acts for them, and each module has its own
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import gymnasium as gym

from connectors.agent_to_module_mapping import SEATS, AgentRow, AgentToModuleMapping
from connectors.connector import ColumnDict, Connector
from connectors.env_to_module.pipeline import EnvToModulePipeline, env_to_module_pipeline
from connectors.learner.pipeline import LearnerPipeline, learner_pipeline
from connectors.module_to_env.module_to_agent_unmapping import EXTRA, ModuleToAgentUnmapping
from connectors.module_to_env.pipeline import ModuleToEnvPipeline, check_answer, module_to_env_pipeline
from connectors.pipeline import ConnectorPipeline, set_states
from connectors.rewriting.agent_spaces import AgentSpaces
from connectors.rewriting.agents_rewriter import as_joint
from connectors.rewriting.multi_agent_preprocessor import (
    MultiAgentObservationPreprocessor,
    rewrite_newest,
    rewritten_agents,
)
from connectors.rewriting.rewriter import ObservationRewriter
from episodes.columns import Columns
from episodes.data_types import ModuleID
from episodes.errors import InvalidArgument, StateMismatch, UnknownKey, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.validation import checked_mapping, reading_state

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = [
    "MultiAgentEnvToModule",
    "MultiAgentLearner",
    "MultiAgentModuleToEnv",
    "multi_agent_env_to_module",
    "multi_agent_learner",
    "multi_agent_module_to_env",
]

Spaces = Mapping[Any, Any]  # module -> Gymnasium space
Policies: TypeAlias = "Mapping[ModuleID, Policy]"
Joint = Sequence[MultiAgentObservationPreprocessor | ObservationRewriter]
_JOINT = "__joint__"  # the key of their state
P = TypeVar("P", bound=ConnectorPipeline)


class MultiAgentPipeline(Connector):
    """Base class of multi-agent pipelines, which consist of one single-agent pipeline per module (policy).

    Batches are `{module_id: {column: array}}`, and `rl_module` is `{module_id: policy}`. Each module has separate
    spaces, connectors and filters. The `joint` preprocessors run first, on the observations of all agents.

    Raises:
        WrongType: `modules` is not a mapping, or `joint` has a connector that cannot change all agents' observations.
    """

    _repr_html_ = notebook_repr("connectors.notebook_cards", "multi_agent_pipeline")

    def __init__(self, modules: Mapping[Any, ConnectorPipeline], joint: Joint = ()) -> None:
        super().__init__()
        self.modules = checked_mapping("modules", modules, "of a pipeline for each module")
        self.joint = ConnectorPipeline(connectors=as_joint(joint))

    def __getitem__(self, module_id: ModuleID) -> Any:
        """Return the pipeline of the module (policy) with this id.

        Raises:
            UnknownKey: there is no such module.
        """
        try:
            return self.modules[module_id]
        except KeyError:
            raise UnknownKey(
                f"{self.name} has no module {module_id!r}; it has {list(self.modules)}: does the mapping of agents to "
                "modules name another one?"
            ) from None

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: ColumnDict | None = None,
        episodes: Any = (),
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: object = None,
        **kwargs: Any,
    ) -> ColumnDict:
        """Call the pipeline of each module (policy). Return the modules' batches, `{module_id: columns}`, or in
        `MultiAgentModuleToEnv` the actions of all agents.

        Args:
            rl_module: policies by module.
            batch: columns to start from. The dict is not changed.
            episodes: the episodes.
            explore: whether actions are sampled; None while learning.
            shared_data: a dict that all connectors of all modules share.
            metrics: a metrics logger, or None.
        """
        context = {"explore": explore, "shared_data": shared_data, "metrics": metrics, **kwargs}
        return self._run(rl_module, dict(batch or {}), episodes, context)

    def _run(
        self,
        rl_module: Policies | None,
        batch: ColumnDict,
        episodes: Any,
        context: dict[str, Any],
    ) -> ColumnDict:
        """Call the modules' pipelines, and return the output of `__call__`. `context` has the call's other
        arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define the arguments of its modules' pipelines")

    def _call_modules(
        self,
        batches: Mapping[Any, ColumnDict],
        episodes: Mapping[Any, Any],
        rl_module: Policies | None,
        context: dict[str, Any],
        on_rows: bool = False,
    ) -> dict[Any, ColumnDict]:
        """Call each module's pipeline with its batch and episodes, and return their outputs, `{module_id: columns}`.

        With `on_rows`, the batches have complete arrays, and the faster `on_rows` is called unless the call is traced.

        Raises:
            UnknownKey: a module has no policy.
        """
        outputs = {}
        for module_id, module_episodes in episodes.items():
            pipeline = self[module_id]
            call = pipeline.on_rows if on_rows and "trace" not in context else pipeline
            policy, batch = _policy_of(rl_module, module_id), dict(batches.get(module_id, ()))
            outputs[module_id] = call(rl_module=policy, batch=batch, episodes=module_episodes, **context)
        return outputs

    @property
    def lookback(self) -> int:  # type: ignore[override]
        """Largest number of earlier steps that a module's pipeline reads."""
        return max((pipeline.lookback for pipeline in self.modules.values()), default=0)

    @property
    def _parts(self) -> dict[Any, Any]:
        """Pipelines by the key of their state: one per module, and the joint preprocessors if there are any."""
        return {_JOINT: self.joint, **self.modules} if len(self.joint) else self.modules

    @property
    def empty_filters(self) -> list[str]:
        """Names of the connectors that learn statistics, but have not seen any data, of all pipelines."""
        return [name for pipeline in self._parts.values() for name in pipeline.empty_filters]

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[Any, Any]:
        """Return the states of the pipelines by module id, and the state of the joint preprocessors as "__joint__"."""
        return {module_id: pipeline.get_state() for module_id, pipeline in self._parts.items()}

    def set_state(self, state: dict[Any, Any]) -> None:
        """Restore the states of all modules' pipelines that `get_state` returned.

        Raises:
            StateMismatch: the state is malformed, or of other modules. Nothing is changed.
        """
        with reading_state(type(self)):
            state = dict(state.items())
        if state.keys() != self._parts.keys():
            raise StateMismatch(
                f"{self.name}.set_state: the state has the modules {list(state)}, this has {list(self._parts)}"
            )
        set_states(self._parts, state, self.get_state())

    def reset_state(self) -> None:
        """Reset the states of all modules' pipelines, for example learned statistics."""
        for pipeline in self._parts.values():
            pipeline.reset_state()

    def merge_states(self, states: list[dict[Any, Any]]) -> dict[Any, Any]:
        """Return one state that combines the states of several copies of this pipeline, module by module.

        Raises:
            UnknownKey: a state contains a module that this pipeline lacks.
        """
        modules = dict.fromkeys(module_id for state in states for module_id in state)
        return {
            module_id: (self.joint if module_id == _JOINT else self[module_id]).merge_states(
                [state[module_id] for state in states if module_id in state]
            )
            for module_id in modules
        }

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{module_id}: {p!r}' for module_id, p in self.modules.items())})"


class MultiAgentEnvToModule(MultiAgentPipeline):
    """Pipelines that compute one policy input batch per module (policy) from the observations of all agents that must
    act.

    Args:
        modules: an env-to-module pipeline per module.
        joint: preprocessors of the observations of all agents. A runner applies them to each env step before the
            observations are stored. The modules' pipelines have the spaces after them. A rewriter such as
            `MeanStdFilter(multi_agent=True)` or `FlattenObservations(agent_ids=[...])` gets a copy per agent.
    """

    modules: dict[Any, EnvToModulePipeline]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[Any, EnvToModulePipeline], joint: Joint = ()) -> None:
        super().__init__(modules, joint)
        self.mapping = AgentToModuleMapping()

    def rewrite_joint(self, episode: MultiAgentEpisode, observations: Mapping[Any, Any], update: bool = True) -> None:
        """Apply the joint preprocessors to the observations of the newest env step, and store the results in the
        episode. With `update=False`, their statistics do not change.
        """
        rewrite_newest(self.joint.connectors, episode, observations, update)

    def _run(
        self,
        rl_module: Policies | None,
        batch: ColumnDict,
        episodes: Sequence[MultiAgentEpisode],
        context: dict[str, Any],
    ) -> ColumnDict:
        """Return the policy input batch `{module_id: columns}` of each module with agents that must act."""
        if context["shared_data"] is None:
            context["shared_data"] = {}
        is_complete = not batch  # the caller's columns may have rows of some episodes only
        columns = self.mapping(batch=batch, episodes=episodes, shared_data=context["shared_data"])
        seats = context["shared_data"][SEATS]
        return self._call_modules(columns, _episodes_by_module(seats), rl_module, context, on_rows=is_complete)


class MultiAgentModuleToEnv(MultiAgentPipeline):
    """Pipelines that compute each agent's action from the outputs of each module's policy.

    Args:
        modules: a module-to-env pipeline per module.
    """

    modules: dict[Any, ModuleToEnvPipeline]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[Any, ModuleToEnvPipeline]) -> None:
        super().__init__(modules)
        self.unmapping = ModuleToAgentUnmapping()

    def _run(
        self,
        rl_module: Policies | None,
        batch: ColumnDict,
        episodes: Sequence[MultiAgentEpisode],
        context: dict[str, Any],
    ) -> ColumnDict:
        """Return the actions and the other policy outputs of each agent, grouped by episode.

        `context["shared_data"]` must be the dict that the env-to-module pipeline got, because it has the agent of each
        row.

        Raises:
            UnknownKey: `shared_data` has no agents, or there are no actions.
            WrongType: the outputs of a module are not a dict.
            ShapeMismatch: the actions of a module are not in its action space.
        """
        shared_data = context["shared_data"] or {}
        seats = shared_data.get(SEATS, {})
        if batch and SEATS not in shared_data:
            raise UnknownKey(
                f"{self.name}: shared_data does not contain the agents of the rows; pass the same shared_data to "
                "both pipelines"
            )
        for module_id, columns in batch.items():
            check_answer(columns)
            if columns.get(Columns.ACTIONS, columns) is None:
                raise UnknownKey(f"the policy of module {module_id!r} returned 'actions' = None")
        outputs = self._call_modules(batch, _episodes_by_module(seats), rl_module, context, on_rows=True)
        for module_id, columns in outputs.items():
            for_env, num_agents = columns.get(Columns.ACTIONS_FOR_ENV, columns[Columns.ACTIONS]), len(seats[module_id])
            if len(nested.first_leaf(for_env)) == num_agents:  # else the unmapping names all outputs of another length
                self.modules[module_id].check_actions(for_env, num_agents, f"agents of module {module_id!r}")
        actions = self.unmapping(batch=outputs, episodes=episodes, shared_data=shared_data)
        for module_id, module_seats in seats.items():
            if self.modules[module_id].records_env_actions:
                for place, agent_id, _ in module_seats:
                    sent = actions[Columns.ACTIONS_FOR_ENV][place][agent_id]
                    actions[EXTRA][place].setdefault(agent_id, {})[Columns.ACTIONS_FOR_ENV] = sent
        return actions


class MultiAgentLearner(MultiAgentPipeline):
    """Pipelines that compute one train batch per module (policy) from multi-agent episodes, with one row per step of
    its agents.

    Args:
        modules: a learner pipeline per module.
        joint: preprocessors of the observations of all agents, for episodes that were stored without them.
    """

    def __init__(self, modules: Mapping[Any, LearnerPipeline], joint: Joint = ()) -> None:
        super().__init__(modules, joint)
        self.mapping = AgentToModuleMapping()
        self._agents = AgentSpaces(self.joint)

    def _run(
        self,
        rl_module: Policies | None,
        batch: ColumnDict,
        episodes: Any,
        context: dict[str, Any],
    ) -> ColumnDict:
        """Return the train batch `{module_id: columns}` of each module whose agents have steps.

        Args:
            rl_module: policies by module.
            batch: columns to start from.
            episodes: multi-agent episodes, agents' episodes, a pack of them, or `{module_id: agents' episodes}`.
            context: the other arguments of the call.
        """
        if len(self.joint):
            for episode in (each for each in episodes if isinstance(each, MultiAgentEpisode)):
                self._agents.add_spaces(episode.observation_space, episode.action_space)
            episodes = [
                agent_episode
                for episode in episodes
                for agent_episode in rewritten_agents(self.joint.connectors, episode)
                if len(agent_episode)
            ]
        by_module = episodes if isinstance(episodes, Mapping) else self.mapping.episodes_by_module(episodes)
        return self._call_modules(batch, by_module, rl_module, context)


def _episodes_by_module(seats: Mapping[Any, list[AgentRow]]) -> dict[Any, list[SingleAgentEpisode]]:
    """Return the episodes of the agents that must act, grouped by module id."""
    return {module_id: [seat.episode for seat in rows] for module_id, rows in seats.items()}


def _policy_of(policies: Policies | None, module_id: ModuleID) -> Any:
    """Return the policy of a module, or None if `policies=None`.

    Raises:
        UnknownKey: there is no policy of the module.
    """
    if policies is None:
        return None
    try:
        return policies[module_id]
    except KeyError:
        raise UnknownKey(
            f"agents are mapped to module {module_id!r}, for which there is no policy; there are {list(policies)}. If "
            "it was removed, change the mapping of agents to modules and start new episodes"
        ) from None


def multi_agent_env_to_module(
    observation_spaces: Spaces,
    action_spaces: Spaces,
    *,
    policies: Mapping[Any, Any] | None = None,
    joint: Joint = (),
    **options: Any,
) -> MultiAgentEnvToModule:
    """Return the default pipelines from agents' observations to policy input batches, one pipeline per module (policy).

    Args:
        observation_spaces: by module, after the joint preprocessors.
        action_spaces: by module.
        policies: by module; see `env_to_module_pipeline`.
        joint: see `MultiAgentEnvToModule`.
        options: options of `env_to_module_pipeline`. A callable `pieces` returns the connectors of each module.

    Raises:
        InvalidArgument: a module has no action space, or its policy cannot read its batch.
        UnwiredPipeline: a connector reads a column that no earlier connector provides.
        WrongType: `observation_spaces`, `action_spaces` or `policies` is not a mapping by module.
    """
    pipelines = _build_each(env_to_module_pipeline, observation_spaces, action_spaces, policies, options)
    return MultiAgentEnvToModule(pipelines, joint)


def multi_agent_module_to_env(
    observation_spaces: Spaces, action_spaces: Spaces, *, policies: Mapping[Any, Any] | None = None, **options: Any
) -> MultiAgentModuleToEnv:
    """Return the default pipelines from policy outputs to agents' actions, one pipeline per module (policy).

    Args:
        observation_spaces: by module.
        action_spaces: by module.
        policies: by module; see `module_to_env_pipeline`.
        options: options of `module_to_env_pipeline`. A callable `pieces` returns the connectors of each module.

    Raises:
        InvalidArgument: a module has no action space.
        UnwiredPipeline: a connector reads a column that no earlier connector provides.
        WrongType: `observation_spaces`, `action_spaces` or `policies` is not a mapping by module.
    """
    return MultiAgentModuleToEnv(
        _build_each(module_to_env_pipeline, observation_spaces, action_spaces, policies, options)
    )


def multi_agent_learner(
    observation_spaces: Spaces,
    action_spaces: Spaces,
    *,
    policies: Mapping[Any, Any] | None = None,
    returns: Callable[[], Connector] | None = None,
    joint: Joint = (),
    **options: Any,
) -> MultiAgentLearner:
    """Return the default pipelines from multi-agent episodes to train batches, one pipeline per module (policy).

    Args:
        observation_spaces: by module.
        action_spaces: by module.
        policies: by module; see `learner_pipeline`.
        returns: a function that returns the connector for advantages or targets; it is called once per module.
        joint: see `MultiAgentLearner`.
        options: options of `learner_pipeline`. `views` is a mapping `{module_id: pipeline.views}` of the pipelines that
            acted.

    Raises:
        InvalidArgument: a module has no action space, or its policy cannot read its batch.
        UnwiredPipeline: a connector reads a column that no earlier connector provides.
        WrongType: `returns` cannot be called, or an argument by module is not a mapping.
    """
    if not (returns is None or callable(returns)):
        raise WrongType(
            f"returns={returns!r}: give a function that returns a connector, such as a connector's class, or None"
        )

    def build(*spaces: gym.Space | None, **arguments: Any) -> LearnerPipeline:
        return learner_pipeline(*spaces, returns=None if returns is None else returns(), **arguments)

    return MultiAgentLearner(_build_each(build, observation_spaces, action_spaces, policies, options), joint)


def _build_each(
    build: Callable[..., P],
    observation_spaces: Spaces,
    action_spaces: Spaces,
    policies: Mapping[Any, Any] | None,
    options: Mapping[str, Any],
) -> dict[Any, P]:
    """Return one pipeline per module id, made by `build` from the module's spaces, policy and options.

    The option `pieces` may be a callable, which is called for each module. The option `views` may be a dict by
    module id.

    Raises:
        InvalidArgument: a module has no action space.
    """
    observation_spaces, action_spaces = (
        checked_mapping(name, module_spaces, "of a space for each module")
        for name, module_spaces in (("observation_spaces", observation_spaces), ("action_spaces", action_spaces))
    )
    for module_id in observation_spaces:
        if module_id not in action_spaces:
            raise InvalidArgument(
                f"action_spaces has no space of module {module_id!r}; it has spaces of {list(action_spaces)}"
            )
    policies = None if policies is None else checked_mapping("policies", policies, "of a policy for each module")
    pipelines = {}
    for module_id, observation_space in observation_spaces.items():
        module_options = dict(options)
        if callable(module_options.get("pieces")):
            module_options["pieces"] = module_options["pieces"]()
        if isinstance(module_options.get("views"), Mapping):
            module_options["views"] = module_options["views"].get(module_id)
        policy = None if policies is None else policies.get(module_id)
        pipelines[module_id] = build(observation_space, action_spaces[module_id], policy=policy, **module_options)
    return pipelines

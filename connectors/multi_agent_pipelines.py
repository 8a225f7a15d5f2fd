"""Pipelines over several agents: one pipeline for each module, and what deals rows out to them and collects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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
from episodes.errors import InvalidArgument, StateMismatch, UnknownKey, WrongType
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.validation import checked_mapping

__all__ = [
    "MultiAgentEnvToModule",
    "MultiAgentLearner",
    "MultiAgentModuleToEnv",
    "multi_agent_env_to_module",
    "multi_agent_learner",
    "multi_agent_module_to_env",
]

Spaces = Mapping[Any, Any]  # module -> Gymnasium space
Joint = Sequence[MultiAgentObservationPreprocessor | ObservationRewriter]
_JOINT = "__joint__"  # the key of their state
_OF_ROWS = {"explore", "shared_data", "metrics"}  # what a call for whole rows is given, but for metrics
P = TypeVar("P", bound=ConnectorPipeline)


class MultiAgentPipeline(Connector):
    """One pipeline for each module; batches are `{module_id: {column: array}}`, `rl_module` is `{module_id: policy}`.

    Each module has spaces, pieces and filters of its own, and the pieces know nothing of agents. `joint` pieces see the
    observations of all agents first.
    """

    _repr_html_ = notebook_repr("connectors.notebook_cards", "multi_agent_pipeline")

    def __init__(self, modules: Mapping[Any, ConnectorPipeline], joint: Joint = ()) -> None:
        super().__init__()
        self.modules = checked_mapping("modules", modules, "of a pipeline for each module")
        self.joint = ConnectorPipeline(connectors=as_joint(joint))

    def __getitem__(self, module_id: Any) -> Any:
        """The module's pipeline; `UnknownKey` when there is none."""
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
        metrics: Any = None,
        **kwargs: Any,
    ) -> ColumnDict:
        """`{module_id: columns}`: what the modules' pipelines make of the episodes; see `_run` of each kind.

        Args:
            batch: columns to start from; the dict itself is left as it is.
            shared_data: a dict that all pieces of all modules see.
        """
        context = {"explore": explore, "shared_data": shared_data, "metrics": metrics, **kwargs}
        return self._run(rl_module, dict(batch or {}), episodes, context)

    def _run(self, rl_module: Any, batch: ColumnDict, episodes: Any, context: dict[str, Any]) -> ColumnDict:
        """The call, its other arguments as `context`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its modules' pipelines are given")

    def _called(
        self, batches: Mapping[Any, ColumnDict], episodes: Mapping[Any, Any], rl_module: Any, context: dict[str, Any]
    ) -> dict[Any, ColumnDict]:
        """What each module's pipeline makes of its batch: `{module_id: columns}` of the modules with episodes."""
        return {
            module_id: self[module_id](
                rl_module=None if rl_module is None else rl_module[module_id],
                batch=batches.get(module_id),
                episodes=own,
                **context,
            )
            for module_id, own in episodes.items()
        }

    def _called_for_rows(
        self, batches: Mapping[Any, ColumnDict], episodes: Mapping[Any, Any], rl_module: Any, context: dict[str, Any]
    ) -> dict[Any, ColumnDict]:
        """As `_called`, of batches of whole rows [n, ...]: what a runner calls at each step."""
        if context.keys() != _OF_ROWS or context["metrics"] is not None:
            return self._called(batches, episodes, rl_module, context)
        explore, shared_data = context["explore"], context["shared_data"]
        return {
            module_id: self[module_id].on_rows(
                None if rl_module is None else rl_module[module_id],
                dict(batches.get(module_id, ())),
                own,
                explore,
                shared_data,
            )
            for module_id, own in episodes.items()
        }

    @property
    def lookback(self) -> int:  # type: ignore[override]
        """The most items that any module's pipeline needs from before a chunk's first step."""
        return max((pipeline.lookback for pipeline in self.modules.values()), default=0)

    @property
    def _parts(self) -> dict[Any, Any]:
        """What has a state: the modules' pipelines, and that of the joint pieces where there are some."""
        return {_JOINT: self.joint, **self.modules} if len(self.joint) else self.modules

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[Any, Any]:
        """The states of the modules' pipelines, by module; that of the joint pieces is under "__joint__"."""
        return {module_id: pipeline.get_state() for module_id, pipeline in self._parts.items()}

    def set_state(self, state: dict[Any, Any]) -> None:
        """Restore what `get_state` gave; `StateMismatch` for other modules, and nothing is changed."""
        if state.keys() != self._parts.keys():
            raise StateMismatch(
                f"{self.name}.set_state: the state has the modules {list(state)}, this has {list(self._parts)}"
            )
        set_states(self._parts, state, self.get_state())

    def reset_state(self) -> None:
        """Forget what any module's pieces have learned from data."""
        for pipeline in self._parts.values():
            pipeline.reset_state()

    def merge_states(self, states: list[dict[Any, Any]]) -> dict[Any, Any]:
        """One state out of those of several copies, merged module by module."""
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
    """Makes each module's input batch out of the observations of its agents that must act, batched together.

    Args:
        joint: preprocessors of the observations of all agents; a runner sends those of each env step through them
            before they are stored. The modules' pipelines have the spaces that these give. A rewriter such as
            `MeanStdFilter(multi_agent=True)` or `FlattenObservations(agent_ids=[...])` has a copy for each agent there.
    """

    modules: dict[Any, EnvToModulePipeline]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[Any, EnvToModulePipeline], joint: Joint = ()) -> None:
        super().__init__(modules, joint)
        self.mapping = AgentToModuleMapping()

    def rewrite_joint(self, episode: MultiAgentEpisode, observations: Mapping[Any, Any], update: bool = True) -> None:
        """Send the observations of a growing episode's newest env step through the joint preprocessors, in place."""
        rewrite_newest(self.joint.connectors, episode, observations, update)

    def _run(self, rl_module: Any, batch: ColumnDict, episodes: Any, context: dict[str, Any]) -> ColumnDict:
        """`{module_id: columns}` of the modules that have an agent to act for."""
        if context["shared_data"] is None:
            context["shared_data"] = {}
        given = bool(batch)  # its columns may be parts
        columns = self.mapping(batch=batch, episodes=episodes, shared_data=context["shared_data"])
        seats = context["shared_data"][SEATS]
        call = self._called if given else self._called_for_rows
        return call(columns, _episodes_at(seats), rl_module, context)


class MultiAgentModuleToEnv(MultiAgentPipeline):
    """Makes actions of agents out of the modules' outputs; see `ModuleToAgentUnmapping` for what it gives."""

    modules: dict[Any, ModuleToEnvPipeline]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[Any, ModuleToEnvPipeline]) -> None:
        super().__init__(modules)
        self.unmapping = ModuleToAgentUnmapping()

    def _run(self, rl_module: Any, batch: ColumnDict, episodes: Any, context: dict[str, Any]) -> ColumnDict:
        """The actions and other outputs of each agent, for each episode.

        Args:
            shared_data: what the env-to-module pipeline was given, with the rows' agents in it.

        Raises:
            UnknownKey: outputs without a `shared_data` that says whose rows they are, or without actions.
            WrongType: a module's outputs are no dict.
            ShapeMismatch: a module's actions are none of its space.
        """
        shared_data = context["shared_data"] or {}
        seats = shared_data.get(SEATS, {})
        if batch and SEATS not in shared_data:
            raise UnknownKey(
                f"{self.name}: shared_data does not say whose rows these are; give both pipelines the same shared_data"
            )
        for module_id, own in batch.items():
            check_answer(own)
            if own.get(Columns.ACTIONS, own) is None:
                raise UnknownKey(f"the policy of module {module_id!r} gave no 'actions', but None")
        outputs = self._called_for_rows(batch, _episodes_at(seats), rl_module, context)
        for module_id, own in outputs.items():
            for_env, num_agents = own.get(Columns.ACTIONS_FOR_ENV, own[Columns.ACTIONS]), len(seats[module_id])
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
    """Makes each module's train batch of exactly the real steps of its agents.

    Args:
        joint: preprocessors of the observations of all agents, for episodes that were stored without them.
    """

    def __init__(self, modules: Mapping[Any, LearnerPipeline], joint: Joint = ()) -> None:
        super().__init__(modules, joint)
        self.mapping = AgentToModuleMapping()
        self._agents = AgentSpaces(self.joint)

    def _run(self, rl_module: Any, batch: ColumnDict, episodes: Any, context: dict[str, Any]) -> ColumnDict:
        """`{module_id: train batch}` of the modules that have steps.

        Args:
            episodes: multi-agent episodes, agents' own episodes, their pack, or `{module_id: its agents' episodes}`.
        """
        if len(self.joint):
            for episode in (each for each in episodes if isinstance(each, MultiAgentEpisode)):
                self._agents.welcome(episode.observation_space, episode.action_space)
            episodes = [
                own for episode in episodes for own in rewritten_agents(self.joint.connectors, episode) if len(own)
            ]
        dealt = episodes if isinstance(episodes, Mapping) else self.mapping.dealt(episodes)
        return self._called(batch, dealt, rl_module, context)


def _episodes_at(seats: Mapping[Any, list[AgentRow]]) -> dict[Any, list[SingleAgentEpisode]]:
    return {module_id: [seat.episode for seat in own] for module_id, own in seats.items()}


def multi_agent_env_to_module(
    observation_spaces: Spaces,
    action_spaces: Spaces,
    *,
    policies: Mapping[Any, Any] | None = None,
    joint: Joint = (),
    **options: Any,
) -> MultiAgentEnvToModule:
    """The default env-to-module pipeline of each module; `options` are those of `env_to_module_pipeline`.

    Args:
        observation_spaces: by module, behind the joint preprocessors.
        joint: see `MultiAgentEnvToModule`; likewise `multi_agent_learner(joint=...)`.
    """
    pipelines = _each(env_to_module_pipeline, observation_spaces, action_spaces, policies, options)
    return MultiAgentEnvToModule(pipelines, joint)


def multi_agent_module_to_env(
    observation_spaces: Spaces, action_spaces: Spaces, *, policies: Mapping[Any, Any] | None = None, **options: Any
) -> MultiAgentModuleToEnv:
    """The default module-to-env pipeline of each module; `options` are those of `module_to_env_pipeline`."""
    return MultiAgentModuleToEnv(_each(module_to_env_pipeline, observation_spaces, action_spaces, policies, options))


def multi_agent_learner(
    observation_spaces: Spaces,
    action_spaces: Spaces,
    *,
    policies: Mapping[Any, Any] | None = None,
    returns: Callable[[], Connector] | None = None,
    joint: Joint = (),
    **options: Any,
) -> MultiAgentLearner:
    """The default learner pipeline of each module; `options` are those of `learner_pipeline`.

    `views` is a mapping: `{module_id: pipeline.views}` of the pipelines that acted.

    Args:
        returns: makes the piece that computes advantages or targets, one for each module.
    """
    if not (returns is None or callable(returns)):
        raise WrongType(f"returns={returns!r}: give what makes a piece, such as the piece's class, or None")

    def build(*spaces: Any, **arguments: Any) -> LearnerPipeline:
        return learner_pipeline(*spaces, returns=None if returns is None else returns(), **arguments)

    return MultiAgentLearner(_each(build, observation_spaces, action_spaces, policies, options), joint)


def _each(
    build: Callable[..., P],
    observation_spaces: Spaces,
    action_spaces: Spaces,
    policies: Mapping[Any, Any] | None,
    options: Mapping[str, Any],
) -> dict[Any, P]:
    """A pipeline for each module; a callable `pieces` makes each its own, a mapping `views` has each its own."""
    observation_spaces, action_spaces = (
        checked_mapping(name, own, "of a space for each module")
        for name, own in (("observation_spaces", observation_spaces), ("action_spaces", action_spaces))
    )
    for module_id in observation_spaces:
        if module_id not in action_spaces:
            raise InvalidArgument(
                f"action_spaces has none of module {module_id!r}; it has those of {list(action_spaces)}"
            )
    policies = None if policies is None else checked_mapping("policies", policies, "of a policy for each module")
    pipelines = {}
    for module_id, observation_space in observation_spaces.items():
        own = dict(options)
        if callable(own.get("pieces")):
            own["pieces"] = own["pieces"]()
        if isinstance(own.get("views"), Mapping):
            own["views"] = own["views"].get(module_id)
        policy = None if policies is None else policies.get(module_id)
        pipelines[module_id] = build(observation_space, action_spaces[module_id], policy=policy, **own)
    return pipelines

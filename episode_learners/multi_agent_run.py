"""Creation of trainers for several agents from a table of settings (`Run`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from episode_learners import trainers
from episode_learners.league import League
from episode_learners.multi_agent import MultiAgentAlgorithm
from episode_learners.trainers.trainer import Trainer
from episode_runners import MultiAgentEnvRunner
from episode_runners.multi_agent_envs import MultiAgentEnv, as_multi_agent_env
from episodes.data_types import AgentID
from episodes.errors import InvalidArgument, UnknownKey
from episodes.replay import MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer

if TYPE_CHECKING:
    from episode_learners.run import Run

__all__ = ["PatternMapping", "explain_rendering", "make_multi_agent_trainer"]

_MODULE_SETTINGS = ("algo", "policy", "algorithm", "decay_over", "frozen")


class PatternMapping:
    """Function that maps an agent to a module, by the first pattern (such as "wolf_*") that the agent's id matches.

    Args:
        patterns: a module id for each pattern, such as `{"wolf_*": "wolves", "*": "sheep"}`.

    >>> PatternMapping({"wolf_*": "wolves", "*": "sheep"})("wolf_3")
    'wolves'
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self.patterns = dict(patterns)

    def __call__(self, agent_id: AgentID, episode: object = None) -> str:
        """Return the id of the module of the first pattern that the agent's id matches. The episode has no influence.

        Raises:
            UnknownKey: no pattern matches.
        """
        for pattern, module_id in self.patterns.items():
            if fnmatchcase(str(agent_id), pattern):
                return module_id
        raise UnknownKey(f"agent {agent_id!r} matches no pattern of [agents]: {', '.join(self.patterns)}")


def make_multi_agent_trainer(run: Run, make_part: Callable[..., Any], **of_trainer: Any) -> Trainer[Any]:
    """Return a trainer for several agents, with environments, policies and algorithms, created from the settings `run`.

    Args:
        run: the `Run`. Its `env` is "package.module:function", where the function returns an environment of several
            agents; `env_kwargs` are its arguments.
        make_part: function of the settings of one module that returns an object with `make_actor(spaces)` and
            `make_algorithm(actor)`.
        of_trainer: arguments of `Trainer`.

    Raises:
        InvalidArgument: no agent is mapped to a module, a module learns offline, or there are a league and a mapping of
            agents.
        UnknownKey: a setting does not exist, or an agent is mapped to a module that does not exist.
    """
    rendering = {"render_mode": "rgb_array"} if run.renders else {}
    make_env = environment_maker(run.env, {**run.env_kwargs, **rendering})
    with explain_rendering(run.env) if run.renders else nullcontext():
        env = make_env()
    agents = list(getattr(env, "possible_agents", ()))
    if not agents:
        raise InvalidArgument(f"{run.env} has no possible_agents, so the spaces of its modules are not known")
    league = _make_league(run)
    mapping = league.mapping_fn(agents) if league else PatternMapping(run.agents or {"*": next(iter(run.modules))})
    parts = {
        module_id: _make_module_run(run, make_part, module_id, number) for number, module_id in enumerate(run.modules)
    }
    kinds = [part.trainer_config for part in parts.values()]
    if trainers.OfflineConfig in kinds:
        raise InvalidArgument(
            "modules that learn from stored data cannot be run from settings: create the trainer in Python, with "
            "its data"
        )
    players = dict.fromkeys(run.modules, agents[0]) if league else _first_agents(run, agents, mapping)
    spaces = _spaces_of(as_multi_agent_env(env), players)
    actors = {module_id: part.make_actor(*spaces[module_id]) for module_id, part in parts.items()}
    algorithms = {module_id: part.make_algorithm(actors[module_id]) for module_id, part in parts.items()}
    frozen = {module_id for module_id, table in run.modules.items() if table.get("frozen")}
    trained = [module_id for module_id in parts if module_id not in frozen.union(league.opponents if league else ())]
    algorithm = MultiAgentAlgorithm(algorithms, train=trained if len(trained) < len(parts) else None)
    options: dict[str, Any] = {"num_envs": run.num_envs, "agent_to_module_mapping_fn": mapping, "seed": run.seed}
    runner = MultiAgentEnvRunner(make_env, actors, **options)
    if league:
        of_trainer["hooks"] = [league, *of_trainer.get("hooks", ())]
    if trainers.OffPolicyConfig in kinds:
        config = trainers.OffPolicyConfig(**run.trainer)
        return trainers.OffPolicyTrainer(algorithm, runner, _make_buffer(run), config, **of_trainer)
    return trainers.OnPolicyTrainer(algorithm, runner, trainers.OnPolicyConfig(**run.trainer), **of_trainer)


def _make_module_run(run: Run, make_part: Callable[..., Any], module_id: str, number: int) -> Any:
    """Return the settings of one module as a separate `Run`, from which its actor and algorithm are created.

    `number` is the module's index, which varies the seed.

    Raises:
        UnknownKey: the module has no algorithm, or an unknown setting.
    """
    table = run.modules[module_id]
    wrong = set(table) - set(_MODULE_SETTINGS)
    if wrong or "algo" not in table:
        raise UnknownKey(
            f"[modules.{module_id}] has {', '.join(table)}: it needs algo, and may have {', '.join(_MODULE_SETTINGS)}"
        )
    settings = {name: value for name, value in table.items() if name != "frozen"}
    return make_part(env=run.env, seed=run.seed + number, device=run.device, **settings)


def _make_league(run: Run) -> League | None:
    """Return the self-play league that the settings of a run describe, or None if they have none.

    Raises:
        UnknownKey: a setting is missing or unknown, or the league's modules differ from the run's.
        InvalidArgument: the settings also map agents to modules.
    """
    if not run.league:
        return None
    names = tuple(signature(League).parameters)
    unknown = set(run.league) - set(names)
    if unknown or not {"learners", "opponents"} <= set(run.league):
        raise UnknownKey(
            f"[league] has {', '.join(run.league)}: it needs learners and opponents, and may have {', '.join(names)}"
        )
    if run.agents:
        raise InvalidArgument("settings have [league] and [agents]: the league maps agents to modules; leave one out")
    league = League(**{"seed": run.seed, **run.league})
    wrong = {*league.learners, *league.opponents}.symmetric_difference(run.modules)
    if wrong:
        raise UnknownKey(
            f"[league] and [modules] differ in {', '.join(sorted(map(str, wrong)))}: every module must be a learner or "
            "an opponent of the league"
        )
    return league


def _first_agents(run: Run, agents: list[Any], mapping: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Return one agent of each module, by module id, whose spaces are used for the module's policy.

    It is the first agent that is mapped to the module. `mapping` is called with an agent and None, as there is no
    episode yet.

    Raises:
        UnknownKey: an agent is mapped to an unknown module.
        InvalidArgument: no agent is mapped to one of the modules.
    """
    modules = {agent: mapping(agent, None) for agent in agents}
    unknown = set(modules.values()) - set(run.modules)
    if unknown:
        raise UnknownKey(f"[agents] names modules {sorted(unknown)}; there are {', '.join(run.modules)}")
    first = {module_id: agent for agent, module_id in reversed(modules.items())}
    unused = [module_id for module_id in run.modules if module_id not in first]
    if unused:
        raise InvalidArgument(
            f"no agent is mapped to module {unused[0]!r}: the agents are {', '.join(map(str, agents))}"
        )
    return first


def _spaces_of(env: MultiAgentEnv, players: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the observation and action space of each module, by module id, and close the environment.

    The spaces are those of the agents `players`, one per module.
    """
    spaces = {
        module_id: (env.space("observation_space", agent), env.space("action_space", agent))
        for module_id, agent in players.items()
    }
    env.close()
    return spaces


def environment_maker(name: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function without arguments that creates the environment `name`, given as "package.module:function", with
    `arguments`.

    Raises:
        InvalidArgument: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        make_env = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"env is {name!r}: with modules it must be package.module:function, such as "
            f"'mpe2.simple_spread_v3:parallel_env' ({error})"
        ) from error
    return partial(make_env, **arguments)


@contextmanager
def explain_rendering(env: str) -> Iterator[None]:
    """Context manager that explains why an environment cannot be made with `render_mode="rgb_array"`.

    Raises:
        InvalidArgument: it cannot.
    """
    try:
        yield
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"frames: {env} cannot be made with render_mode='rgb_array' ({type(error).__name__}: {error}); keep "
            "episodes without frames"
        ) from error


def _make_buffer(run: Run) -> MultiAgentEpisodeReplayBuffer:
    """Return the multi-agent replay buffer that the settings of a run describe. The default capacity is 50,000."""
    numbers = {"capacity": 50_000, **run.buffer}
    is_prioritized = numbers.pop("prioritized", False)
    kind = MultiAgentPrioritizedEpisodeReplayBuffer if is_prioritized else MultiAgentEpisodeReplayBuffer
    return kind(numbers.pop("capacity"), seed=run.seed, **numbers)

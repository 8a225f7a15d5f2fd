"""The doctor names planted faults, and has no findings in sound environments and data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from typer.testing import CliRunner

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.command.app import app
from episodes.errors import InvalidArgument
from episodes.inspect import examine
from episodes.inspect.doctor.checks import _space_mismatches
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tokens import Conversation
from episodes.tracks.space_kinds import contains
from tests.inspection.data import write


class Walk(gym.Env):
    """A sound random walk: it terminates far from its start, and is truncated after 60 steps."""

    observation_space: Any = spaces.Box(-9, 9, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)
    limit, edge, started_within = 60, 2.0, 0.05

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self.seen(), self.told()

    def begin(self) -> None:
        self.place = self.np_random.uniform(-self.started_within, self.started_within, 3)

    def step(self, action: Any) -> Any:
        self.t += 1
        self.move(action)
        at_edge = bool(abs(self.place).max() > self.edge)
        return self.answer(self.seen(), 1.0, at_edge, self.t >= self.limit, self.told())

    def move(self, action: Any) -> None:
        self.place = self.place + self.np_random.normal(0, 0.2, 3) + (0.1 if action else -0.1)

    def seen(self) -> Any:
        return np.clip(self.place, -9, 9).astype(np.float32)

    def told(self) -> Any:
        return {"t": self.t}

    def answer(self, *result: Any) -> Any:
        """Return the result of `step`, which faulty environments change."""
        return result


class LosesLast(Walk):
    def answer(self, o, r, terminated, truncated, info):  # type: ignore[no-untyped-def]
        if terminated or truncated:
            self.begin()
            o = self.seen()
        return o, r, terminated, truncated, info


class Late(Walk):
    shown: Any = None

    def reset(self, **arguments: Any) -> Any:
        self.shown = None
        return super().reset(**arguments)

    def seen(self) -> Any:
        newest = super().seen()
        before, self.shown = (newest if self.shown is None else self.shown), newest
        return before


class RepeatsLast(Walk):
    def answer(self, o, r, terminated, truncated, info):
        if not (terminated or truncated):
            self.before = o
        return self.before.copy(), r, terminated, truncated, info


class ReusesItsBuffer(Walk):
    def seen(self) -> Any:
        self.buffer = getattr(self, "buffer", np.zeros(3, np.float32))
        self.buffer[:] = super().seen()
        return self.buffer


class ReusesItsInfos(Walk):
    def told(self) -> Any:
        self.info = getattr(self, "info", {})
        self.info["t"] = self.t
        return self.info


class WritesActions(Walk):
    action_space: Any = spaces.Box(-1, 1, (2,), np.float32)

    def move(self, action: Any) -> None:
        super().move(action[0] > 0)
        action *= 0.5


class LimitNotReset(Walk):
    edge = 99.0
    total = 0

    def answer(self, o, r, terminated, truncated, info):
        self.total += 1
        return o, r, terminated, self.total >= 60, info


class Paid(Walk):
    """A sound walk whose rewards follow from place and action."""

    def answer(self, o, r, *remaining):
        return o, float(3.0 + o[0] - 2 * o[1] + 0.5 * o[2] ** 2), *remaining


class RewardsLate(Paid):
    def reset(self, **arguments: Any) -> Any:
        self.next_reward = 0.0
        return super().reset(**arguments)

    def answer(self, *answer):
        o, r, *remaining = super().answer(*answer)
        r, self.next_reward = self.next_reward, r
        return o, r, *remaining


class RewardsLateOverResets(RewardsLate):
    def reset(self, **arguments: Any) -> Any:
        reward = getattr(self, "next_reward", 0.0) if arguments.get("seed") is None else 0.0
        result = super().reset(**arguments)
        self.next_reward = reward
        return result


class Skipping(gym.Wrapper):
    """Repeats each action four times, also after an ending."""

    def step(self, action: Any) -> Any:
        answers = [self.env.step(action) for _ in range(4)]
        o, _, terminated, truncated, info = answers[-1]
        return o, sum(answer[1] for answer in answers), terminated, truncated, info


class FixedHorizon(Walk):
    """Sound: the task ends after 30 steps, and the observation has the time."""

    observation_space: Any = spaces.Box(-99, 99, (4,), np.float32)
    edge, limit = 99.0, 30

    def seen(self) -> Any:
        return np.append(super().seen(), np.float32(self.t / 30)).astype(np.float32)

    def answer(self, o, r, terminated, truncated, info):
        return o, r, truncated, False, info


class RandomBudgets(Walk):
    """Sound: a reset draws the number of steps of the episode, which the observation does not have."""

    edge = 99.0

    def begin(self) -> None:
        super().begin()
        self.limit = int(self.np_random.integers(5, 40))


class ObservedBudgets(RandomBudgets):
    observation_space: Any = spaces.Box(-99, 99, (4,), np.float32)

    def seen(self) -> Any:
        return np.append(super().seen(), np.float32(self.limit - self.t)).astype(np.float32)


class GoalAtStart(gym.Env):
    """Sound: the task is to leave the start and to return to it."""

    observation_space: Any = spaces.Box(0, 9, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.place = max(1, min(9, self.place + 1)) if action or not self.place else self.place - 1
        is_back = self.place == 0
        return np.array([self.place], np.float32), float(is_back), is_back, False, {}


class Two:
    """A sound environment of two agents: `b` ends after 5 steps and `a` after 9."""

    possible_agents = ["a", "b"]
    ends = {"a": 9, "b": 5}

    def __init__(self) -> None:
        self.spaces = {agent: spaces.Discrete(2) for agent in ("a", "b", "c")}

    def observation_space(self, agent: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: Any) -> Any:
        return self.spaces[agent]

    def seen(self) -> Any:
        return {agent: self.random.normal(size=2).astype(np.float32) for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.random = np.random.default_rng(seed) if seed is not None else self.random
        self.agents, self.t = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.t += 1
        observations, rewards = self.seen(), dict.fromkeys(self.paid(), 1.0)
        over = {agent: self.t >= self.ends[agent] for agent in self.agents}
        never, reported_infos = dict.fromkeys(over, False), {agent: {} for agent in over}
        self.leave([agent for agent, is_over in over.items() if is_over])
        return observations, rewards, over, never, reported_infos

    def paid(self) -> Any:
        return self.agents

    def leave(self, ended: Any) -> None:
        self.agents = [agent for agent in self.agents if agent not in ended]


class DeadAgentActs(Two):
    def leave(self, ended: Any) -> None:
        self.agents = [] if "a" in ended else self.agents

    def paid(self) -> Any:
        return [agent for agent in self.agents if self.t <= self.ends[agent]]


class PaidAfterTheEnd(Two):
    def paid(self) -> Any:
        return self.possible_agents


class Stranger(Two):
    def seen(self) -> Any:
        return super().seen() | ({"c": np.zeros(2, np.float32)} if self.t == 3 else {})


class Unseen(Two):
    def seen(self) -> Any:
        observations = super().seen()
        return {agent: observation for agent, observation in observations.items() if (agent, self.t) != ("b", 2)}


class Unrewarded(Two):
    def step(self, actions: Any) -> Any:
        observations, rewards, *remaining = super().step(actions)
        return observations, {agent: 1.0 for agent in rewards if (agent, self.t) != ("b", 2)}, *remaining


def faulty(base: type = Walk, **changed: Any) -> type:
    """Return a subclass of an environment with other attributes and methods."""
    return type("Faulty", (base,), changed)


def changes_result(change: Callable[..., Any], **changed: Any) -> type:
    """Return a walk whose `step` returns `change(t, observation, reward, terminated, truncated, info)`."""
    return faulty(**changed, answer=lambda self, *result: change(self.t, *result))


def over(t: int, o: Any, r: Any, terminated: bool, truncated: bool, info: Any) -> Any:
    """Return a result in which a time limit terminates."""
    return o, r, terminated or truncated, False, info


random = np.random.default_rng()
timed = spaces.Dict({"place": Walk.observation_space, "step": spaces.Box(0, 999, (1,), np.float32)})
keyed = spaces.Dict({"a": spaces.Box(-9, 9, (3,), np.float32), "b": spaces.Discrete(2)})

FAULTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "no end": ("never_ends", changes_result(lambda t, o, r, end, limit, info: (o, r, False, False, info))),
    "rewards a step late": ("reward_shift", RewardsLate),
    "rewards late over resets": ("reward_shift", RewardsLateOverResets),
    "equal rewards late": ("reward_shift", changes_result(lambda t, o, r, *flags: (o, float(t > 1), *flags))),
    "steps over ends": ("steps_after_end", lambda: Skipping(Walk())),
    "steps over limits": ("steps_after_end", lambda: Skipping(faulty(edge=99.0, limit=9)())),
    "one dict for all infos": ("reused_buffer", ReusesItsInfos),
    "one array for all observations": ("reused_buffer", ReusesItsBuffer),
    "both flags": (
        "both_flags",
        changes_result(lambda t, o, r, end, limit, info: (o, r, end or limit, end or limit, info)),
    ),
    "a seed at each reset": (
        "seed",
        faulty(reset=lambda self, *, seed=None, options=None: Walk.reset(self, seed=7 if seed is None else seed)),
    ),
    "actions ignored": ("ignored_actions", faulty(move=lambda self, action: Walk.move(self, 0))),
    "a limit that no reset clears": ("no_reset", LimitNotReset),
    "no new start": (
        "no_reset",
        changes_result(
            lambda t, o, r, end, limit, info: (o, r, False, limit, info),
            begin=lambda self: setattr(self, "place", getattr(self, "place", np.zeros(3))),
        ),
    ),
    "limit terminates": ("time_limit_terminates", changes_result(over, edge=99.0)),
    "limit terminates among ends": ("time_limit_terminates", changes_result(over, edge=2.2, limit=40)),
    "limit only in infos": (
        "time_limit_terminates",
        changes_result(
            lambda t, o, r, end, limit, info: (
                *(o, r, end or limit, False),
                info | {"TimeLimit.truncated": limit and not end},
            )
        ),
    ),
    "ends truncate": (
        "end_truncates",
        changes_result(lambda t, o, r, end, limit, info: (o, r, False, end, info), limit=10_000),
    ),
    "last observation lost": ("lost_final_observation", LosesLast),
    "last observation lost with one start": ("lost_final_observation", faulty(LosesLast, started_within=0.0)),
    "late observation": ("late_observation", Late),
    "last observation repeated": ("missing_last_observation", RepeatsLast),
    "last observation blank": (
        "missing_last_observation",
        changes_result(lambda t, o, r, end, limit, info: (o * (not (end or limit)), r, end, limit, info)),
    ),
    "dtype": ("dtype", changes_result(lambda t, o, *others: (o.astype(np.float64), *others))),
    "shape": ("shape", changes_result(lambda t, o, *others: (o[: 2 + (t != 9)], *others))),
    "space": ("outside_space", faulty(observation_space=spaces.Box(-1, 1, (3,), np.float32))),
    "lost key": (
        "outside_space",
        faulty(observation_space=keyed, seen=lambda self: {"a": Walk.seen(self)} | ({} if self.t == 5 else {"b": 1})),
    ),
    "NaN": (
        "not_finite",
        changes_result(lambda t, o, *others: (o * np.float32(np.nan if t == 7 else 1), *others)),
    ),
    "infinite reward": ("not_finite", changes_result(lambda t, o, r, *flags: (o, np.inf if t == 7 else r, *flags))),
    "array as reward": ("reward_type", changes_result(lambda t, o, r, *flags: (o, np.ones(1), *flags))),
    "no reward": ("reward_type", changes_result(lambda t, o, r, *flags: (o, None, *flags))),
    "time jumps": ("clock_jump", faulty(told=lambda self: {"t": self.t + 3 * (self.t > 5)})),
    "observed time jumps": (
        "clock_jump",
        faulty(
            observation_space=timed,
            seen=lambda self: {
                "place": Walk.seen(self),
                "step": np.array([self.t - (self.t > 5)], np.float32),
            },
        ),
    ),
    "moves by chance": (
        "seed",
        faulty(move=lambda self, action: setattr(self, "place", self.place + random.normal(0, 0.2, 3))),
    ),
    "seed ignored": ("seed", faulty(reset=lambda self, *, seed=None, options=None: Walk.reset(self))),
    "rewards by chance": ("seed", changes_result(lambda t, o, r, *flags: (o, float(random.normal()), *flags))),
    "info of two types": ("info_type", faulty(told=lambda self: {"score": "none" if self.t == 4 else self.t})),
    "list as info": ("info_type", changes_result(lambda t, *result: (*result[:4], []))),
    "constant observations": ("constant_observations", faulty(seen=lambda self: np.ones(3, np.float32))),
    "number as flag": (
        "flag_type",
        changes_result(lambda t, o, r, end, limit, info: (o, r, int(end), limit, info)),
    ),
    "written actions": ("writes_actions", WritesActions),
    "old step": (
        "step_result",
        changes_result(lambda t, o, r, end, limit, info: (o, r, end or limit, info)),
    ),
    "old reset": ("step_result", faulty(reset=lambda self, **arguments: Walk.reset(self, **arguments)[0])),
    "error": ("error", changes_result(lambda t, *result: (1 / (t - 8), *result)[1:])),
    "dead agent acts": ("dead_agent_acts", DeadAgentActs),
    "reward after the end": ("reward_after_end", PaidAfterTheEnd),
    "unknown agent": ("unknown_agent", Stranger),
    "missing observation": ("missing_observation", Unseen),
    "missing reward": ("step_result", Unrewarded),
}


@pytest.mark.parametrize("name", FAULTS)
def test_examine_faulty_environment_has_one_finding(name: str) -> None:
    kind, make = FAULTS[name]
    findings = examine(make(), num_steps=2500 if name == "no end" else 1200)
    assert [finding.kind for finding in findings] == [kind], findings
    assert findings[0].evidence
    assert findings[0].times >= 1
    assert findings[0].harm
    assert findings[0].advice


CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1")
TOYS = ("FrozenLake-v1", "Taxi-v3", "CliffWalking-v1", "Blackjack-v1")
GAMES = ("pettingzoo.classic.tictactoe_v3:env", "mpe2.simple_adversary_v3:parallel_env")
MUJOCO = "InvertedPendulum Hopper HalfCheetah Ant Reacher Swimmer Walker2d InvertedDoublePendulum Humanoid Pusher"
MPE = (
    "simple_v3 simple_spread_v3 simple_tag_v3 simple_push_v3 simple_reference_v3 simple_crypto_v3 simple_world_comm_v3"
)
MORE = (
    "MountainCarContinuous-v0",
    "FrozenLake8x8-v1",
    *(f"{name}-v5" for name in MUJOCO.split()),
    *(f"mpe2.{name}:{kind}" for name in MPE.split() for kind in ("env", "parallel_env")),
    *(f"pettingzoo.classic.{name}:env" for name in ("connect_four_v3", "leduc_holdem_v4", "rps_v2", "go_v5")),
    *(f"pettingzoo.classic.{name}:env" for name in ("texas_holdem_v4", "texas_holdem_no_limit_v6")),
    "pettingzoo.butterfly.pistonball_v6:parallel_env",
    "pettingzoo.sisl.pursuit_v5:env",
    "CliffWalkingSlippery-v1",
)
FAULTY = {  # published environments
    "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env": "seed",  # of its timer
    "pettingzoo.butterfly.cooperative_pong_v6:parallel_env": "constant_observations",  # black without a render mode
}


@pytest.mark.parametrize("make", [Walk, Two, Paid, FixedHorizon, RandomBudgets, ObservedBudgets, GoalAtStart])
def test_examine_sound_test_environment_has_no_findings(make: Any) -> None:
    assert examine(make()) == []


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize("name", [*CLASSIC, *TOYS, *GAMES])
def test_examine_sound_environment_has_no_findings(name: str) -> None:
    assert examine(name, num_steps=1000) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")
@pytest.mark.parametrize("name", [*CLASSIC, *TOYS, *GAMES, *MORE])
def test_examine_4000_sound_steps_has_no_findings(name: str) -> None:
    assert examine(name) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize(("name", "kind"), FAULTY.items())
def test_examine_published_faulty_environment_is_named(name: str, kind: str) -> None:
    assert [finding.kind for finding in examine(name, num_steps=1000)] == [kind]


def test_examine_wrong_autoreset_mode_is_named() -> None:
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs=same_step)
    assert examine(env) == []
    env.metadata = env.metadata | {"autoreset_mode": AutoresetMode.NEXT_STEP}  # wrong
    assert [finding.kind for finding in examine(env)] == ["autoreset"]
    env.close()


def test_examine_ragged_items_and_flags_are_findings() -> None:
    class Ragged(Walk):
        def seen(self) -> Any:
            return [[1.0], [2.0, 3.0]]

    class FlagsOfSeveral(Walk):
        def answer(self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
            return observation, reward, np.array([terminated, terminated]), truncated, info

    class NoSpace(Walk):
        observation_space = "Box(3)"

    assert "shape" in kinds(Ragged())
    assert kinds(FlagsOfSeveral()) == ["flag_type"]
    assert kinds(NoSpace()) == ["outside_space"]


def test_examine_vector_env_that_raises_is_a_finding() -> None:
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    env.metadata = env.metadata | {"autoreset_mode": "sometimes"}
    assert kinds(env) == ["autoreset"]
    env.close()

    class Raises(gym.vector.VectorEnv):
        num_envs, metadata = 1, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        single_observation_space = observation_space = single_action_space = action_space = spaces.Discrete(2)

        def reset(self, **reset_options: Any) -> Any:
            raise OSError("no simulator")

    assert [str(finding).splitlines()[0] for finding in examine(Raises())] == ["error: OSError: no simulator"]


@pytest.mark.parametrize("api", ["parallel", "turns"])
def test_examine_environment_without_agents_returns(api: str) -> None:
    class Empty:
        possible_agents: Any = ()
        agents: Any = ()

        def reset(self, seed: int | None = None) -> Any:
            return {}, {}

        def step(self, actions: Any) -> Any:
            raise NotImplementedError

    env = Empty()
    if api == "turns":
        env.agent_iter = None  # type: ignore[attr-defined]
    assert kinds(env) == ["step_result"]


# --- data -------------------------------------------------------------------------------------------------------------


def walked(seed: int = 0, num: int = 12) -> list[dict[str, Any]]:
    """Return sound episodes as columns."""
    env, played = Walk(), []
    env.action_space.seed(seed)
    for n in range(num):
        observation, _ = env.reset(seed=seed if not n else None)
        rows = [[observation], [], [], [], []]
        while not (rows[3] and (rows[3][-1] or rows[4][-1])):
            action = env.action_space.sample()
            answer = env.step(action)
            for column, item in zip(rows, (answer[0], action, *answer[1:4]), strict=True):
                column.append(item)
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        played.append(dict(zip(names, map(np.asarray, rows), strict=True)))
    return played


def as_episode(columns: dict[str, Any], **facts: Any) -> SingleAgentEpisode:
    flags = {"terminated": bool(columns["terminations"][-1]), "truncated": bool(columns["truncations"][-1])}
    arrays = (columns[name] for name in ("observations", "actions", "rewards"))
    return SingleAgentEpisode.from_arrays(*arrays, **(flags | facts))


def kinds(subject: Any) -> list[str]:
    return [finding.kind for finding in examine(subject)]


def test_examine_sound_data_has_no_findings(tmp_path: Path) -> None:
    episodes = [as_episode(columns) for columns in walked()]
    assert kinds(walked()) == kinds(episodes) == kinds(EpisodePack.from_episodes(episodes)) == []
    assert kinds(episodes[0]) == kinds([]) == kinds([SingleAgentEpisode()]) == []
    assert kinds([part for episode in episodes for part in (episode[:5], episode[5:])]) == []
    several = MultiAgentEpisode(
        observations=[{"a": 0.0, "b": 1.0}, {"a": 1.0}], actions=[{"a": 1, "b": 0}], rewards=[{"a": 1.0}]
    )
    assert kinds(several) == []


def reset_rows_as_steps() -> list[dict[str, Any]]:
    """Return rows of next-step autoreset in which resets were stored as steps."""
    columns = walked()
    for before, after in itertools.pairwise(columns):
        after["observations"] = np.concatenate([before["observations"][-1:], after["observations"]])
        after["rewards"] = np.concatenate([[0.0], after["rewards"]])
        after["actions"] = np.concatenate([[1], after["actions"]])
    return columns


@pytest.mark.parametrize(
    ("make", "kind", "episode", "step"),
    [
        (reset_rows_as_steps, "ignored_action", 1, 0),
        (
            lambda: [columns | {"observations": columns["observations"][:-1]} for columns in walked()],
            "missing_last_observation",
            0,
            None,
        ),
        (
            lambda: [as_episode(columns, id_=str(i)) for i, columns in enumerate([*walked(), walked()[0]])],
            "duplicate_episode",
            "12",
            None,
        ),
        (
            lambda: [as_episode(walked()[0], id_="walk")[part] for part in (slice(4), slice(6, None))],
            "clock_jump",
            "walk",
            0,
        ),
        (
            lambda: [walked()[0] | {"terminations": np.arange(len(walked()[0]["rewards"])) == 3}],  # several as one
            "ignored_action",
            0,
            4,
        ),
    ],
)
def test_examine_faulty_data_are_named(make: Callable[[], Any], kind: str, episode: Any, step: int | None) -> None:
    (finding,) = examine(make())
    assert (finding.kind, finding.episode, finding.step) == (kind, episode, step)


def test_examine_unusual_observations_are_accepted() -> None:
    for unusual in ({"x": 1, "t": np.zeros(2)}, "words", (True, {"y": None})):
        episode = SingleAgentEpisode(
            observations=[unusual] * 3, actions=[0, 1], rewards=[0.0, 1.0], len_lookback_buffer=1
        )
        assert kinds(episode) == []
    unlike = [{"a": np.zeros(2), "b": np.zeros(3)}] * 2
    assert (
        kinds(MultiAgentEpisode(observations=unlike, actions=[{"a": 1, "b": 0}], rewards=[{"a": 1.0, "b": 0.0}])) == []
    )
    assert kinds(MultiAgentEpisode()) == kinds({"observations": np.zeros((0, 3)), "actions": [], "rewards": []}) == []


def test_examine_reads_all_steps_for_cheap_checks() -> None:
    rewards = np.ones(10_000)
    rewards[5000] = np.nan
    episode = SingleAgentEpisode.from_arrays(np.arange(10_001.0), np.arange(10_000), rewards, terminated=True)
    findings = examine(episode, num_steps=100)
    assert [(finding.kind, finding.step) for finding in findings] == [("not_finite", 5000)]
    assert (findings.num_steps, findings.num_checked) == (10_000, 100)
    assert findings.extent == "10,000 steps, the first 100 of them in detail"


def test_examine_wrong_subject_is_rejected() -> None:
    unlike = {"observations": {"a": np.zeros(3), "b": np.zeros(2)}, "rewards": np.zeros(2)}
    fewer = {"observations": np.zeros(4), "actions": np.zeros(2), "rewards": np.zeros(3)}
    names = ("no-such-environment", "no.such.module:env", ":", "os:system", "a" * 1000)
    for nonsense in (3, [3], {"rewards": [1.0]}, {"observations": 1, "rewards": 2}, unlike, fewer, Walk, *names):
        with pytest.raises(InvalidArgument):
            examine(nonsense)


# --- planted defects in data sets -------------------------------------------------------------------------------------


def as_chunk(episode: SingleAgentEpisode, id_: str | None = None, **changed: np.ndarray) -> SingleAgentEpisode:
    """Return a copy of an episode with other arrays."""
    names = ("observations", "actions", "rewards")
    arrays = {name: changed.get(name, getattr(episode, f"get_{name}")()) for name in names}
    return SingleAgentEpisode.from_arrays(
        *arrays.values(),
        id_=id_ or episode.id_,
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
    )


def paid_episodes(num: int = 150) -> list[SingleAgentEpisode]:
    """Return sound episodes of more than 4,000 steps whose rewards depend on observations and actions."""
    env = Paid()
    env.action_space, episodes = spaces.Discrete(2, seed=3), []
    for n in range(num):
        episode = SingleAgentEpisode(str(n), observation_space=env.observation_space, action_space=env.action_space)
        episode.add_env_reset(env.reset(seed=n)[0])
        while not episode.is_done:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            reward += 2.0 * action
            episode.add_env_step(observation, action, reward, terminated=terminated, truncated=truncated)
        episodes.append(episode.to_numpy())
    return episodes


def changed_at(array: np.ndarray, at: tuple[int, int], value: float) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


PLANTED: dict[str, tuple[str, Callable[[list[SingleAgentEpisode]], list[SingleAgentEpisode]]]] = {
    "late NaN": (
        "not_finite",
        lambda e: [*e[:-1], as_chunk(e[-1], observations=changed_at(e[-1].get_observations(), (7, 1), np.nan))],
    ),
    "late number outside": (
        "outside_space",
        lambda e: [*e[:-1], as_chunk(e[-1], observations=changed_at(e[-1].get_observations(), (3, 0), 40.0))],
    ),
    "actions outside": (
        "action_outside_space",
        lambda e: [*e[:-1], as_chunk(e[-1], actions=e[-1].get_actions() * 3)],
    ),
    "rewards late": (
        "reward_shift",
        lambda e: [as_chunk(episode, rewards=np.append(0.0, episode.get_rewards()[:-1])) for episode in e],
    ),
    "rewards early": (
        "reward_shift",
        lambda e: [as_chunk(episode, rewards=np.append(episode.get_rewards()[1:], 0.0)) for episode in e],
    ),
    "episode twice": ("duplicate_episode", lambda e: [*e, as_chunk(e[-3], id_="copy")]),
    "chunk lost": ("clock_jump", lambda e: [*e[:-1], e[-1][:4], e[-1][6:]]),
}


@pytest.fixture(scope="module")
def sound_episodes() -> list[SingleAgentEpisode]:
    return paid_episodes()


@pytest.mark.parametrize("name", PLANTED)
def test_examine_defect_of_a_data_set_is_named(name: str, sound_episodes: Any, tmp_path: Path) -> None:
    kind, plant = PLANTED[name]
    assert sum(map(len, sound_episodes)) > 4000
    assert kinds(write(tmp_path, plant(sound_episodes))) == [kind]


def test_examine_sound_data_set_is_read_whole(sound_episodes: Any, tmp_path: Path) -> None:
    findings = examine(write(tmp_path, sound_episodes))
    assert findings == []
    assert findings.num_steps == sum(map(len, sound_episodes))


@pytest.mark.parametrize("damage", ["flipped bits", "truncated"])
def test_examine_damaged_file_of_a_data_set_is_named(sound_episodes: Any, tmp_path: Path, damage: str) -> None:
    (shard,) = write(tmp_path, sound_episodes).glob("*.arrow")
    content = bytearray(shard.read_bytes())
    if damage == "truncated":
        del content[-100:]
    else:
        middle = slice(len(content) // 2, len(content) // 2 + 64)
        content[middle] = bytes(byte ^ 255 for byte in content[middle])
    shard.write_bytes(content)
    (finding,) = [finding for finding in examine(tmp_path) if finding.kind == "damage"]
    assert shard.stem in finding.evidence
    assert "episodes check" in finding.advice


def test_doctor_command_has_exit_statuses_and_json(tmp_path: Path) -> None:
    def run(*words: object) -> Any:
        return CliRunner().invoke(app, ["doctor", *map(str, words)])

    result = run("CartPole-v1", "--steps", "300")
    assert (result.exit_code, result.output) == (0, "CartPole-v1: no findings in 300 steps\n")
    assert run("NoSuchPole-v9").exit_code == 2
    twice = [as_episode(columns) for columns in walked()]
    data = write(tmp_path / "twice", [*twice, as_chunk(twice[0], id_="copy")])
    findings = run(data, "--json")
    assert findings.exit_code == 1, findings.output
    assert [finding["kind"] for finding in json.loads(findings.output)] == ["duplicate_episode"]
    assert "harm: the same steps count twice" in run(data).output


def talks(num: int = 40) -> list[SingleAgentEpisode]:
    """Return conversations with prompts, replies and turns of many lengths, of which the last two replies are empty."""
    rng, episodes = np.random.default_rng(0), []
    for k in range(num):
        talk = Conversation(f"e{k}", group=k // 4)
        talk.begin(rng.integers(0, 99, rng.integers(1, 9)))
        num_turns = int(rng.integers(2, 6))
        for t in range(num_turns):
            ids = rng.integers(0, 99, rng.integers(1, 9))
            reply = [] if t >= num_turns - 2 else rng.integers(0, 99, rng.integers(1, 9))
            talk.turn(ids, reply, float(t), terminated=t == num_turns - 1, logp=-rng.random(len(ids)))
        episodes.append(talk.episode)
    return episodes


def nested_ragged(dtype: Any = np.float32, width: int = 2) -> list[SingleAgentEpisode]:
    """Return episodes with observations of points of many lengths and a fixed part, which changes in the last one."""
    rng, episodes = np.random.default_rng(0), []
    for k in range(6):
        episode = SingleAgentEpisode(f"e{k}", ragged={"observations": {"points": "f4"}})
        for t in range(7):
            fixed = rng.normal(size=width if k == 5 else 2).astype(dtype if k == 5 else np.float32)
            observation = {"points": rng.normal(size=rng.integers(0, 5)).astype(np.float32), "fixed": fixed}
            if t:
                episode.add_env_step(observation, t, rng.normal(), terminated=t == 6)
            else:
                episode.add_env_reset(observation)
        episodes.append(episode)
    return episodes


def columns_of(episodes: list[SingleAgentEpisode]) -> list[dict[str, Any]]:
    arrays = [episode.to_numpy() for episode in episodes]
    return [{"observations": e.get_observations(), "rewards": e.get_rewards()} for e in arrays]


def stored(episodes: list[SingleAgentEpisode], path: Path) -> Any:
    with EpisodeWriter(str(path)) as writer:
        for episode in episodes:
            writer.add(episode)
    return EpisodeDataset(str(path))


RAGGED = {"talks": talks, "nested": nested_ragged}
SOURCES: dict[str, Callable[[list[SingleAgentEpisode], Path], Any]] = {
    "growing": lambda episodes, path: episodes,
    "arrays": lambda episodes, path: [episode.to_numpy() for episode in episodes],
    "pack": lambda episodes, path: EpisodePack.from_episodes(episodes),
    "columns": lambda episodes, path: columns_of(episodes),
    "data set": stored,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("track", RAGGED)
def test_examine_ragged_observations_finds_nothing(track: str, source: str, tmp_path: Path) -> None:
    assert examine(SOURCES[source](RAGGED[track](), tmp_path)) == []


@pytest.mark.parametrize("source", SOURCES)
def test_examine_ragged_observations_finds_nan_and_copies(source: str, tmp_path: Path) -> None:
    """The first two episodes differ in the values of one observation only, and an episode that is long has a NaN."""
    rng, episodes = np.random.default_rng(0), []
    for k in range(4):
        episode = SingleAgentEpisode(f"e{k}", ragged={"observations": "f4"})
        for t in range(9):
            points = np.arange(2000 if t == 3 else t, dtype=np.float32)
            points[1234:1235] = 5 if k == 1 else np.nan if k == 2 else 0
            points = rng.normal(size=t).astype(np.float32) if k == 3 else points
            if t:
                episode.add_env_step(points, t, float(t), terminated=t == 8)
            else:
                episode.add_env_reset(points)
        episodes.append(episode)
    findings = {finding.kind: finding for finding in examine(SOURCES[source](episodes, tmp_path), num_steps=5)}
    assert set(findings) == {"not_finite"}
    assert (findings["not_finite"].episode, findings["not_finite"].step) in (("e2", 3), (2, 3))
    twice = [*episodes[:2], SingleAgentEpisode.from_arrays(**arrays_of(episodes[0]), id_="copy")]
    assert [finding.kind for finding in examine(SOURCES[source](twice, tmp_path / "b"))] == ["duplicate_episode"]


def arrays_of(episode: SingleAgentEpisode) -> dict[str, Any]:
    arrays = episode.to_numpy()
    names = ("observations", "actions", "rewards")
    return {name: getattr(arrays, f"get_{name}")() for name in names} | {"terminated": True}


def test_examine_nested_ragged_observations_finds_other_parts() -> None:
    (finding,) = examine(nested_ragged(np.float64))
    assert (finding.kind, finding.episode) == ("dtype", "e5")
    (finding,) = examine(nested_ragged(width=3))
    assert (finding.kind, finding.episode) == ("shape", "e5")


@pytest.mark.parametrize("source", SOURCES)
def test_findings_of_numbers_name_each_track(source: str, tmp_path: Path) -> None:
    observations = {"arm": np.ones((5, 2), np.float32), "eye": np.ones((5, 1), np.float32)}
    observations["arm"][[1, 2], 0], observations["eye"][3], rewards = np.nan, np.inf, np.array([0, np.inf, 0, 0])
    episode = SingleAgentEpisode.from_arrays(observations, np.zeros(4), rewards, id_="e")
    found = {finding.track: finding for finding in examine(SOURCES[source]([episode], tmp_path))}
    assert {track: (finding.kind, finding.times, finding.step) for track, finding in found.items()} == {
        "observation/arm": ("not_finite", 2, 1),
        "observation/eye": ("not_finite", 1, 3),
        "reward": ("not_finite", 1, 1),
    }


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("numbers", [["NaN"], ["inf", "NaN"], ["-inf", "NaN", "NaN"], ["NaN", "inf", "-inf", "inf"]])
def test_findings_of_numbers_count_each_kind(source: str, numbers: list[str], tmp_path: Path) -> None:
    rewards = np.array([float(number) for number in numbers] + [1.0])
    episode = SingleAgentEpisode.from_arrays(np.zeros(len(rewards) + 1), np.zeros(len(rewards)), rewards, id_="e")
    (finding,) = (found for found in examine(SOURCES[source]([episode], tmp_path)) if found.kind == "not_finite")
    words = finding.evidence.partition("; in all ")
    assert words[0] == f"reward has {numbers[0]}"
    counts = {name: numbers.count(name) for name in numbers}
    assert words[2] == (", ".join(f"{num} {name}" for name, num in counts.items()) if len(counts) > 1 else "")


PAIR = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0, 5, (2,)))
ANY_KIND: dict[str, Any] = {
    "Box": spaces.Box(0, 5, (2,)),
    "Discrete": spaces.Discrete(3, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete(np.array([[3, 4], [2, 5]]), start=np.array([[1, -9], [0, 100]])),
    "MultiBinary": spaces.MultiBinary((2, 3)),
    "Text": spaces.Text(4),
    "Dict": PAIR,
    "Tuple": spaces.Tuple([spaces.Discrete(2), PAIR]),
    "Sequence": spaces.Sequence(PAIR),
    "stacked Sequence": spaces.Sequence(PAIR, stack=True),
    "Graph": spaces.Graph(spaces.Box(0, 5, (2,)), spaces.Discrete(3)),
    "OneOf": spaces.OneOf([PAIR, spaces.Text(3)]),
}
STRANGE = [None, 5.5, "a word", {}, {"a": np.zeros(1, int)}, (), (7,), np.zeros((2, 9)), np.array(["a"]), object()]


@pytest.mark.parametrize("kind", ANY_KIND)
def test_items_of_other_types_than_their_space_are_outside(kind: str) -> None:
    """Also where Gymnasium's own `contains` raises an error."""
    space, num_raised = ANY_KIND[kind], 0
    for item in STRANGE:
        try:
            expected = space.contains(item)
        except Exception:
            expected, num_raised = False, num_raised + 1
        assert contains(space, item) == expected
        assert (not [*_space_mismatches(space, item, "observation")]) == expected, item
    assert all(contains(space, space.sample()) for _ in range(5))
    assert num_raised or "stacked" not in kind


@pytest.mark.parametrize("name", ["logp", "trainer_logp"])
@pytest.mark.parametrize(("number", "is_found"), [(0.25, True), (0.005, False), (-0.25, False)])
def test_examine_names_probabilities_of_tokens_above_1(
    name: str, number: float, is_found: bool, tmp_path: Path
) -> None:
    episode = SingleAgentEpisode("a", ragged={"observations": "i4", "actions": "i4", name: "f4"})
    episode.add_env_reset([1])
    episode.add_env_step([2], [3], 0.0, extra_model_outputs={name: [-0.5]})
    episode.add_env_step([4], [5, 6], 0.0, extra_model_outputs={name: [-0.5, number]}, terminated=True)
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add([episode])
    found = [one for one in examine(EpisodeDataset(tmp_path / "data")) if one.kind == "probability_above_1"]
    assert [(one.step, one.track, one.evidence) for one in found] == [
        (1, name, f"{name} is 0.25, at most 0"),
    ] * is_found


def test_examine_does_not_name_log_densities_above_0(tmp_path: Path) -> None:
    steps = np.arange(6.0)
    plain = SingleAgentEpisode.from_arrays(
        np.arange(7.0), steps, steps, extra_model_outputs={"logp": steps}, terminated=True
    )
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add([plain])
    assert "probability_above_1" not in {one.kind for one in examine(EpisodeDataset(tmp_path / "data"))}

"""An episode stepped by hand is whole whatever breaks a call off: as before it, or as after it, and it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from episodes.multi_agent import MultiAgentEpisode
from episodes.multi_agent.agents import Agents
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos.kinds import same_info
from tests.interrupts import Breaking

ROOMS = (  # not those of functions of arrays, which change nothing
    "/episodes/multi_agent/",
    "/episodes/single_agent/",
    "/episodes/tracks/finishing.py",
    "/episodes/tracks/track.py",
    "/episodes/tracks/tracks.py",
)


def seen(episode: Any) -> Any:
    """All that there is of an episode but seconds and modules asked for, and whether its clock runs."""
    state = {name: value for name, value in episode.get_state().items() if name not in ("duration_s", "modules")}
    lines = [] if isinstance(episode, SingleAgentEpisode) else episode.agents.timelines.values()
    growing = [line.episode.is_numpy for line in lines]
    for agent in state.get("agents", {}).values():
        agent["episode"].pop("duration_s")
    return state, growing, episode._began is None


def modules(episode: Any) -> Any:
    return episode.get_state().get("modules")


def same(a: Any, b: Any) -> bool:
    return same_info(list(a), list(b))


# --- several agents: a1 comes late, a2 rests at times and acts without an observation, a3 ends early ----------------


def value(agent: str, t: int) -> np.ndarray:
    return np.array([t, int(agent[1])], np.float32)


def outputs(agents: Any, t: int) -> dict[str, Any]:
    return {agent: {"logp": float(t), "state": np.full(2, t)} for agent in agents}


STEPS: list[dict[str, Any]] = [  # of env step 1 on
    {"observed": "a0 a3", "acted": "a0 a2 a3", "paid": "a0 a2 a3", "told": "a2 __common__"},
    {"observed": "a0 a1 a3", "acted": "a0 a3", "paid": "a0 a1 a2 a3 a9", "told": "a0 a9"},
    {"observed": "a0 a2", "acted": "a0 a1", "paid": "a0 a2 a1 a3", "told": "", "terminated": "a3"},
    {"observed": "a1 a4", "acted": "a0", "paid": "a0 a1 a2 a3 a4", "told": "a4", "terminated": "a2 a4"},
    {"observed": "a0 a1", "acted": "a1", "paid": "a0 a1 a4", "told": "a1"},
    {"observed": "a1", "acted": "a0 a1", "paid": "a0 a1", "told": "a0", "truncated": "__all__"},
]


def reset(episode: MultiAgentEpisode) -> None:
    agents = ("a0", "a2", "a3")
    episode.add_env_reset(
        observations={agent: value(agent, 0) for agent in agents}, infos={"a0": {"x": 1}, "a7": {"y": 2}}
    )


def step(episode: MultiAgentEpisode, t: int) -> None:
    told = STEPS[t - 1]
    acted = told["acted"].split()
    episode.add_env_step(
        {agent: value(agent, t) for agent in told["observed"].split()},
        dict.fromkeys(acted, t),
        {agent: t + 0.1 * int(agent[1]) for agent in told["paid"].split()},
        {agent: {"t": t} for agent in told["told"].split()},
        terminateds=dict.fromkeys(told.get("terminated", "").split(), True),
        truncateds=dict.fromkeys(told.get("truncated", "").split(), True),
        extra_model_outputs=outputs(acted, t),
    )


def grown(num_steps: int) -> MultiAgentEpisode:
    """An episode of so many env steps; -1 for one that is not reset."""
    episode = MultiAgentEpisode("game", missing_final_observation="repeat")
    if num_steps >= 0:
        reset(episode)
    for t in range(1, num_steps + 1):
        step(episode, t)
    return episode


def joinable(num_steps: int, *, finished: bool) -> tuple[MultiAgentEpisode, MultiAgentEpisode]:
    """A chunk, and the one that follows it."""
    first = grown(num_steps)
    first.custom_data["first"], first.agents.timelines["a0"].episode.custom_data["own"] = 1, 2
    second = first.cut(2)
    for t in range(num_steps + 1, len(STEPS)):
        step(second, t)
    second.custom_data["second"] = 3
    return (first.to_numpy() if finished else first), second


class Scene:
    """An episode, a call, and what comes after it."""

    def __init__(self, episode: Any, call: Callable[[], Any], go_on: Callable[[], Any]) -> None:
        self.episode, self.call, self.go_on = episode, call, go_on


def stepping(t: int) -> Callable[[], Scene]:
    def make() -> Scene:
        episode = grown(t - 1)
        return Scene(
            episode,
            (lambda: step(episode, t)) if t else (lambda: reset(episode)),
            lambda: [step(episode, later) for later in range(t + 1, len(STEPS) + 1)],
        )

    return make


def joining(num_steps: int, *, finished: bool) -> Callable[[], Scene]:
    def make() -> Scene:
        episode, second = joinable(num_steps, finished=finished)
        last = len(STEPS)
        go_on: Callable[[], Any] = (lambda: None) if finished else lambda: step(episode, last)
        return Scene(episode, lambda: episode.concat_episode(second), go_on)

    return make


def finishing() -> Scene:
    episode = grown(3)
    return Scene(episode, episode.to_numpy, lambda: None)


SCENES: dict[str, Callable[[], Scene]] = {
    "reset": stepping(0),
    **{f"step {t}": stepping(t) for t in range(1, len(STEPS) + 1)},
    **{f"concat at {t}": joining(t, finished=False) for t in (0, 1, 4)},
    **{f"concat of arrays at {t}": joining(t, finished=True) for t in (0, 3)},
    "to_numpy": finishing,
}


def breaking(error: type[BaseException], at: int, *later: int) -> Breaking:
    return Breaking(error, at, *later, rooms=ROOMS, where_signals_come=True)


def moments(make: Callable[[], Scene], most: int | None = None) -> list[int]:
    """All moments at which a signal may come, or so many of them."""
    counting = breaking(KeyboardInterrupt, -1)
    counting.run(make().call)
    num = counting.num_seen
    return np.linspace(1, num, min(num, most or num)).astype(int).tolist()


def check(make: Callable[[], Scene], error: type[BaseException], most: int | None = 60) -> None:
    """It is as before or as after, whenever the error comes, and goes on as if none had come."""
    make().call()  # what is remembered between calls is, from here on
    whole = make()
    before = seen(whole.episode)
    whole.call()
    after = seen(whole.episode)
    whole.go_on()
    later = seen(whole.episode)
    for at in moments(make, most):
        scene = make()
        assert breaking(error, at).run(scene.call), at
        found = seen(scene.episode)
        assert same(found, before) or same(found, after), at
        if not same(found, after):
            scene.call()
        scene.go_on()
        assert same(seen(scene.episode), later), at
        assert modules(scene.episode) == modules(whole.episode)
        scene.episode.validate()


def check_comes_again(make: Callable[[], Scene]) -> None:
    """It is as before or as after, whenever an interrupt comes; called again, it gives what it would have given."""
    whole = make()
    before, expected = seen(whole.episode), seen(whole.call())
    after = seen(whole.episode)
    for at in moments(make):
        scene = make()
        assert breaking(KeyboardInterrupt, at).run(scene.call)
        found = seen(scene.episode)
        assert same(found, before) or same(found, after), at
        assert same(seen(scene.call()), expected), at
        assert same(seen(scene.episode), after), at


@pytest.mark.parametrize("make", SCENES.values(), ids=SCENES)
def test_a_call_of_several_agents_is_whole_whenever_a_signal_breaks_it_off(make: Callable[[], Scene]) -> None:
    check(make, KeyboardInterrupt, most=200)


@pytest.mark.parametrize("make", SCENES.values(), ids=SCENES)
def test_a_call_of_several_agents_is_whole_whenever_memory_runs_out(make: Callable[[], Scene]) -> None:
    check(make, MemoryError, most=15)


@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize("times", [1, 2])
def test_a_cut_of_several_agents_can_come_again_whenever_it_is_broken_off(lookback: int, times: int) -> None:
    def make() -> Scene:
        episode = grown(4)
        if times == 2:
            episode.cut()
        return Scene(episode, lambda: episode.cut(lookback), lambda: None)

    check_comes_again(make)


def test_a_second_interrupt_while_a_step_is_brought_to_its_end_takes_nothing_from_it() -> None:
    make = stepping(3)
    whole = make()
    before = seen(whole.episode)
    whole.call()
    after = seen(whole.episode)
    rng, outcomes = np.random.default_rng(0), []
    for at in moments(make):
        scene = make()
        again = rng.integers(12, 200, 2).tolist()  # after the few moments between the first and who takes care of it
        breaking(KeyboardInterrupt, at, *again).run(scene.call)
        found = seen(scene.episode)
        assert same(found, before) or same(found, after), (at, again)
        outcomes.append(same(found, after))
    assert set(outcomes) == {False, True}


def test_what_is_broken_off_again_and_again_tells_that_the_episode_may_not_be_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out_of_memory(*step: Any) -> None:
        raise MemoryError

    episode = grown(2)
    monkeypatch.setattr(Agents, "keep_rewards", out_of_memory)  # of a step, and of what brings it to its end
    with pytest.raises(MemoryError) as caught:
        step(episode, 3)
    assert caught.value.__notes__ == [
        "what it broke off could not be brought to its end, nor taken back: the episode may be half changed"
    ]


def test_a_mapping_function_that_fails_leaves_the_episode_as_it_was() -> None:
    answers: list[Any] = ["left", "left", "left"]

    def mapping(agent_id: Any, episode: Any) -> Any:
        return answers.pop()

    episode = MultiAgentEpisode("game", agent_to_module_mapping_fn=mapping)
    reset(episode)
    step(episode, 1)
    before = seen(episode)
    with pytest.raises(IndexError):
        step(episode, 2)
    assert same(seen(episode), before)
    answers.append("right")
    step(episode, 2)
    assert episode.module_for("a1") == "right"
    assert episode.env_t == 2


# --- one agent ------------------------------------------------------------------------------------------------------


def single(num_steps: int, *, extra: bool = False, t_started: int = 0) -> SingleAgentEpisode:
    episode = SingleAgentEpisode("e", t_started=t_started)
    if num_steps >= 0:
        episode.add_env_reset(np.full(2, t_started), {"t": t_started})
    for t in range(t_started + 1, t_started + num_steps + 1):
        single_step(episode, t, extra=extra)
    return episode


def single_step(episode: SingleAgentEpisode, t: int, *, extra: bool = False, **more: Any) -> None:
    given = {"logp": float(t), "state": {"h": np.full(2, t)}, "vf": t} if extra else None
    episode.add_env_step(np.full(2, t), t, float(t), {"t": t} if t % 2 else None, extra_model_outputs=given, **more)


def one_step(num_steps: int, *, extra: bool, **more: Any) -> Callable[[], Scene]:
    def make() -> Scene:
        episode = single(num_steps, extra=extra)
        call = lambda: single_step(episode, num_steps + 1, extra=extra, **more)  # noqa: E731
        ends = more.get("terminated") or more.get("truncated")
        go_on = (lambda: None) if ends else (lambda: single_step(episode, num_steps + 2, extra=extra))
        return Scene(episode, call, go_on)

    return make


def first_of_a_chunk() -> Scene:
    episode = single(3, extra=True).cut()
    return Scene(episode, lambda: single_step(episode, 4, extra=True), lambda: single_step(episode, 5, extra=True))


def one_reset() -> Scene:
    episode = SingleAgentEpisode("e")
    return Scene(
        episode, lambda: episode.add_env_reset(np.zeros(2), {"t": 0}), lambda: single_step(episode, 1, extra=True)
    )


def one_joining(num_steps: int, *, finished: bool) -> Callable[[], Scene]:
    def make() -> Scene:
        first = single(num_steps, extra=True)
        first.custom_data["first"] = 1
        second = first.cut(1)
        single_step(second, num_steps + 1, extra=True, policy_version=3)
        second.custom_data["second"] = 2
        first = first.to_numpy() if finished else first
        go_on = (lambda: None) if finished else (lambda: single_step(first, num_steps + 2, extra=True))
        return Scene(first, lambda: first.concat_episode(second), go_on)

    return make


def writing(write: Callable[[SingleAgentEpisode], None], *, finished: bool) -> Callable[[], Scene]:
    def make() -> Scene:
        episode = single(4, extra=True)
        episode = episode.to_numpy() if finished else episode
        go_on = (lambda: None) if finished else (lambda: single_step(episode, 5, extra=True))
        return Scene(episode, lambda: write(episode), go_on)

    return make


WRITES: dict[str, Callable[[SingleAgentEpisode], None]] = {
    "rewards": lambda e: e.set_rewards(new_data=[9.0, 8.0], at_indices=[0, 2]),
    "observations": lambda e: e.set_observations(new_data=np.full(2, 7), at_indices=-1),
    "actions": lambda e: e.set_actions(new_data=[5, 6, 7, 8]),
    "an output": lambda e: e.set_extra_model_outputs(key="vf", new_data=[1, 2], at_indices=slice(0, 2)),
    "versions": lambda e: setattr(e, "policy_versions", 4),
}
ONES: dict[str, Callable[[], Scene]] = {
    "reset": one_reset,
    "a step": one_step(3, extra=False),
    "the first step": one_step(0, extra=True),
    "a step with outputs": one_step(3, extra=True),
    "the first step of a chunk": first_of_a_chunk,
    "a last step": one_step(3, extra=True, terminated=True),
    "a first and last step": one_step(0, extra=True, truncated=True),
    "a step of a version": one_step(2, extra=False, policy_version=7),
    "to_numpy": lambda: (lambda e: Scene(e, e.to_numpy, lambda: None))(single(4, extra=True)),
    **{f"concat at {t}": one_joining(t, finished=False) for t in (0, 3)},
    **{f"concat of arrays at {t}": one_joining(t, finished=True) for t in (0, 3)},
    **{f"writing {name}": writing(write, finished=False) for name, write in WRITES.items()},
    **{f"writing {name} of arrays": writing(write, finished=True) for name, write in WRITES.items()},
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("make", ONES.values(), ids=ONES)
def test_a_call_of_one_agent_is_whole_whatever_breaks_it_off(
    make: Callable[[], Scene], error: type[BaseException]
) -> None:
    check(make, error, most=15 if error is MemoryError else None)


def test_a_cut_of_one_agent_can_come_again_whenever_it_is_broken_off() -> None:
    def make() -> Scene:
        episode = single(4, extra=True)
        return Scene(episode, lambda: episode.cut(2), lambda: None)

    check_comes_again(make)

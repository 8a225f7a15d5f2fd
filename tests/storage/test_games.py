"""Data sets of games whose agents differ in spaces and tracks: every place reads them back equal, or refuses them."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import MultiAgentEpisode, SingleAgentEpisode, pack_agents, unpack_agents
from episodes.errors import (
    ChunkMismatch,
    EpisodeError,
    InvalidArgument,
    StepOutOfRange,
    TrackMismatch,
    UnknownKey,
    UnreadableData,
    WrongType,
)
from episodes.storage import (
    EpisodeDataset,
    EpisodeWriter,
    GameDataset,
    add_track,
    check,
    compact,
    copy,
    merge,
    seal,
    upload,
)
from episodes.storage.writer import _KindWriters

SPACES: dict[str, tuple[Any, Any]] = {
    "car": (spaces.Box(-1, 99, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)),
    "bus": (spaces.Box(-1, 99, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)),
    "light": (spaces.Discrete(100), spaces.Discrete(3)),
    "map": (
        spaces.Dict({"image": spaces.Box(0, 255, (4, 4), np.uint8), "t": spaces.Discrete(100)}),
        spaces.Discrete(2),
    ),
}


def item(agent: str, t: int) -> Any:
    """Return the observation of an agent at env step t."""
    if agent == "map":
        return {"image": np.full((4, 4), t, np.uint8), "t": t}
    return t if agent == "light" else np.full(3, t, np.float32)


def action(agent: str, rng: random.Random) -> Any:
    if agent in ("car", "bus"):
        return np.array([rng.random(), 0.5], np.float32)
    return rng.randrange(2)


def game(seed: int, agents: tuple[str, ...] = tuple(SPACES)) -> MultiAgentEpisode:
    """Return a game of up to four agents of three kinds, or a chunk of one: agents come, wait, pause and end."""
    rng = random.Random(seed)
    made = MultiAgentEpisode(
        id_=f"game {seed}",
        observation_space={agent: SPACES[agent][0] for agent in agents},
        action_space={agent: SPACES[agent][1] for agent in agents},
        agent_to_module_mapping_fn=lambda agent, episode: "driver" if agent in ("car", "bus") else agent,
    )
    made.custom_data["seed"] = seed
    first = rng.sample(agents, rng.randint(1, len(agents)))
    made.add_env_reset(observations={agent: item(agent, 0) for agent in first})
    waiting: set[str] = set()
    for t in range(1, rng.randrange(2, 9)):
        acting = {agent for agent in sorted(made.get_agents_to_act()) if rng.random() < 0.8}
        observed = {agent for agent in sorted(waiting | acting) if rng.random() < 0.7}
        observed |= {agent for agent in agents if agent not in made.agent_ids and rng.random() < 0.5}
        waiting = (waiting | acting) - observed
        made.add_env_step(
            {agent: item(agent, t) for agent in sorted(observed)},
            {agent: action(agent, rng) for agent in sorted(acting)},
            dict.fromkeys(sorted(made.agent_ids), 0.5),
            {agent: {"t": t} for agent in sorted(observed)},
            extra_model_outputs={agent: {"logp": float(t)} for agent in sorted(acting) if agent != "map"},
            terminateds={"__all__": True} if t == 7 else None,
        )
        if t == 4 and seed % 3 == 0:
            made = made.cut(2)
    return made


def written(path: Path, games: list[MultiAgentEpisode], *, at_a_time: int = 3, **options: Any) -> Path:
    with EpisodeWriter(path, **options) as writer:
        for start in range(0, len(games), at_a_time):
            writer.add(games[start : start + at_a_time])
    return path


def assert_equal(read: Any, games: list[MultiAgentEpisode]) -> None:
    """Assert that the games are equal and in the same order."""
    read = list(read)
    assert [each.id_ for each in read] == [each.id_ for each in games]
    for one, other in zip(read, games, strict=True):
        assert one.equals(other.to_numpy())


SOME = [game(seed) for seed in range(20)]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 999), min_size=1, max_size=8, unique=True), st.integers(1, 4), st.booleans())
def test_games_are_read_back_equal_in_order(seeds: list[int], at_a_time: int, flushes: bool) -> None:
    games = [game(seed) for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        with EpisodeWriter(path, several_kinds=True) as writer:
            for start in range(0, len(games), at_a_time):
                writer.add(games[start : start + at_a_time])
                if flushes:
                    writer.flush()
        dataset = GameDataset(path)
        assert {each.id_ for each in dataset} == {each.id_ for each in games}
        of_id = {each.id_: each for each in games}
        assert_equal(dataset, [of_id[each.id_] for each in dataset])
        table = dataset.metadata
        assert table["length"].tolist() == [len(of_id[id_]) for id_ in table["id"]]
        assert np.allclose(table["return"], [each.get_return(include_pending=False) for each in dataset])
        assert table["num_agents"].tolist() == [len(each.agent_ids) for each in dataset]
        assert dataset.incomplete == 0
        assert not check(path).problems
        for start in range(0, len(games), at_a_time):  # the games of a call keep their order
            ids = [each.id_ for each in games[start : start + at_a_time]]
            assert [id_ for id_ in table["id"] if id_ in ids] == ids


def test_several_calls_and_processes_keep_the_order(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path) as writer:
        writer.add(SOME[:6])
        writer.add(SOME[6:10])
    written(tmp_path, SOME[10:])
    assert_equal(GameDataset(tmp_path), SOME)


def test_unpack_agents_keeps_the_order_of_several_calls(tmp_path: Path) -> None:
    games = [game(seed, ("car", "bus")) for seed in (1, 2, 4, 5, 7)]
    written(tmp_path, games, at_a_time=2)
    assert_equal(unpack_agents(list(EpisodeDataset(tmp_path).packs())), games)
    assert_equal(GameDataset(tmp_path), games)
    assert not (tmp_path / "kinds").exists()


# --- places -----------------------------------------------------------------------------------------------------------


def compacted(path: Path, folder: Path) -> Any:
    written(path, [game(100)])
    assert compact(path) > 0
    return list(GameDataset(path))[:-1]


def merged(path: Path, folder: Path) -> Any:
    first = written(folder / "first", [game(100)], env_spec="Streets-v0", metadata={"by": "test"})
    assert merge(first, path) > 0
    assert merge(first, path) == 0
    return list(GameDataset(first))[1:]


def copied(path: Path, folder: Path) -> Any:
    assert copy(path, folder / "copy") == len(SOME)
    return GameDataset(folder / "copy")


def copied_selection(path: Path, folder: Path) -> Any:
    assert copy(path, folder / "copy", where="length >= 0 and custom_data/seed < 50") == len(SOME)
    return GameDataset(folder / "copy")


def pickled(path: Path, folder: Path) -> Any:
    return pickle.loads(pickle.dumps(GameDataset(path)))


def unpacked(path: Path, folder: Path) -> Any:
    return unpack_agents([pack for kind in GameDataset(path).kinds for pack in kind.packs()])


def sliced(path: Path, folder: Path) -> Any:
    dataset = GameDataset(path)
    return [*dataset[:5], *dataset.select(np.arange(5, 9)), *dataset.select(lambda rows: np.arange(20) >= 9)]


def converted(path: Path, folder: Path) -> Any:
    from episodes.converters import read, write

    episodes, report = read(path)
    report_of_writing = write(episodes, folder / "converted", "episodes")
    assert not len(report)
    assert not len(report_of_writing)
    return GameDataset(folder / "converted")


def sent(path: Path, folder: Path) -> Any:
    from episodes.transport import EpisodeReceiver, EpisodeSender

    with EpisodeReceiver() as receiver, EpisodeSender(receiver.address) as sender:
        sender.send(list(GameDataset(path)))
        return receiver.recv(timeout=60)


PLACES = [compacted, merged, copied, copied_selection, pickled, unpacked, sliced, converted, sent]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_games_are_equal_after(place: Callable[[Path, Path], Any], tmp_path: Path) -> None:
    path = written(tmp_path / "data", SOME, env_spec="Streets-v0", metadata={"by": "test"})
    result = place(path, tmp_path)
    assert_equal(result, SOME)


REFUSED: dict[str, tuple[Callable[[Path, Path], Any], type[EpisodeError], str]] = {
    "EpisodeDataset": (lambda path, _: EpisodeDataset(path), UnreadableData, "GameDataset"),
    "upload": (lambda path, folder: upload(path, f"file://{folder}/remote"), UnreadableData, "GameDataset"),
    "add_track": (lambda path, _: add_track(path, "label", np.nan), UnreadableData, "GameDataset"),
    "space": (lambda path, _: EpisodeWriter(path, observation_space=spaces.Discrete(2)), InvalidArgument, "leave it"),
    "episode": (lambda path, _: EpisodeWriter(path).add(single()), WrongType, "give multi-agent episodes"),
    "pack": (lambda path, _: EpisodeWriter(path).add(pack_agents(SOME)[0]), WrongType, "give multi-agent episodes"),
    "known chunk": (lambda path, _: EpisodeWriter(path).add(SOME[1:2]), ChunkMismatch, "game 1"),
    "merge of one kind": (lambda path, folder: merge(path, one_kind(folder)), TrackMismatch, "one kind"),
    "merge into one kind": (lambda path, folder: merge(one_kind(folder), path), TrackMismatch, "began with one kind"),
    "merge of known": (lambda path, folder: merge(path, written(folder / "b", SOME[:2])), ChunkMismatch, "prefix"),
    "agent": (lambda path, _: GameDataset(path).agent("bike"), UnknownKey, "'car'"),
    "index": (lambda path, _: GameDataset(path)[20], StepOutOfRange, r"games 0\.\.19"),
    "url": (lambda path, _: GameDataset("s3://a/b"), InvalidArgument, "download"),
    "nothing": (lambda path, folder: GameDataset(folder), UnreadableData, "not a data set"),
    "single": (lambda path, folder: GameDataset(of_singles(folder)), TrackMismatch, "EpisodeDataset"),
}


def single() -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.zeros((3, 3), np.float32), [0, 1], [1.0, 1.0], terminated=True)


def of_singles(folder: Path) -> Path:
    with EpisodeWriter(folder / "single") as writer:
        writer.add([single()])
    return folder / "single"


def one_kind(folder: Path) -> Path:
    return written(folder / "one", [game(1, ("car",))])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_nothing_changes(name: str, tmp_path: Path) -> None:
    call, error, text = REFUSED[name]
    path = written(tmp_path / "data", SOME)
    with pytest.raises(error, match=text):
        call(path, tmp_path)
    assert_equal(GameDataset(path), SOME)


# --- growth -----------------------------------------------------------------------------------------------------------


def test_second_kind_in_data_set_of_one_kind_is_refused_with_remedy(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "a") as writer:
        writer.add([game(1, ("car", "bus"))])
        with pytest.raises(TrackMismatch, match="several_kinds=True"):
            writer.add(SOME)
    assert len(GameDataset(tmp_path / "a")) == 1
    games = [game(1, ("car",)), game(2, ("light",)), game(4)]
    assert_equal(GameDataset(written(tmp_path / "b", games, at_a_time=1, several_kinds=True)), games)


def test_rejected_game_changes_nothing(tmp_path: Path) -> None:
    bad = game(200)
    bad.custom_data["f"] = lambda: 0
    with EpisodeWriter(tmp_path / "data") as writer:
        with pytest.raises(WrongType):
            writer.add([game(1), bad])
        assert not (tmp_path / "data").exists()
        writer.add(SOME)
        with pytest.raises(WrongType):
            writer.add([game(300), bad])
        with pytest.raises(ChunkMismatch):
            writer.add([game(300), SOME[1]])
        writer.add([game(300)])
    assert_equal(GameDataset(tmp_path / "data"), [*SOME, game(300)])


def test_kinds_of_agents_are_ordinary_data_sets(tmp_path: Path) -> None:
    dataset = GameDataset(written(tmp_path, SOME))
    assert len(dataset.kinds) == 3
    for agent, space in SPACES.items():
        part = dataset.agent(agent)
        assert (part.observation_space, part.action_space) == space
        assert part.num_steps == sum(len(each.agent_episodes[agent]) for each in SOME if agent in each.agent_ids)
    drivers = dataset[4:12].module("driver")
    assert {*drivers.metadata["agent_id"]} == {"car", "bus"}
    batch = drivers.sampler(steps=16, seed=0).sample(16)
    assert batch.obs.shape == (16, 3)
    for kind in dataset.kinds:
        assert sorted(map(int, kind.metadata["length"])) == sorted(kind.lengths.tolist())


@pytest.mark.parametrize("agents", [("car", "bus"), ("light",), ("map", "light"), ("light", "map", "car")])
@pytest.mark.parametrize("others", [("bus",), ("light", "car"), ("map", "car", "light")])
def test_two_writers_create_kinds_at_the_same_time(
    agents: tuple[str, ...], others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writer adds its games after the first one has chosen the kinds of its own."""
    first, second = ([game(seed + n, agents) for n in range(2)] for seed, agents in ((0, agents), (50, others)))
    choose = _KindWriters.plan
    with EpisodeWriter(tmp_path, several_kinds=True) as one, EpisodeWriter(tmp_path, several_kinds=True) as other:

        def choose_and_wait(kinds: Any, packs: Any) -> Any:
            result = choose(kinds, packs)
            monkeypatch.undo()
            other.add(second)
            return result

        monkeypatch.setattr(_KindWriters, "plan", choose_and_wait)
        one.add(first)
        one.add([game(99, others)])
    dataset = GameDataset(tmp_path)
    of_id = {each.id_: each for each in [*first, *second, game(99, others)]}
    assert {each.id_ for each in dataset} == {*of_id}
    assert_equal(dataset, [of_id[each.id_] for each in dataset])
    assert not check(tmp_path).problems
    assert len(dataset.kinds) == len({"car" if agent == "bus" else agent for agent in (*agents, *others)})


@pytest.mark.parametrize("shape", [(), (2,), (3,), (3, 1)])
@pytest.mark.parametrize("has_spaces", [False, True])
def test_first_episode_without_steps_fixes_the_observations(shape: Any, has_spaces: bool, tmp_path: Path) -> None:
    """Another writer adds an episode with steps later, which was created before the data set."""

    def of(shape: Any, num_steps: int) -> SingleAgentEpisode:
        space = spaces.Box(0, 1, shape, np.float32) if has_spaces else None
        data = np.zeros((num_steps + 1, *shape), np.float32), np.zeros(num_steps, int), np.zeros(num_steps)
        return SingleAgentEpisode.from_arrays(*data, observation_space=space)

    with EpisodeWriter(tmp_path) as one, EpisodeWriter(tmp_path) as other:
        one.add(of((3,), 0))
        if shape == (3,):
            other.add(of(shape, 2))
        else:
            with pytest.raises(InvalidArgument if has_spaces else TrackMismatch):
                other.add(of(shape, 2))
        one.add(of((3,), 2))
    dataset = EpisodeDataset(tmp_path)
    assert [each.get_observations().shape[1:] for each in dataset] == [(3,)] * len(dataset)
    assert not check(tmp_path).problems


KILLED = """
import os, sys
from pathlib import Path
from episodes.storage import EpisodeWriter
from tests.storage.test_games import SOME, game
writer = EpisodeWriter(sys.argv[1])
writer.add(SOME)
writer.flush()
writer.add([game(100)])
kinds = writer._kinds._writers
kinds[0].flush()
os._exit(1)
"""


def test_killed_writer_leaves_whole_games(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "data")], check=False, cwd=Path(__file__).parents[2])
    with pytest.warns(UserWarning, match="1 games are left out"):
        dataset = GameDataset(tmp_path / "data")
    assert dataset.incomplete == 1
    assert_equal(dataset, SOME)
    assert seal(tmp_path / "data") == 3
    report = check(tmp_path / "data")
    assert not report.problems
    assert any("1 games are left out" in note for note in report.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert copy(tmp_path / "data", tmp_path / "whole") == len(SOME)
    assert not check(tmp_path / "whole").notes
    written(tmp_path / "data", [game(101)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_equal(GameDataset(tmp_path / "data"), [*SOME, game(101)])

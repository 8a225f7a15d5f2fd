"""Two chunks with one id, in every place that joins or compares chunks: the right result, or an error by name.

The chunks are written by two writers that do not see each other, as two processes do, so that each place has to find
out by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import ChunkMismatch, EpisodeStateError
from episodes.facts.chunk_order import ChunkOrder
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, check, compact, merge


def chunk(id_: Any, t: int, num: int, value: float = 0.0, lookback: int = 0, **options: Any) -> SingleAgentEpisode:
    """Return a chunk whose observations are the times plus `value`. Its lookback begins `lookback` steps before."""
    times = np.arange(t - lookback, t + num + 1)
    arrays = times + value, times[:-1], np.ones(num + lookback)
    made = SingleAgentEpisode.from_arrays(*arrays, id_=id_, t_started=t - lookback, **options)
    return made.slice(slice(lookback, None), len_lookback_buffer=lookback)


def with_other(name: str) -> SingleAgentEpisode:
    """Return a chunk that follows at t=5, but whose item at t=3, in its lookback, is another one."""
    times = np.arange(2, 11)
    arrays = {"observations": times + 0.0, "actions": times[:-1].copy(), "rewards": np.ones(8)}
    arrays[name][1] += 50
    return SingleAgentEpisode.from_arrays(*arrays.values(), id_="a", t_started=2).slice(
        slice(3, None), len_lookback_buffer=3
    )


PAIRS: dict[str, tuple[SingleAgentEpisode, SingleAgentEpisode]] = {
    "follows": (chunk("a", 0, 5), chunk("a", 5, 5, terminated=True)),
    "follows with lookback": (chunk("a", 0, 5), chunk("a", 5, 5, lookback=3, terminated=True)),
    "later first": (chunk("a", 5, 5, terminated=True), chunk("a", 0, 5)),
    "gap": (chunk("a", 0, 3), chunk("a", 5, 5, terminated=True)),
    "other agent": (chunk("a", 0, 5, agent_id="x"), chunk("a", 0, 5, agent_id="y")),
    "same twice": (chunk("a", 0, 5), chunk("a", 0, 5)),
    "same steps, other content": (chunk("a", 0, 5), chunk("a", 0, 5, 100.0)),
    "overlap": (chunk("a", 0, 5), chunk("a", 3, 5)),
    "overlap, other content": (chunk("a", 0, 5), chunk("a", 3, 5, 100.0)),
    "after end": (chunk("a", 0, 5, terminated=True), chunk("a", 5, 5)),
    "after end and a gap": (chunk("a", 0, 5, terminated=True), chunk("a", 7, 3)),
    "other observation": (chunk("a", 0, 5), chunk("a", 5, 5, 100.0)),
    "other lookback": (chunk("a", 0, 5), chunk("a", 5, 5, 100.0, lookback=2)),
    "other observation in the lookback": (chunk("a", 0, 5), with_other("observations")),
    "other action in the lookback": (chunk("a", 0, 5), with_other("actions")),
    "other reward in the lookback": (chunk("a", 0, 5), with_other("rewards")),
}
FINE = {"follows", "follows with lookback", "later first", "gap", "other agent"}
REPEATED = {"same twice", "overlap"}  # equal where they overlap
BY_CONTENT = {name for name in PAIRS if name.startswith("other ") and name != "other agent"}
CHANGED_REWARDS = "other reward in the lookback"  # replay accepts it: rewards may be normalized before they are added
BY_FACTS = PAIRS.keys() - FINE - BY_CONTENT


def stored(path: Path, *chunks: SingleAgentEpisode, **options: Any) -> Path:
    """Write each chunk with a writer of its own, none of which sees the others."""
    writers = [EpisodeWriter(path, **options) for _ in chunks]
    for writer, each in zip(writers, chunks, strict=True):
        writer.add([each])
    for writer in writers:
        writer.close()
    return path


def add_in_turn(path: Path, first: Any, second: Any) -> None:
    with EpisodeWriter(path / "data") as writer:
        writer.add([chunk("z", 0, 1)])  # from now on small episodes wait in the queue
        writer.add([first])
        writer.add([second])


def add_together(path: Path, first: Any, second: Any) -> None:
    with EpisodeWriter(path / "data") as writer:
        writer.add(EpisodePack.from_episodes([first, second]))


def append(path: Path, first: Any, second: Any) -> None:
    stored(path / "data", first)
    with EpisodeWriter(path / "data") as writer:
        writer.add([second])


def merge_two(path: Path, first: Any, second: Any) -> None:
    merge(path / "data", stored(path / "a", first), stored(path / "b", second))


def run_check(path: Path, first: Any, second: Any) -> None:
    for problem in check(stored(path / "data", first, second)).problems:
        raise ChunkMismatch(problem)


def open_verified(path: Path, first: Any, second: Any) -> None:
    EpisodeDataset(stored(path / "data", first, second), verify=True)


def check_compacted(path: Path, first: Any, second: Any) -> None:
    compact(stored(path / "data", first, second))
    EpisodeDataset(path / "data", verify=True)


def read_metadata(path: Path, first: Any, second: Any) -> None:
    dataset = EpisodeDataset(stored(path / "data", first, second))
    lengths = dataset.metadata["episode_length"].tolist()
    assert lengths == ([5, 5] if first.agent_id else [len(first) + len(second)] * 2)
    assert dataset.metadata["is_complete"].tolist() == [second.is_done + first.is_done > 0 and sum(lengths) == 20] * 2


def from_dataset(path: Path, first: Any, second: Any) -> None:
    dataset = EpisodeDataset(stored(path / "data", first, second))
    buffer = EpisodeReplayBuffer.from_dataset(dataset, seed=0)
    times = sorted(t for e in buffer.iter_episodes() for t in range(e.t_started, e.t))
    assert times == sorted({*range(first.t_started, first.t), *range(second.t_started, second.t)})
    drawn = buffer.sample(50)
    assert np.array_equal(drawn.new_obs, drawn.obs + 1)


def add_to_replay(path: Path, first: Any, second: Any) -> None:
    buffer = EpisodeReplayBuffer(100)
    buffer.add([first])
    before = len(buffer)
    try:
        buffer.add([second])
    except ChunkMismatch:
        assert len(buffer) == before
        raise


def add_pack_to_replay(path: Path, first: Any, second: Any) -> None:
    EpisodeReplayBuffer(100).add(EpisodePack.from_episodes([first, second]))


def join_episodes(path: Path, first: Any, second: Any) -> None:
    first = SingleAgentEpisode.from_state(first.get_state()).as_growing()
    first.concat_episode(second)


def sample_from_disk(path: Path, first: Any, second: Any, **options: Any) -> None:
    dataset = EpisodeDataset(stored(path / "data", first, second, **options))
    for batch, _ in zip(dataset.sampler(windows=(4, 3), seed=0), range(20), strict=False):
        assert len(batch) > 0


def sample_compressed(path: Path, first: Any, second: Any) -> None:
    sample_from_disk(path, first, second, compression="zstd")


def sample_packs(path: Path, first: Any, second: Any) -> None:
    dataset = EpisodeDataset(stored(path / "data", first, second))
    for pack, _ in zip(dataset.sampler(episodes=1, seed=0), range(4), strict=False):
        assert len(pack) == 1


def receive(path: Path, first: Any, second: Any) -> None:
    from episodes.transport import EpisodeReceiver, EpisodeSender
    from tests.episodes.transport.traffic import received

    buffer = EpisodeReplayBuffer(100)
    with EpisodeReceiver() as receiver:
        for each in (first, second):  # a process each
            with EpisodeSender(receiver.address) as sender:
                sender.send(each)
                for pack in received(receiver, sender, 1):
                    buffer.add(pack)


PLACES: dict[Callable[[Path, Any, Any], None], set[str]] = {
    add_in_turn: BY_FACTS,
    add_together: BY_FACTS,
    append: BY_FACTS,
    merge_two: BY_FACTS,
    run_check: BY_FACTS | BY_CONTENT,
    open_verified: BY_FACTS | BY_CONTENT,
    check_compacted: BY_FACTS | BY_CONTENT,
    read_metadata: BY_FACTS,
    from_dataset: BY_FACTS - REPEATED | BY_CONTENT - {CHANGED_REWARDS} | {"other agent"},
    add_to_replay: BY_FACTS | BY_CONTENT - {CHANGED_REWARDS} | {"gap", "later first", "other agent"},
    add_pack_to_replay: BY_FACTS | BY_CONTENT - {CHANGED_REWARDS} | {"gap", "later first", "other agent"},
    join_episodes: BY_FACTS | BY_CONTENT | {"gap", "later first", "other agent"},
    # chunks that begin at 0 are never joined to others, so the ids do not matter
    sample_from_disk: BY_FACTS - {"same twice", "same steps, other content"} | BY_CONTENT,
    sample_compressed: BY_FACTS - {"same twice", "same steps, other content"} | BY_CONTENT,
    sample_packs: BY_FACTS - {"same twice", "same steps, other content"} | BY_CONTENT,
    receive: BY_FACTS | BY_CONTENT - {CHANGED_REWARDS} | {"gap", "later first", "other agent"},
}
"""For each place the relations that are an error there. All others have a right result."""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("name", PAIRS)
def test_relation_of_two_chunks_is_right_or_an_error(name: str, place: Any, tmp_path: Path) -> None:
    has_ended = place is join_episodes and PAIRS[name][0].is_done
    if name in PLACES[place]:
        with pytest.raises(EpisodeStateError if has_ended else ChunkMismatch, match="episode a"):
            place(tmp_path, *PAIRS[name])
    else:
        place(tmp_path, *PAIRS[name])


def test_equal_ids_of_two_sources_are_told_apart_by_a_prefix(tmp_path: Path) -> None:
    first, second = (stored(tmp_path / n, chunk("0", 0, 5, terminated=True), chunk("1", 0, 3)) for n in "ab")
    with pytest.raises(ChunkMismatch, match="prefix"):
        merge(tmp_path / "both", first, second)
    assert merge(tmp_path / "both", second, prefix="b/") == 2
    assert merge(tmp_path / "both", second, prefix="b/") == 0  # a merge can be repeated
    dataset = EpisodeDataset(tmp_path / "both", verify=True)
    assert dataset.metadata["id"].tolist() == ["0", "1", "b/0", "b/1"]
    assert dataset.metadata["episode_length"].tolist() == [5, 3, 5, 3]
    assert EpisodeReplayBuffer.from_dataset(dataset).num_added == 16


@given(
    chunks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 4), st.booleans()), max_size=8),
)
def test_order_of_chunks_equals_a_loop(chunks: list[tuple[int, int, int, bool]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*chunks, strict=True)] or [np.zeros(0, np.int64)] * 4
    order = ChunkOrder.of(*columns[:3], columns[3].astype(bool))
    expected = set()
    for episode in range(3):
        steps: set[int] = set()
        ended = False
        for t, num, ends in sorted((t, num, ends) for e, t, num, ends in chunks if e == episode and num):
            if ended or steps & set(range(t, t + num)):
                expected.add(episode)
            steps |= set(range(t, t + num))
            ended = ended or ends
    found = {chunks[i][0] for _, i in order.pairs(order.is_conflict)}
    assert found == expected

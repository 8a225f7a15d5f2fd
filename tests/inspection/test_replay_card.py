"""Cards of replay buffers: the table, the endings and the counts equal those of a slow reference."""

from __future__ import annotations

import pickle
import re
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import StateMismatch
from episodes.inspect import formatting, ring_chart
from episodes.inspect.cards import replay
from episodes.inspect.cards.card import Card
from episodes.inspect.cards.replay import StoredEpisodes, multi_agent_replay_card, replay_card, stored_tracks
from episodes.inspect.html import rendered
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
    SamplesPerInsert,
)
from episodes.tracks.ragged import Ragged

CLASSES = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


class Step(NamedTuple):
    """Step of the reference."""

    id_: str
    t: int
    reward: float
    version: int


class Reference:
    """Plain list of the newest steps, and the ending of each episode."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.steps: list[Step] = []
        self.endings: dict[str, str] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return id, steps, time, return, ending, age and versions of each stored episode, the oldest one first."""
        stored = self.steps[-self.capacity :]
        rows = []
        for id_ in dict.fromkeys(step.id_ for step in stored):
            own = [step for step in stored if step.id_ == id_]
            row = {"id": id_, "length": len(own), "start": own[0].t, "return": sum(step.reward for step in own)}
            age = len(stored) - next(i for i, step in enumerate(stored) if step.id_ == id_)
            versions = [step.version for step in own]
            rows.append(row | {"ending": self.endings[id_], "age": age, "versions": versions})
        return rows


@st.composite
def additions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw chunks of up to four episodes, in turns, with endings and policy versions."""
    times, chunks, number = [0] * 4, [], [0] * 4
    for _ in range(draw(st.integers(1, 20))):
        i, length = draw(st.integers(0, 3)), draw(st.integers(1, 6))
        ending = draw(st.sampled_from(["cut", "cut", "terminated", "truncated", "terminated and truncated"]))
        one = st.sampled_from([0, 3, 8])  # for all steps, or of each
        version = draw(st.none() | one | st.lists(one, min_size=length, max_size=length))
        chunk = {"id": f"e{i}.{number[i]}", "t": times[i], "length": length, "ending": ending, "version": version}
        chunks.append(chunk)
        times[i] += length
        if ending != "cut":
            times[i], number[i] = 0, number[i] + 1
    return chunks


def fill(buffer: Any, reference: Reference, chunks: list[dict[str, Any]]) -> None:
    """Add chunks to a buffer and to its reference."""
    for chunk in chunks:
        t, length = chunk["t"], chunk["length"]
        rewards = np.sin(np.arange(t, t + length) + len(reference.steps))
        buffer.add(
            SingleAgentEpisode.from_arrays(
                np.arange(t, t + length + 1.0),
                np.zeros(length, np.int64),
                rewards,
                id_=chunk["id"],
                t_started=t,
                terminated="terminated" in chunk["ending"],
                truncated="truncated" in chunk["ending"],
                policy_versions=chunk["version"],
            )
        )
        versions = np.broadcast_to(-1 if chunk["version"] is None else chunk["version"], length).tolist()
        reference.steps += [Step(chunk["id"], t + k, float(r), versions[k]) for k, r in enumerate(rewards)]
        reference.endings[chunk["id"]] = chunk["ending"]


def fact(card: Card, name: str) -> str | None:
    """Return the value of a fact of a card, or None."""
    return next((each.whole or each.value for each in card.facts if each.name == name), None)


def cells(card: Card, column: str) -> list[str]:
    """Return the cells of a column of a card's table, without markup and without the row that stands for others."""
    assert card.table is not None
    index = list(card.table.columns).index(column)
    return [re.sub("<[^>]+>", "", str(row[index])) for row in card.table.rows if row[0] != "⋮"]


def span(versions: list[int]) -> str:
    """Return versions as the table has them."""
    found = [version for version in versions if version >= 0]
    if not found:
        return "unknown"
    text = str(found[0]) if min(found) == max(found) else f"{min(found)} … {max(found)}"
    return text + (" and unknown" if len(found) < len(versions) else "")


@settings(max_examples=60, deadline=None)
@given(chunks=additions(), capacity=st.sampled_from([3, 7, 13, 30, 200]), make=st.sampled_from(CLASSES))
def test_the_card_equals_a_reference_of_the_stored_steps(chunks: Any, capacity: int, make: Any) -> None:
    buffer, reference = make(capacity, seed=0), Reference(capacity)
    fill(buffer, reference, chunks)
    expected, card = reference.rows(), replay_card(buffer)
    stored = StoredEpisodes(buffer)
    assert stored.ids == [row["id"] for row in expected]
    assert stored.lengths.tolist() == [row["length"] for row in expected]
    assert stored.lengths.sum() == len(buffer)
    assert stored.starts.tolist() == [row["start"] for row in expected]
    assert stored.ages.tolist() == [row["age"] for row in expected]
    assert stored.returns == pytest.approx([row["return"] for row in expected])

    listed = [expected[int(place)] for place in cells(card, "")]
    assert cells(card, "id") == [row["id"] for row in listed]
    whole = (f" of {row['start'] + row['length']}" if row["start"] else "" for row in listed)
    assert cells(card, "steps") == [f"{row['length']}{of}" for row, of in zip(listed, whole, strict=True)]
    returns = [float(text.split()[-1]) for text in cells(card, "return")]
    assert returns == pytest.approx([row["return"] for row in listed], rel=1e-3, abs=1e-3)
    assert cells(card, "ending") == [row["ending"] for row in listed]
    assert cells(card, "age") == [str(row["age"]) for row in listed]
    versions = [version for row in expected for version in row["versions"]]
    assert card.table is not None
    assert ("policy" in card.table.columns) == (max(versions) >= 0)
    if max(versions) >= 0:
        assert cells(card, "policy") == [span(row["versions"]) for row in listed]

    kinds = [row["ending"].split()[0] for row in expected]
    endings = next(re.sub("<[^>]+>", "", row.picture) for row in card.rows if row.label == "endings")
    assert {word: int(n) for n, word in re.findall(r"([\d,]+) (\w+)", endings)} == {k: kinds.count(k) for k in kinds}
    for kind in set(kinds):
        assert f"{kinds.count(kind)} {kind}" in re.sub("<[^>]+>", "", str(card.chart))
    complete = [row for row in expected if row["start"] == 0 and row["ending"] != "cut"]
    words = {
        "complete": len(complete),
        "unfinished": sum(row["start"] == 0 and row["ending"] == "cut" for row in expected),
        "without the first steps": sum(row["start"] > 0 and row["ending"] != "cut" for row in expected),
        "unfinished and without the first steps": sum(row["start"] > 0 and row["ending"] == "cut" for row in expected),
    }
    assert fact(card, "episodes") == ", ".join(f"{n} {kind}" for kind, n in words.items() if n)
    assert card.headline[:2] == [
        f"{len(buffer)} of {formatting.counted(capacity, 'step')}",
        formatting.counted(len(expected), "episode"),
    ]
    means = [re.findall(r"mean return (\S+) \(\d+ complete\)", text) for text in card.headline]
    assert [float(mean) for found in means for mean in found] == pytest.approx(
        [np.mean([row["return"] for row in complete])] if complete else [], rel=1e-3, abs=1e-3
    )
    finished = sorted(row["return"] for row in complete)
    extremes = {"best": finished[-1], "worst": finished[0]} if finished and finished[0] < finished[-1] else {}
    marked = [text.split() for text in cells(card, "return") if " " in text]
    assert {words[0]: float(words[-1]) for words in marked} == pytest.approx(extremes, rel=1e-3, abs=1e-3)
    check_memory(card, buffer)
    oldest = f"added {formatting.counted(len(buffer), 'step')} ago, t={expected[0]['start']} of episode"
    assert fact(card, "oldest stored step") == f"{oldest} {expected[0]['id']}"


@settings(max_examples=60, deadline=None)
@given(
    chunks=additions(),
    capacity=st.sampled_from([3, 7, 13, 30, 200]),
    most=st.sampled_from([1, ring_chart.MOST_SEGMENTS]),
)
def test_the_chart_of_steps_has_each_run_of_each_episode_by_age(chunks: Any, capacity: int, most: int) -> None:
    buffer, reference = EpisodeReplayBuffer(capacity, seed=0), Reference(capacity)
    fill(buffer, reference, chunks)
    stored, expected = reference.steps[-capacity:], reference.rows()
    rows = {row["id"]: row for row in expected}
    runs = [list(run) for _, run in groupby(stored, lambda step: step.id_)]
    svg = str(StoredEpisodes(buffer).segments(ring_chart.MOST_SEGMENTS // most))
    bar = ElementTree.fromstring(re.findall("<svg y.*?</svg>", svg)[0])
    assert bar.attrib["viewBox"] == f"0 0 {capacity} {ring_chart.HEIGHT}"
    kinds = {step.id_: rows[step.id_]["ending"].split()[0] for step in stored}
    if len(runs) <= most:
        found = [
            (int(box.attrib["x"]), int(box.attrib["width"]), group.attrib["class"].split("ep-")[-1], box[0].text)
            for group in bar.iter("g")
            for box in group
        ]
        assert sum(width for _, width, _, _ in found) == len(buffer)
        at = 0
        for run, (x, width, kind, text) in zip(runs, sorted(found), strict=True):
            row = rows[run[0].id_]
            assert (x, width, kind) == (at, len(run), kinds[row["id"]])
            of = f" of {row['start'] + row['length']}" if row["start"] else ""
            begin = f"{row['id']}, {row['length']}{of} steps, return {formatting.number(row['return'])}"
            version = f", policy {span(row['versions'])}" if any(step.version >= 0 for step in stored) else ""
            assert text == f"{begin}, {row['ending']}, age {row['age']}{version}"
            at += len(run)
    else:
        area = dict.fromkeys(kinds.values(), 0.0)
        for path in list(bar)[1:]:
            boxes = re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H", path.attrib["d"])
            sizes = (float(right) - float(left) for left, _, right, _ in boxes)
            talls = (float(low) - float(high) for _, high, _, low in boxes)
            area[path.attrib["class"].split("ep-")[-1]] = sum(a * b for a, b in zip(sizes, talls, strict=True))
        counts = {kind: sum(kinds[step.id_] == kind for step in stored) for kind in area}
        assert {kind: each / ring_chart.HEIGHT for kind, each in area.items()} == pytest.approx(counts, rel=0.02)
    versions = [step.version for step in stored]
    has_strip = len({version for version in versions if version >= 0}) > 1
    assert ("<small>policy</small>" in svg) == has_strip
    assert f"{len(stored)} ago" in svg
    assert (f"{capacity - len(stored)} free" in svg) == (len(stored) / capacity < ring_chart.ENOUGH)


@settings(max_examples=40)
@given(
    st.lists(st.integers(-3, 3) | st.just(np.nan), min_size=1, max_size=120),
    st.integers(0, 50),
)
def test_rows_of_colours_of_steps_have_the_means_of_their_cells(numbers: list[float], free: int) -> None:
    values = np.array(numbers, float)
    svg = str(ring_chart.ring_chart(len(values) + free, len(values), strips={"priority": values}))
    every = -(-len(values) // ring_chart.CELLS)
    cells = [values[i : i + every] for i in range(0, len(values), every)]
    means = [np.nanmean(cell) if np.isfinite(cell).any() else np.nan for cell in cells]
    known = [mean for mean in means if mean == mean]
    assert ("<small>priority</small>" in svg) == bool(known)
    is_constant = len(set(numbers)) == 1 and bool(known)
    assert (f"{formatting.number(values[0])} of all" in svg) == is_constant
    if is_constant or not known:
        return
    found = re.findall(r'<rect x="(\d+)" width="(\d+)" height="8" opacity="([\d.]+)"><title>(.*?)<', svg)
    low, high = min(known), max(known)
    expected = [
        (i * every, len(cells[i]), "mean " * (every > 1) + formatting.number(mean))
        for i, mean in enumerate(means)
        if mean == mean
    ]
    assert [(int(x), int(width), text) for x, width, _, text in found] == expected
    levels = [(float(strength) - ring_chart.PALEST) / (1 - ring_chart.PALEST) for _, _, strength, _ in found]
    assert levels == pytest.approx([(mean - low) / (high - low) if high > low else 1 for mean in known], abs=0.01)


def test_cards_of_buffers_with_the_most_segments_are_small() -> None:
    """Many short episodes with long ids, policy versions and priorities."""
    buffer = PrioritizedEpisodeReplayBuffer(400, seed=0)
    for n in range(ring_chart.MOST_SEGMENTS):
        id_ = f"{n:03}" + "x" * 60
        rewards = np.arange(n, n + 4) / 7
        buffer.add(SingleAgentEpisode.from_arrays(np.zeros(5), np.zeros(4), rewards, id_=id_, policy_versions=n))
    steps = np.arange(4 * ring_chart.MOST_SEGMENTS)
    buffer.update_priorities(steps, steps / 7)
    assert str(replay_card(buffer).chart).count("<rect") == ring_chart.MOST_SEGMENTS + 2 * ring_chart.CELLS
    assert len(rendered(replay_card(buffer))) < 50_000


def restored(buffer: Any, way: str, folder: Path) -> Any:
    """Return the buffer after it was saved and restored in a way."""
    if way == "pickle":
        return pickle.loads(pickle.dumps(buffer))
    if way == "files":
        buffer.flush()
        buffer.close()
        return type(buffer)(buffer.capacity, seed=0, path=folder, resume=True)
    other = type(buffer)(buffer.capacity, seed=0)
    other.set_state(buffer.get_state())
    return other


@pytest.mark.parametrize("way", ["pickle", "state", "files"])
@settings(max_examples=25, deadline=None)
@given(chunks=additions(), capacity=st.sampled_from([3, 7, 13, 30]), make=st.sampled_from(CLASSES))
@example([{"id": "e", "t": 0, "length": 6, "ending": "cut", "version": [8, 8, 0, 0, 0, 0]}], 3, EpisodeReplayBuffer)
def test_ages_are_the_same_after_the_buffer_is_restored(way: str, chunks: Any, capacity: int, make: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        buffer = make(capacity, seed=0, path=folder if way == "files" else None)
        reference = Reference(capacity)
        fill(buffer, reference, chunks)
        before = rendered(replay_card(buffer))
        newest = max(step.version for step in reference.steps)
        assert buffer.flush_ring().versions.newest == newest
        again = restored(buffer, way, Path(folder))
        after = rendered(replay_card(again))
        assert again.flush_ring().versions.newest == newest
        assert after == before
        again.close()


def test_states_of_earlier_versions_have_the_newest_version_of_their_steps() -> None:
    buffer = EpisodeReplayBuffer(7, seed=0)
    fill(buffer, Reference(7), [{"id": "e", "t": 0, "length": 5, "ending": "cut", "version": 3}])
    state = buffer.get_state()
    del state["ring"]["newest_version"]
    other = EpisodeReplayBuffer(7)
    other.set_state(state)
    assert rendered(replay_card(other)) == rendered(replay_card(buffer))
    state["ring"]["newest_version"] = "3"
    with pytest.raises(StateMismatch):
        other.set_state(state)


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize("steps", [0, 1, 10, 25])
@pytest.mark.parametrize("on_disk", [False, True])
def test_cards_of_empty_full_wrapped_and_mapped_buffers(make: Any, steps: int, on_disk: bool, tmp_path: Path) -> None:
    buffer = make(10, seed=0, path=tmp_path / "ring" if on_disk else None, limit=SamplesPerInsert(2, min_size=3))
    for n in range(steps // 5 if steps >= 5 else steps):
        length = 5 if steps >= 5 else 1
        buffer.add(
            SingleAgentEpisode.from_arrays(np.zeros((length + 1, 2)), np.zeros(length), np.ones(length), id_=f"e{n}")
        )
    card = replay_card(buffer)
    evicted = f", {steps - 10} of them evicted" if steps > 10 else ""
    assert fact(card, "added") == formatting.counted(steps, "step") + evicted
    assert fact(card, "sampled") == "never"
    assert fact(card, "limit") == "2 samples per added step, once 3 steps are stored"
    assert (fact(card, "files") is not None) == on_disk
    assert (card.table is None) == (steps == 0)
    check_memory(card, buffer)
    assert "never sampled" in card.headline
    assert card.headline[0] == f"{min(steps, 10)} of 10 steps"
    assert ("writes here" in str(card.chart), "evicted next" in str(card.chart)) == (steps > 0, steps >= 10)
    if steps:
        buffer.sample(3 * steps)
        assert fact(replay_card(buffer), "sampled") == f"{3 * steps} steps"
        assert "3 sampled per added" in replay_card(buffer).headline
    assert "<details" in buffer._repr_html_()
    buffer.close()
    assert replay_card(buffer).headline == ["closed"]


@given(st.lists(st.floats(0.01, 100), min_size=12, max_size=12), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_mean_priority_of_an_episode_is_that_of_its_steps(priorities: list[float], alpha: float) -> None:
    buffer = PrioritizedEpisodeReplayBuffer(12, alpha=alpha, beta=0.5, seed=0)
    for n in range(5):  # the first one is evicted
        buffer.add(SingleAgentEpisode.from_arrays(np.zeros(4), np.zeros(3), np.arange(n, n + 3.0), id_=f"e{n}"))
    buffer.update_priorities(np.arange(3, 15), np.array(priorities))
    shares = np.array(priorities).reshape(4, 3) ** alpha
    card = replay_card(buffer)
    shown = cells(card, "priority")
    assert [float(text.split()[-1]) for text in shown] == pytest.approx(shares.mean(1), rel=1e-3)
    found = [i for i, text in enumerate(shown) if text.startswith("highest")]
    assert all(shares.mean(1)[i] == pytest.approx(shares.mean(1).max()) for i in found)
    assert len(found) == 1 or shares.mean(1) == pytest.approx(np.full(4, shares.mean()))
    weights = fact(card, "importance weights")
    low = (shares.max() / shares.min()) ** -0.5
    assert weights is not None
    assert weights == "all 1" if low == 1 else float(weights.split(" … ")[0]) == pytest.approx(low, rel=1e-3)


def test_priorities_of_sequences_are_those_of_steps_where_a_sequence_begins() -> None:
    buffer = PrioritizedEpisodeReplayBuffer(100, unit="sequence", period=4, seed=0)
    buffer.add(SingleAgentEpisode.from_arrays(np.zeros(11), np.zeros(10), np.zeros(10), id_="e"))
    buffer.add(SingleAgentEpisode.from_arrays(np.zeros(3), np.zeros(2), np.zeros(2), id_="late", t_started=5))
    card = replay_card(buffer)
    assert cells(card, "priority") == ["1", "none"]
    assert next(row.meta for row in card.rows if row.label == "priority").startswith("[3]")
    assert fact(card, "period") == "4"


NAMES = ["links", "endings", "priorities", "all", "obs copies"]  # of extra outputs, as of other parts of the memory


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["number", "array", "dict", "lengths differ"])
@pytest.mark.parametrize("capacity", [9, 1000])
@pytest.mark.parametrize("most", [1, 1 << 24])  # numbers that are read in full
def test_the_memory_of_every_kind_of_track_sums_to_that_of_the_buffer(
    make: Any, dtype: Any, kind: str, capacity: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MOST_STORED_NUMBERS", most)
    buffer, rng = make(capacity, seed=0), np.random.default_rng(0)
    for n in range(4):
        length = n + 2

        def items(num: int) -> Any:
            return (rng.random((num, 5)) * 9).astype(dtype)

        observations: Any = {
            "number": lambda num: items(num)[:, 0],
            "array": items,
            "dict": lambda num: {"a": items(num), "b": {"c": items(num)[:, :1]}},
            "lengths differ": lambda num: Ragged.from_lengths(
                items(num).ravel()[: (np.arange(num) % 4).sum()], np.arange(num) % 4
            ),
        }[kind](length + 1)
        outputs = {name: items(length) for name in NAMES}
        buffer.add(
            SingleAgentEpisode.from_arrays(
                observations, items(length)[:, 0], np.zeros(length), extra_model_outputs=outputs, id_=f"e{n}"
            )
        )
        check_memory(replay_card(buffer), buffer)
    buffer.clear()
    check_memory(replay_card(buffer), buffer)


def memory(card: Card) -> Card:
    """Return the part of a card that has the table of the memory."""
    return next(part for part in card.parts if part.kind == "Memory")


def check_memory(card: Card, buffer: Any) -> None:
    """Check that the parts of the memory sum to the buffer's size, and agree with the rows of the tracks."""
    shown = memory(card)
    assert shown.table is not None
    names = cells(shown, "part")
    reserved, used = ([int(text.replace(",", "")) for text in cells(shown, name)] for name in ("reserved", "used"))
    assert names[-1] == "all"
    assert sum(reserved[:-1]) == reserved[-1] == buffer.nbytes
    assert sum(used[:-1]) == used[-1]
    assert all(0 <= part <= whole for part, whole in zip(used, reserved, strict=True))
    assert shown.headline == [f"{formatting.size(buffer.nbytes)} reserved", f"{formatting.size(used[-1])} used"]
    if len(buffer):
        stored = StoredEpisodes(buffer)
        sizes = {key: sum(each.nbytes or 0 for each in leaves) for key, leaves in stored_tracks(stored).items()}
        first = dict(zip(reversed(names), reversed(used), strict=True))  # tracks come first
        assert {name: first[name] for name in sizes} == sizes
        assert dict(zip(names, used, strict=True))["endings"] == 2 * len(buffer)
        labels = {row.label: row.meta for row in reversed(card.rows)}
        for key, leaves in stored_tracks(stored).items():
            if len(leaves) == 1:
                assert labels[key].endswith(formatting.size(sizes[key]))


def test_the_card_of_many_modules_names_those_that_it_leaves_out() -> None:
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    agents = [f"agent_{n}" for n in range(6)]
    game = MultiAgentEpisode("g", agent_to_module_mapping_fn=lambda agent, _: f"module_{agent[-1]}")
    game.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    for _ in range(3):
        game.add_env_step(*(dict.fromkeys(agents, value) for value in (0.0, 1, 1.0)))
    buffer.add(game)
    card = multi_agent_replay_card(buffer)
    *modules, shown = card.parts
    assert [part.name for part in modules] == [f"module_{n}" for n in range(4)]
    sizes = [int(text.replace(",", "")) for text in cells(shown, "reserved")]
    assert cells(shown, "part") == [*buffer.modules, "env steps", "all"]
    assert sizes[:6] == [part.nbytes for part in buffer.modules.values()]
    assert sum(sizes[:-1]) == sizes[-1] == buffer.nbytes
    assert list(card.notes) == ["and 2 more modules: module_4, module_5"]
    assert [cells(part, "agent") for part in modules] == [[agent] for agent in agents[:4]]
    assert fact(card, "added") == "3 env steps"
    assert fact(card, "sampled") == "never"

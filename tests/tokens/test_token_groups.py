"""Groups of token episodes: a group is a group of its recorder, in whatever way two groups of one key meet."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from episode_learners import TokenGRPO, TokenGRPOConfig
from episodes import EpisodePack
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tokens import Conversation, TokenRecorder, group_numbers

SIZE = 3
KEY = ("prompt", 1)


def play(recorder: TokenRecorder, returns: list[float], key: Any = KEY) -> None:
    for reward in returns:
        talk = recorder.begin([1, 2], group=key)
        talk.turn([3], [4], logp=[-1.0])
        talk.turn([5], reward=reward, terminated=True, logp=[-1.0])
        recorder.end(talk)


def recorded(*groups: list[float], recorder: TokenRecorder | None = None) -> EpisodePack:
    recorder = recorder or TokenRecorder(group_size=SIZE)
    for returns in groups:
        play(recorder, returns)
    pack = recorder.take()
    assert pack is not None
    return pack


FIRST, SECOND = [1.0, 2.0, 3.0], [10.0, 10.0, 40.0]


def one_pack(path: Path) -> EpisodePack:
    return recorded(FIRST, SECOND)


def two_packs(path: Path) -> EpisodePack:
    recorder = TokenRecorder(group_size=SIZE)
    return EpisodePack.concat([recorded(returns, recorder=recorder) for returns in (FIRST, SECOND)])


def next_epoch(path: Path) -> EpisodePack:
    """Play another prompt between the two epochs, and leave its group out."""
    recorder = TokenRecorder(group_size=SIZE)
    play(recorder, FIRST)
    play(recorder, [7.0] * SIZE, key="other")
    play(recorder, SECOND)
    pack = recorder.take()
    assert pack is not None
    return pack.select([0, 1, 2, 6, 7, 8])


def interleaved(path: Path) -> EpisodePack:
    return one_pack(path).select([0, 3, 1, 4, 2, 5]).select([0, 2, 4, 1, 3, 5])


def two_recorders(path: Path) -> EpisodePack:
    return EpisodePack.concat([recorded(FIRST), recorded(SECOND)])


def copied_recorders(path: Path) -> EpisodePack:
    """Continue two copies of a recorder that has no conversation yet."""
    recorder = TokenRecorder(group_size=SIZE)
    copies = [deepcopy(recorder), pickle.loads(pickle.dumps(recorder))]
    return EpisodePack.concat(
        [recorded(returns, recorder=copy) for returns, copy in zip((FIRST, SECOND), copies, strict=True)]
    )


def two_processes(path: Path) -> EpisodePack:
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        return EpisodePack.concat(list(pool.map(recorded, (FIRST, SECOND))))


def pickled(path: Path) -> EpisodePack:
    return pickle.loads(pickle.dumps(one_pack(path)))


def listed(path: Path) -> EpisodePack:
    return EpisodePack.from_episodes([deepcopy(episode) for episode in one_pack(path)])


def data_set(path: Path) -> EpisodePack:
    for returns in (FIRST, SECOND):
        with EpisodeWriter(str(path)) as writer:
            writer.add(recorded(returns))
    return EpisodeDataset(str(path)).pack()


def message(path: Path) -> EpisodePack:
    from episodes.transport import EpisodeReceiver, EpisodeSender

    with EpisodeReceiver() as receiver, EpisodeSender(receiver.address) as sender:
        packs = []
        for returns in (FIRST, SECOND):
            sender.send(recorded(returns))
            packs.append(receiver.recv())
        return EpisodePack.concat(packs)


def converted(name: str) -> Callable[[Path], EpisodePack]:
    from episodes import converters

    def convert(path: Path) -> EpisodePack:
        rows, report = getattr(converters, f"to_{name}")(one_pack(path))
        assert not report, report
        episodes, _ = getattr(converters, f"from_{name}")(rows)
        return EpisodePack.from_episodes(episodes)

    return convert


WAYS = [one_pack, two_packs, next_epoch, interleaved, two_recorders, copied_recorders, two_processes]
WAYS += [pickled, listed, data_set, message]
TABLE = {way.__name__: way for way in WAYS}
TABLE |= {name: converted(name) for name in ("trl", "skyrl", "prime_rl", "verl", "messages")}


class Table(nn.Embedding):
    """A model that is a table of logits of the next token."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        nn.init.zeros_(self.weight)

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch["input_ids"])


@pytest.mark.parametrize("way", TABLE)
def test_two_groups_of_one_key_are_two_groups(way: str, tmp_path: Path) -> None:
    pack = TABLE[way](tmp_path)
    assert [data["group"] for data in pack.custom_data or ()] == [KEY] * 2 * SIZE
    assert pack.returns().tolist() == FIRST + SECOND
    assert group_numbers(pack).tolist() == [0] * SIZE + [1] * SIZE
    for baseline, scale in (("group", None), ("leave_one_out", None), ("group", "group")):
        algorithm = TokenGRPO(Table(), TokenGRPOConfig(baseline=baseline, scale=scale))  # type: ignore[arg-type]
        expected = []
        for returns in map(np.array, (FIRST, SECOND)):
            others = [(returns.sum() - value) / (SIZE - 1) for value in returns]
            centered = returns - (others if baseline == "leave_one_out" else returns.mean())
            expected += (centered / (returns.std() + 1e-8 if scale else 1)).tolist()
        assert algorithm.episode_advantages(pack) == pytest.approx(expected)
        assert np.isfinite(algorithm.update(pack)["loss"])


@pytest.mark.parametrize("name", ["uid", "instance_ids"])
def test_rows_of_other_trainers_group_by_the_recorders_group(name: str) -> None:
    from episodes import converters

    pack = recorded(FIRST, SECOND)
    rows = converters.to_verl(pack)[0]["non_tensor_batch"] if name == "uid" else converters.to_skyrl(pack)[0]
    uids = list(rows[name])
    assert len(set(uids[:SIZE])) == len(set(uids[SIZE:])) == 1
    assert uids[0] != uids[-1]


def test_group_numbers_of_one_key_without_a_recorder_are_one_group() -> None:
    episodes = []
    for k, key in enumerate(["a", 1, "a", 1, "1"]):
        talk = Conversation(f"e{k}", outputs={}, group=key)
        talk.begin([1])
        talk.turn([2], terminated=True)
        episodes.append(talk.episode)
    assert group_numbers(EpisodePack.from_episodes(episodes)).tolist() == [0, 1, 0, 1, 2]


def without_group(pack: EpisodePack, index: int) -> EpisodePack:
    return pack.replace(custom_data=[data if i != index else {} for i, data in enumerate(pack.custom_data or ())])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda pack: pack.select([0, 1, 3, 4, 5]), r"group=.*has 3 episodes, and 2 of them are in the pack"),
        (lambda pack: EpisodePack.concat([pack, pack[:3]]), r"has 3 episodes, and 6 of them are in the pack"),
        (lambda pack: without_group(pack, 4), "has no group, and others have one"),
        (lambda pack: pack[:4].replace(custom_data=None), "4 episodes without groups"),
    ],
    ids=["a member is missing", "members twice", "one has no group", "no groups"],
)
def test_groups_that_are_not_whole_raise_an_error(change: Callable[[EpisodePack], EpisodePack], text: str) -> None:
    pack = change(recorded(FIRST, SECOND))
    with pytest.raises(InvalidArgument, match=text):
        group_numbers(pack, group_size=SIZE)
    with pytest.raises(InvalidArgument, match=text):
        TokenGRPO(Table(), TokenGRPOConfig(group_size=SIZE)).update(pack)


# --- recorders that are copied --------------------------------------------------------------------------------------

COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": deepcopy,
    **{f"pickle {k}": lambda value, k=k: pickle.loads(pickle.dumps(value, k)) for k in range(2, 6)},
}


@pytest.mark.parametrize("copy", COPIES)
def test_copied_recorder_continues_its_open_incomplete_and_complete_groups(copy: str) -> None:
    recorder = TokenRecorder(group_size=2, outputs={})
    for key, num in (("complete", 2), ("incomplete", 1)):
        for _ in range(num):
            talk = recorder.begin([1], group=key)
            talk.turn([2], terminated=True)
            recorder.end(talk)
    opened = [recorder.begin([1, 2], group=key) for key in ("incomplete", "open", "open")]
    opened[1].turn([7], [8])
    recorder, opened = COPIES[copy]((recorder, opened))
    assert recorder.open_conversations == opened
    assert (recorder.num_open, recorder.num_complete, recorder.missing()) == (3, 1, {"incomplete": 1})
    assert opened[1].context.tolist() == [1, 2, 7, 8]
    lone: TokenRecorder = COPIES[copy](recorder)  # without references to its conversations
    for one, talks in ((recorder, opened), (lone, lone.open_conversations)):
        for talk in talks:
            talk.turn([3], terminated=True)
            one.end(talk)
        pack = one.take()
        assert pack is not None
        assert group_numbers(pack).tolist() == [0, 0, 1, 1, 2, 2]
        assert (one.num_open, one.missing()) == (0, {})


def test_copied_recorder_leaves_waiting_tasks_with_the_original() -> None:
    recorder = TokenRecorder(outputs={})

    async def main() -> None:
        waiting = asyncio.create_task(recorder.wait_for(1))
        await asyncio.sleep(0)
        copy: TokenRecorder = pickle.loads(pickle.dumps(recorder))
        for one in (copy, recorder):
            talk = one.begin([1])
            talk.turn([2], terminated=True)
            one.end(talk)
        assert len(await waiting) == copy.num_complete == 1

    asyncio.run(main())


def test_recorder_refuses_a_conversation_of_its_copy() -> None:
    recorder = TokenRecorder(outputs={})
    talk = recorder.begin([1])
    talk.turn([2], terminated=True)
    with pytest.raises(EpisodeStateError, match="is not open in this recorder"):
        recorder.end(deepcopy(talk))
    recorder.end(talk)


def test_episodes_of_a_group_store_plain_values() -> None:
    (data, *_) = recorded(FIRST).custom_data or [{}]
    assert set(data) == {"group", "group_id", "group_size"}
    assert isinstance(data["group_id"], str)
    assert data["group_size"] == SIZE

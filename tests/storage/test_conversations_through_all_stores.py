"""Random conversations are equal after each way of storing and moving them.

The slow tests have 10,000 of them: `pytest tests/storage/test_conversations_through_all_stores.py -m slow`.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_conversations import KINDS, conversation

from episodes import EpisodePack, Ragged, SingleAgentEpisode
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, upload

MANY = [
    pytest.param(range(first, first + 2500), marks=pytest.mark.slow, id=str(first)) for first in range(0, 10_000, 2500)
]


@pytest.fixture(params=[pytest.param(range(150), id="few"), *MANY])
def whole(request: pytest.FixtureRequest) -> list[SingleAgentEpisode]:
    """Return growing episodes: some of them are terminated or truncated."""
    return [conversation(seed, mean=40 if len(request.param) > 1000 else 6) for seed in request.param]


@pytest.fixture
def growing(whole: list[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    """Return the episodes, some of them cut into two chunks, of which the second one may have a lookback."""
    chunks = []
    for seed, episode in enumerate(whole):
        if seed % 5 or len(episode) < 2:
            chunks.append(episode)
        else:
            half = len(episode) // 2
            chunks += [
                episode.slice(slice(0, half)),
                episode.slice(slice(half, None), len_lookback_buffer=seed % 3),
            ]
    return chunks


def plain(episode: SingleAgentEpisode) -> list[Any]:
    """Return all items as bytes with their dtypes, and the rest as plain values."""
    tracks = [episode.tracks.observations, episode.tracks.actions, *episode.tracks.extra.values()]
    items = [[(item.dtype.str, item.tobytes()) for item in track.item_list(0, track.total)] for track in tracks]
    rewards = [float(reward) for reward in episode.tracks.rewards.item_list(0, episode.tracks.rewards.total)]
    facts = (episode.id_, episode.t_started, episode.ending, episode.lookback, episode.custom_data)
    versions = episode.get_policy_versions().tolist()
    return [items, rewards, list(episode.infos), facts, versions, list(episode.tracks.extra)]


def test_conversations_are_equal_through_all_stores(
    whole: list[SingleAgentEpisode], growing: list[SingleAgentEpisode], tmp_path: Path
) -> None:
    from episodes.transport.wire import Schemas, decoded, encoded, encoded_as_one, layouts_of

    assert len(growing) > len(whole)
    expected = [plain(episode) for episode in growing]

    def check(episodes: Any, order: Any = None) -> None:
        numbers = range(len(expected)) if order is None else order
        for episode, i in zip(episodes, numbers, strict=True):
            assert plain(episode) == expected[i]

    for protocol in (4, 5):
        check([pickle.loads(pickle.dumps(episode, protocol)) for episode in growing])
    first = growing[:500]
    check([SingleAgentEpisode.from_state(episode.get_state()) for episode in first], range(len(first)))
    finished = [copy.copy(episode).to_numpy() for episode in growing]
    check(finished)
    check([episode.as_growing() for episode in finished])
    pack = EpisodePack.from_episodes(growing)
    check(pack)
    for protocol in (4, 5):
        check(pickle.loads(pickle.dumps(pack, protocol)))
    order = np.random.default_rng(0).permutation(len(pack))
    check(pack.select(order), order)
    check(EpisodePack.concat([pack[:7], pack[7:100], pack[100:]]))
    for compression in ("none", "zstd"):
        with EpisodeWriter(tmp_path / compression, compression=compression) as writer:
            writer.add(pack[:50])
            writer.add(finished[50:90])
            writer.add(growing[90:])
        for mmap in (True, False):
            check(EpisodeDataset(tmp_path / compression, mmap=mmap, verify=True))
        check(EpisodeDataset(tmp_path / compression).pack(order), order)
        url = f"memory://{tmp_path.name}/{compression}"
        upload(tmp_path / compression, url)
        check(EpisodeDataset(url, cache=tmp_path / "cache" / compression))
    message = encoded([pack], Schemas())
    check(decoded(layouts_of(message.schema), [bytes(part) for part in message.parts()])[0])
    message = encoded_as_one([pack[:60], pack[60:61], pack[61:]], Schemas())
    check(decoded(layouts_of(message.schema), [bytes(part) for part in message.parts()])[0])
    buffer = EpisodeReplayBuffer(pack.num_steps)
    buffer.add(pack)
    joined = [plain(episode) for episode in whole if len(episode)]
    assert [*map(plain, buffer.iter_episodes())] == joined
    assert [plain(episode) for part in buffer.iter_packs() for episode in part] == joined


def test_cut_conversations_are_equal_to_uncut_ones(whole: list[SingleAgentEpisode]) -> None:
    for seed, episode in enumerate(whole[:2000]):
        if episode.is_done or not len(episode):
            continue
        head = episode.slice(slice(0, len(episode) // 2))
        tail = head.cut(seed % 4)
        for t in range(len(head), len(episode)):
            tail.add_env_step(
                episode.get_observations(t + 1),
                episode.get_actions(t),
                episode.get_rewards(t),
                episode.get_infos(t + 1),
                extra_model_outputs={
                    key: episode.get_extra_model_outputs(key, t) for key in KINDS if key in episode.tracks.extra
                },
            )
        if seed % 2:
            head, tail = head.to_numpy(), tail.to_numpy()
        head.concat_episode(tail)
        assert plain(head)[:3] == plain(episode)[:3]


RESET_ONLY = [seed for seed in range(100) if not len(conversation(seed))]
SEEDS = st.lists(st.integers(0, 99) | st.sampled_from(RESET_ONLY), min_size=2, max_size=6, unique=True)


@given(SEEDS, st.integers(1, 5), st.sampled_from(["none", "zstd"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_conversations_of_several_writers_are_equal_on_disk(
    seeds: list[int], first: int, compression: Any, in_one_writer: bool
) -> None:
    episodes = [conversation(seed) for seed in seeds]
    parts = [part for part in (episodes[:first], episodes[first:]) if part]
    with TemporaryDirectory() as folder:
        if in_one_writer:
            with EpisodeWriter(folder, compression=compression) as writer:
                for part in parts:
                    writer.add(part)
                    writer.flush()
        else:
            for part in parts:
                with EpisodeWriter(folder, compression=compression) as writer:
                    writer.add(part)
        dataset = EpisodeDataset(folder, verify=True)
        expected = [plain(episode) for episode in episodes]
        assert [plain(episode) for episode in dataset] == expected
        assert [plain(episode) for episode in dataset.pack()] == expected


# --- sizes ----------------------------------------------------------------------------------------------------------


def sized_pack(num: int, tokens: int) -> tuple[EpisodePack, int]:
    """Return conversations with about `tokens` tokens each, and the bytes of the tokens, their columns and the rewards.

    A turn has a prompt of 100 tokens on average and an answer of 60 with log-probability, mask and version.
    """
    rng, episodes, payload = np.random.default_rng(0), [], 0
    for i in range(num):
        turns = max(round(tokens / 160), 1)
        actions = Ragged.from_lengths(np.zeros(60 * turns, np.int32), np.full(turns, 60))
        prompts = rng.multinomial(100 * turns, [1 / turns] * turns + [0.0])
        observations = Ragged.from_lengths(np.zeros(100 * turns, np.int32), prompts)
        outputs = {"logp": actions.astype(np.float32), "learned": actions.astype(bool), "version": actions.copy()}
        episodes.append(
            SingleAgentEpisode.from_arrays(
                observations, actions, np.zeros(turns), extra_model_outputs=outputs, terminated=True, id_=f"c{i:05}"
            )
        )
        payload += 100 * turns * 4 + 60 * turns * (4 + 4 + 1 + 4) + 8 * turns
    return EpisodePack.from_episodes(episodes), payload


@pytest.mark.parametrize(("tokens", "limit"), [(650, 1.05), (5000, 1.02)])
def test_size_of_conversations_is_that_of_their_tokens(tmp_path: Path, tokens: int, limit: float) -> None:
    from episodes.transport.wire import Schemas, encoded

    pack, payload = sized_pack(2000, tokens)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(pack)
    (file,) = tmp_path.glob("*.arrow")
    sizes = {
        "memory": pack.retained_nbytes + pack.lengths.nbytes + pack.lookbacks.nbytes + pack.ids.nbytes,
        "message": encoded([pack], Schemas()).nbytes,
        "disk": file.stat().st_size,
    }
    ratios = {name: round(size / payload, 4) for name, size in sizes.items()}
    print(tokens, ratios)
    assert max(ratios.values()) <= limit, ratios

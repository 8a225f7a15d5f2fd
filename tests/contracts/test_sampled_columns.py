"""Every store that samples steps has the columns of one table: a new one is one line there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.batch import Batch
from episodes.columns import TRANSITION_KEYS
from episodes.draws.columns import DERIVED, Derived
from episodes.draws.draw import Step
from episodes.errors import UnknownKey
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from tests.reference_replay import LastObservations


def recorded() -> list[SingleAgentEpisode]:
    """Return a whole episode, and a chunk of another one whose beginning is known by its lookback."""
    whole = [episode(f"e{i}", 9) for i in range(2)]
    return [whole[0], whole[1].slice(slice(4, None), len_lookback_buffer=2)]


def chunks() -> list[SingleAgentEpisode]:
    """Return these episodes, the first one in two chunks that are not next to each other."""
    whole, other = recorded()
    return [whole[:5], other, whole[5:]]


def episode(id_: str, num_steps: int) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(
        np.arange(num_steps + 1.0)[:, None],
        np.arange(num_steps),
        np.arange(1.0, num_steps + 1),
        infos=[{"k": i} for i in range(num_steps + 1)],
        truncated=True,
        id_=id_,
        agent_id="agent",
        module_id="module",
        policy_versions=np.arange(num_steps) // 2 + 3,
    )


def replay(folder: Path) -> Any:
    buffer = EpisodeReplayBuffer(20, seed=0)
    buffer.add(chunks())
    return buffer


def prioritized(folder: Path) -> Any:
    buffer = PrioritizedEpisodeReplayBuffer(20, seed=0)
    buffer.add(chunks())
    return buffer


def mapped(folder: Path) -> Any:
    buffer = EpisodeReplayBuffer(20, seed=0, path=folder / "mapped")
    buffer.add(chunks())
    return buffer


def disk(folder: Path) -> Any:
    with EpisodeWriter(folder / "data") as writer:
        writer.add(chunks())
    return EpisodeDataset(folder / "data").sampler(steps=4, order="drawn", seed=0)


STORES = {"replay": replay, "prioritized": prioritized, "mapped": mapped, "disk": disk}
CALLS: dict[str, Callable[[Any], Batch]] = {
    "sample": lambda store: store.sample(8, keys=KEYS),
    "n-step sample": lambda store: store.sample(40, n_step=3, keys=KEYS),
    "random n-step sample": lambda store: store.sample(8, n_step=(1, 4), keys=KEYS),
    "at, with padding": lambda store: store.at([0, -1, 10], keys=KEYS),
    "sequences": lambda store: store.sample_sequences(8, 4, keys=KEYS),
    "sequences with context": lambda store: store.sample_sequences(8, 4, lookback=1, burn_in=1, keys=KEYS),
    "sequences that stop": lambda store: store.sample_sequences(8, 4, boundary="stop", keys=KEYS),
}


MADE_UP = {
    "half_time": (Step.SAMPLED, lambda draw: draw.times() / 2),
    "last_time": (Step.LAST, lambda draw: draw.times()),
    "first_of_last": (Step.LAST, lambda draw: draw.is_first()),
    "version_of_last": (Step.LAST, lambda draw: draw.versions(), -1),
    "agent_of_last": (Step.LAST, lambda draw: draw.facts("agent_id")),
    "first_flag": (Step.SAMPLED, lambda draw: draw.stored(["truncateds"])["truncateds"]),
    "last_flag": (Step.LAST, lambda draw: draw.stored(["truncateds"])["truncateds"]),
    "last_observation": (Step.LAST, lambda draw: draw.stored(["obs"])["obs"]),
    "first_next": (Step.SAMPLED, lambda draw: draw.stored(["new_obs"])["new_obs"]),
    "first_infos": (Step.SAMPLED, lambda draw: draw.infos()),
}
"""New lines of the table: each reads what belongs to its step, whatever it reads."""
KEYS = [*TRANSITION_KEYS, *DERIVED, *MADE_UP]


def expected(t: int, last: int, episode: SingleAgentEpisode) -> dict[str, Any]:
    """Return the columns of a transition from the step at time `t` to the one at time `last`."""
    start, end = episode.t_started - episode.lookback, episode.t_started + len(episode) - 1
    at, to = t - start, last - start
    observations, infos = episode.observations.data[:, 0], [*episode.infos]
    versions = [-1] * episode.lookback + episode.get_policy_versions().tolist()
    ids = {"eps_id": episode.id_, "agent_id": episode.agent_id, "module_id": episode.module_id}
    return ids | {
        "obs": observations[at],
        "new_obs": observations[to + 1],
        "actions": episode.actions.data[at],
        "rewards": sum(0.99**k * reward for k, reward in enumerate(episode.rewards.data[at : to + 1])),
        "terminateds": episode.is_terminated and last == end,
        "truncateds": episode.is_truncated and last == end,
        "infos": infos[to + 1],
        "t": t,
        "policy_version": versions[at],
        "is_first": t == 0,
        "half_time": t / 2,
        "last_time": last,
        "first_of_last": last == 0,
        "version_of_last": versions[to],
        "agent_of_last": episode.agent_id,
        "first_flag": episode.is_truncated and t == end,
        "last_flag": episode.is_truncated and last == end,
        "last_observation": observations[to],
        "first_next": observations[at + 1],
        "first_infos": infos[at + 1],
    }


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("store", STORES)
def test_columns_of_the_table_have_the_values_of_their_steps(
    store: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, episodes = STORES[store](tmp_path), {episode.id_: episode for episode in recorded()}
    with pytest.raises(UnknownKey, match="half_time"):
        CALLS[call](made)
    for name, column in MADE_UP.items():
        monkeypatch.setitem(DERIVED, name, Derived(*column))
    batch = CALLS[call](made)
    real = batch["eps_id"] != ""
    assert real.any()
    counts = batch["n_step"][real] if "n_step" in batch else np.ones(np.count_nonzero(real), int)
    steps = list(zip(batch["eps_id"][real], batch["t"][real].tolist(), counts.tolist(), strict=True))
    assert call != "n-step sample" or {count for *_, count in steps} == {1, 2, 3}
    for key in KEYS:
        values = batch[key][real]
        assert len(values) == len(steps)
        for value, (id_, t, count) in zip(values, steps, strict=True):
            other = expected(t, t + count - 1, episodes[id_])[key]
            value = value[0] if np.ndim(value) else value
            assert value == pytest.approx(other, rel=1e-6) if key == "rewards" else value == other, (key, id_, t)
        padding = batch[key][~real]
        assert (padding == -1).all() if "version" in key else not padding.astype(bool).any()
    if store == "mapped":
        made.close()


OF_NO_STEPS: dict[str, dict[str, Any]] = {
    "all columns": {"keys": list(DERIVED)},
    "n-step": {"n_step": 3},
    "random n-step": {"n_step": (1, 4)},
    "infos as columns": {"include_infos": "columns"},
    "views": {"views": LastObservations(2)},
    "views of next observations": {"views": LastObservations(2), "keys": ["new_obs"], "n_step": 2},
}


def forms(batch: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the kind of dtype and the item shape of each column. The length of strings varies."""
    columns = dict(batch.items())
    if hasattr(columns.get("infos"), "items"):
        columns |= {f"infos/{path}": column for path, column in columns.pop("infos").items()}
    return {name: (column.dtype.kind, column.shape[1:]) for name, column in columns.items()}


@pytest.mark.parametrize("options", OF_NO_STEPS)
@pytest.mark.parametrize("store", STORES)
def test_a_batch_of_no_steps_has_the_columns_of_other_batches(store: str, options: str, tmp_path: Path) -> None:
    made = STORES[store](tmp_path)
    empty, full = (made.at(steps, **OF_NO_STEPS[options]) for steps in ([], [0, 1]))
    assert len(empty["indices"]) == 0
    assert forms(empty) == forms(full)
    if store == "mapped":
        made.close()

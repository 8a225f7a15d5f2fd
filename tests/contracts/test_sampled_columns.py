"""Every store that samples steps has the columns of one table: a new one is one line there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.batch import Batch
from episodes.draws.columns import DERIVED
from episodes.errors import UnknownKey
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from tests.reference_replay import LastObservations

KEYS = ["rewards", *DERIVED, "half_time"]


def recorded() -> list[SingleAgentEpisode]:
    """Return a whole episode, and a chunk of another one whose beginning is known by its lookback."""
    whole = [episode(f"e{i}", 9) for i in range(2)]
    return [whole[0], whole[1].slice(slice(4, None), len_lookback_buffer=2)]


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
        policy_versions=3,
    )


def replay(folder: Path) -> Any:
    buffer = EpisodeReplayBuffer(20, seed=0)
    buffer.add(recorded())
    return buffer


def prioritized(folder: Path) -> Any:
    buffer = PrioritizedEpisodeReplayBuffer(20, seed=0)
    buffer.add(recorded())
    return buffer


def mapped(folder: Path) -> Any:
    buffer = EpisodeReplayBuffer(20, seed=0, path=folder / "mapped")
    buffer.add(recorded())
    return buffer


def disk(folder: Path) -> Any:
    with EpisodeWriter(folder / "data") as writer:
        writer.add(recorded())
    return EpisodeDataset(folder / "data").sampler(steps=4, order="drawn", seed=0)


STORES = {"replay": replay, "prioritized": prioritized, "mapped": mapped, "disk": disk}
CALLS: dict[str, Callable[[Any], Batch]] = {
    "sample": lambda store: store.sample(8, keys=KEYS),
    "n-step sample": lambda store: store.sample(8, n_step=3, keys=KEYS),
    "random n-step sample": lambda store: store.sample(8, n_step=(1, 4), keys=KEYS),
    "at, with padding": lambda store: store.at([0, -1, 10], keys=KEYS),
    "sequences": lambda store: store.sample_sequences(8, 4, keys=KEYS),
    "sequences with context": lambda store: store.sample_sequences(8, 4, lookback=1, burn_in=1, keys=KEYS),
    "sequences that stop": lambda store: store.sample_sequences(8, 4, boundary="stop", keys=KEYS),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("store", STORES)
def test_a_column_of_the_table_is_in_every_batch(
    store: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = STORES[store](tmp_path)
    with pytest.raises(UnknownKey, match="half_time"):
        CALLS[call](made)
    monkeypatch.setitem(DERIVED, "half_time", lambda draw: draw.times() / 2)
    batch = CALLS[call](made)
    np.testing.assert_array_equal(batch["half_time"], batch["t"] / 2)
    real = batch["eps_id"] != ""
    rows = batch["t"][real]
    assert rows.any()
    np.testing.assert_array_equal(batch["is_first"], (batch["t"] == 0) & real)
    np.testing.assert_array_equal(batch["policy_version"], np.where(batch["indices"] >= 0, 3, -1))
    for name in ("agent", "module"):
        assert set(batch[f"{name}_id"][real].tolist()) == {name}
        assert set(batch[f"{name}_id"][~real].tolist()) <= {None}
    last = rows + (batch["n_step"][real] if "n_step" in batch else 1)
    assert [info["k"] for info in batch["infos"][real]] == last.tolist()
    assert not any(batch["infos"][~real])
    sums = np.array([sum(0.99**k * (t + 1 + k) for k in range(stop - t)) for t, stop in zip(rows, last, strict=True)])
    np.testing.assert_allclose(batch["rewards"][real], sums, rtol=1e-6)
    assert not batch["rewards"][~real].any()
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

"""Connectors and views of a user are exported and act equally, or are rejected by name. None is silently wrong."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import Actor, Connector, module_to_env_pipeline
from connectors.env_to_module import MeanStdFilter, ObservationPreprocessor, OneHotAgentId
from connectors.export import export
from episode_learners import MLPPolicy
from episodes.errors import NotExportable
from episodes.tracks import nested

NUMBERS, CHOICE = spaces.Box(-5.0, 5.0, (4,), np.float32), spaces.Discrete(2)
BOX = spaces.Box(-2.0, 6.0, (2,), np.float32)


class Scale(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return np.tanh(observations / np.float32(3)).astype(np.float32)


class ScaleOne(ObservationPreprocessor):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return (observation / 3).astype(np.float32)


class IntoBuffer(ObservationPreprocessor):
    def recompute_output_observation_space(self, *given: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, (5,), np.float32)

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        out = np.zeros((len(observations), 5), np.float32)
        out[:, :4], out[:, 4] = observations, 1
        return out


class ZerosLike(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        out = np.zeros_like(observations)
        out[:, 0], out[:, 1:] = observations[:, 1], observations[:, :3] * 2
        return out


class Branching(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return observations if observations[0, 0] > 0 else -observations


class Stateful(ObservationPreprocessor):
    num_calls = 0

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        self.num_calls += 1
        return (observations + np.float32(self.num_calls)).astype(np.float32)


class Aliasing(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        out = observations * 1
        part = out[:, :2]
        part *= 0.5
        return out


class ReadsEpisodes(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return observations if episodes is None else (observations * np.float32(len(episodes[0]))).astype(np.float32)


class Random(ObservationPreprocessor):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return (observations + self.generator.normal(size=4)).astype(np.float32)


class TorchInside(ObservationPreprocessor):
    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return torch.from_numpy(np.ascontiguousarray(observations)).tanh().numpy()


class Doubled(Connector):
    """A plain connector that changes the batch only."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch["obs"] = batch["obs"] * 2
        return batch


class PlainOfEpisodes(Connector):
    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        batch["obs"] = np.stack([episode.get_observations(-1) for episode in episodes])
        return batch


def speed(history: Any) -> Any:
    two = history.observations(2)
    return {"obs": np.concatenate([two[:, 1], (two[:, 1] - two[:, 0]) * history.observed(2)[:, :1]], axis=1)}


def polar(history: Any) -> Any:
    o = history.observations()
    parts = [np.hypot(o[:, 0], o[:, 1]), np.arctan2(o[:, 0], o[:, 1]), np.sin(o[:, 2]), np.cos(o[:, 3])]
    return {"obs": np.stack(parts, axis=-1).astype(np.float32)}


def fourier(history: Any) -> Any:
    o = history.observations()[..., None] * (2.0 ** np.arange(3))
    return {"obs": np.concatenate([np.sin(o), np.cos(o)], -1).reshape(o.shape[0], -1).astype(np.float32)}


def fourier_by_len(history: Any) -> Any:
    o = history.observations()[..., None] * (2.0 ** np.arange(3))
    return {"obs": np.concatenate([np.sin(o), np.cos(o)], -1).reshape(len(o), -1).astype(np.float32)}


def clock(history: Any) -> Any:
    t = np.minimum(history.t, 80)[:, None] / 80
    return {"obs": np.concatenate([history.observations(), t], 1).astype(np.float32)}


def moving_mean(history: Any) -> Any:
    return {"obs": history.observations(8).mean(axis=1)}


def decayed(history: Any) -> Any:
    weights = (0.9 ** np.arange(4)[::-1]).astype(np.float32)
    return {"obs": np.einsum("bkd,k->bd", history.observations(4), weights)}


def bins(history: Any) -> Any:
    o = history.observations()
    one_hot = np.digitize(o, [-1, 0, 1])[..., None] == np.arange(4)
    return {"obs": one_hot.reshape(o.shape[0], -1).astype(np.float32)}


def bins_by_comparison(history: Any) -> Any:
    o = history.observations()
    places = (o[..., None] >= np.array([-1, 0, 1], np.float32)).sum(-1)
    return {"obs": (places[..., None] == np.arange(4)).reshape(o.shape[0], -1).astype(np.float32)}


def last_action_by_eye(history: Any) -> Any:
    one_hot = np.eye(2, dtype=np.float32)[history.actions(1)[:, 0]]
    return {"obs": np.concatenate([history.observations(), one_hot], 1)}


def last_actions(history: Any) -> Any:
    flat = history.flat_actions(3).reshape(-1, 6)
    return {"obs": np.concatenate([history.observations(), flat, history.rewards(3)], 1)}


def actions_of_window(history: Any) -> Any:
    past = history.window(2)
    return {"obs": np.concatenate([history.observations(), past.flat_actions(1).reshape(-1, 4)], 1)}


def reads_infos(history: Any) -> Any:
    return {"obs": history.observations(), "n": np.array([len(one) for one in history.infos], np.float32)}


def as_numpy(history: Any) -> Any:
    return {"obs": np.asarray(history.observations(), np.float32) * 2}


def masked(history: Any) -> Any:
    o = history.observations() * 1
    o[o < 0] = 0
    return {"obs": o}


def selected(history: Any) -> Any:
    o = history.observations()
    return {"obs": np.where(o < 0, o.dtype.type(0), o)}


def logits(history: Any) -> Any:
    before = history.extra("action_dist_inputs", 1, np.zeros(2, np.float32))[:, 0]
    return {"obs": np.concatenate([history.observations(), before], 1)}


def statistics(history: Any) -> Any:
    o = history.observations(4)
    return {"obs": np.concatenate([o.mean(1), o.std(1), o.max(1), o.min(axis=1)], 1)}


def sorted_parts(history: Any) -> Any:
    return {"obs": np.sort(history.observations(), axis=-1)[:, ::-1] * np.float32(1)}


def normalized(history: Any) -> Any:
    o = history.observations()
    return {"obs": o / (np.linalg.norm(o, axis=-1, keepdims=True) + np.float32(1e-3))}


def differences(history: Any) -> Any:
    return {"obs": np.diff(history.observations(3), axis=1).reshape(-1, 8)}


def rewards_so_far(history: Any) -> Any:
    total = np.cumsum(history.rewards(4), axis=1)
    return {"obs": np.concatenate([history.observations(), total], 1)}


def cubic(history: Any) -> Any:
    return {"obs": np.cbrt(history.observations())}


def clipped_in_place(history: Any) -> Any:
    o = history.observations() * 2
    np.clip(o, -1, 1, out=o)
    o += np.float32(0.5)
    return {"obs": o}


def by_row(history: Any) -> Any:
    return {"obs": np.stack([row * 2 for row in history.observations()])}


class Rounded(Connector):
    """A connector between the policy's outputs and the environment."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch["actions_for_env"] = np.round(batch["actions"] * 2) / 2
        return batch


EXPORTED = [
    *(Scale(), ZerosLike(), Doubled(), speed, polar, fourier, clock, moving_mean, decayed, bins, bins_by_comparison),
    *(last_actions, actions_of_window, masked, selected, statistics, sorted_parts, normalized, differences),
    *(rewards_so_far, clipped_in_place),
]
ALONE = [ScaleOne(), fourier_by_len, by_row]  # with batch=1 only
REJECTED: list[tuple[Any, str]] = [
    (IntoBuffer(), "needs the numbers|len.. of a batch"),
    (Branching(), "`if`"),
    (Stateful(), "does not act as the actor"),
    (Aliasing(), "does not act as the actor"),
    (ReadsEpisodes(), "does not act as the actor"),
    (Random(), "does not act as the actor"),
    (TorchInside(), "np.ascontiguousarray has no traced form|needs the numbers|can't convert"),
    (PlainOfEpisodes(), "no episodes"),
    (last_action_by_eye, "needs the numbers"),
    (reads_infos, r"history\.infos"),
    (as_numpy, "np.asarray"),
    (logits, r"history\.extra"),
    (cubic, "np.cbrt has no traced form"),
    (OneHotAgentId(["left", "right"]), r"history\.agent_ids"),
]


def name_of(piece: Any) -> str:
    return getattr(piece, "__name__", type(piece).__name__)


def made_actor(piece: Any) -> Actor:
    torch.manual_seed(0)
    make = Flexible if name_of(piece) in ("reads_infos", "OneHotAgentId") else partial(MLPPolicy, hidden_sizes=(8,))
    actor = Actor(make, NUMBERS, CHOICE, pieces=[MeanStdFilter(), piece])
    with torch.no_grad():
        for parameter in actor.policy.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    NUMBERS.seed(0)
    actor.env_to_module.rewriters["MeanStdFilter"].rewrite(nested.stack([NUMBERS.sample() for _ in range(30)]))
    return actor


class Flexible(MLPPolicy):
    """Reads the observations only."""


@pytest.mark.slow
@pytest.mark.parametrize("piece", EXPORTED, ids=name_of)
def test_pure_piece_is_exported(piece: Any, tmp_path: Path) -> None:
    parity = export(made_actor(piece), tmp_path / "policy.onnx", num_steps=200).parity
    assert parity.num_ties <= 2


@pytest.mark.slow
@pytest.mark.parametrize("piece", ALONE, ids=name_of)
def test_piece_of_single_observations_is_exported_with_batch_1(piece: Any, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=name_of(piece)):
        export(made_actor(piece), tmp_path / "policy.onnx")
    export(made_actor(piece), tmp_path / "policy.onnx", batch=1, num_steps=100)


@pytest.mark.slow
@pytest.mark.parametrize("explore", [False, True])
def test_connector_of_actions_is_exported(explore: bool, tmp_path: Path) -> None:
    pipeline = module_to_env_pipeline(NUMBERS, BOX, pieces=[Rounded()])
    actor = Actor(partial(MLPPolicy, hidden_sizes=(8,)), NUMBERS, BOX, module_to_env=pipeline)
    export(actor, tmp_path / "policy.onnx", explore=explore, num_steps=100)


@pytest.mark.parametrize(("piece", "words"), REJECTED, ids=[name_of(piece) for piece, _ in REJECTED])
def test_piece_without_a_form_is_rejected_by_name(piece: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=words) as error:
        export(made_actor(piece), tmp_path / "policy.onnx", num_steps=200)
    if "does not act" not in words:
        assert name_of(piece) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_rejection_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=r"connector Branching cannot .*test_export_of_user_pieces.py:\d+"):
        export(made_actor(Branching()), tmp_path / "policy.onnx")


class BranchingPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        outputs = super().forward(batch, explore)
        return outputs if batch["obs"].sum() > 0 else {name: -value for name, value in outputs.items()}


class DrawingPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        return {"actions": torch.multinomial(super().forward(batch)["action_dist_inputs"].softmax(-1), 1)[:, 0]}


@pytest.mark.parametrize(
    ("make", "words"), [(BranchingPolicy, "BranchingPolicy|the actor"), (DrawingPolicy, "multinomial")]
)
def test_policy_that_has_no_form_is_rejected(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=words):
        export(Actor(make, NUMBERS, CHOICE), tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == []

"""Connectors and views of a user are exported with equal results, or rejected by name."""

from __future__ import annotations

import re
from contextlib import suppress
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
from connectors.export.serve import ServedPolicy
from episode_learners import MLPPolicy
from episodes.errors import EpisodeError, NotExportable
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
    def recompute_output_observation_space(self, *arguments: Any) -> Any:
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


class ClipsRareValues(ObservationPreprocessor):
    """Writes into a slice, which no sampled observation needs."""

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        out = observations * 1
        part = out[:, 2:]
        part[part > 1000] = 1000
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


def angle_of_doubles(history: Any) -> Any:
    return {"obs": np.arctan(history.observations().astype(np.float64))}


def angles_of_zeros(history: Any) -> Any:
    o = np.trunc(history.observations())  # many zeros
    return {"obs": np.concatenate([np.arctan2(o, -1), np.arctan2(o, o[:, ::-1])], 1).astype(np.float32)}


def logs_of_sums(history: Any) -> Any:
    o = history.observations() * 40  # the exponential of 89 overflows
    return {"obs": np.logaddexp(o, 1).astype(np.float32)}


def functions_of_integers(history: Any) -> Any:
    o = np.trunc(history.observations() * 3).astype(np.int64)
    parts = [np.fmax(o, 1), np.floor(o), np.rint(o), np.round(o), np.square(o), np.isfinite(o), np.isnan(o)]
    return {"obs": np.concatenate(parts, 1).astype(np.float32)}


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
    return {"obs": history.observations(), "n": np.array([len(info) for info in history.infos], np.float32)}


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


def loop_over_frames(history: Any) -> Any:
    frames = history.observations(3)
    total = frames[:, 0] * 0
    for i in range(3):
        total = total * np.float32(0.5) + frames[:, i]
    return {"obs": total}


def in_place_columns(history: Any) -> Any:
    o = history.observations() * np.float32(1)
    o[:, 0] += np.float32(1)
    o[:, 1:] *= np.float32(2)
    return {"obs": o}


def differences_of_bytes(history: Any) -> Any:
    o = (history.observations(2) * 10 + 128).astype(np.uint8)  # differences wrap around
    return {"obs": (o[:, 1] - o[:, 0]).astype(np.float32)}


def integer_division(history: Any) -> Any:
    o = (history.observations() * 7).astype(np.int64)
    return {"obs": np.concatenate([o // -3, o % 3], 1).astype(np.float32)}


def half_precision(history: Any) -> Any:
    return {"obs": history.observations().astype(np.float16).astype(np.float32)}


def even_steps(history: Any) -> Any:
    return {"obs": history.observations() * (history.t % 2 == 0)[:, None].astype(np.float32)}


def masks_alone(history: Any) -> Any:
    return {"obs": np.concatenate([history.stepped(3), history.observed(3)], 1).astype(np.float32)}


def speeds_of_window(history: Any) -> Any:
    two = history.window(3).observations(2)
    return {"obs": (two[:, 1] - two[:, 0]).reshape(-1, 12)}


def products(history: Any) -> Any:
    o = history.observations()
    return {"obs": (o[:, :, None] * o[:, None, :]).reshape(-1, 16)}


def softmax(history: Any) -> Any:
    o = history.observations()
    powers = np.exp(o - o.max(-1, keepdims=True))
    return {"obs": powers / powers.sum(-1, keepdims=True)}


class Multiplied:
    """A view that is an object with settings."""

    def __init__(self, by: float) -> None:
        self.by = np.float32(by)

    def __call__(self, history: Any) -> Any:
        return {"obs": history.observations() * self.by}


def multiplied(history: Any, by: float) -> Any:
    return {"obs": history.observations() * np.float32(by)}


class MovingMean(ObservationPreprocessor):
    """Keeps a state in an array."""

    mean: Any = None

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        newest = observations.mean(0)
        self.mean = newest if self.mean is None else self.mean * np.float32(0.9) + newest * np.float32(0.1)
        return observations - self.mean


class FirstIsOther(ObservationPreprocessor):
    """Treats its first call differently."""

    was_called = False

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        factor, self.was_called = np.float32(1 + self.was_called), True
        return observations * factor


def by_type(history: Any) -> Any:
    o = history.observations()
    return {"obs": o * np.float32(2) if isinstance(o, np.ndarray) else o}


def by_trial(history: Any) -> Any:
    o = history.observations()
    with suppress(TypeError):
        o = np.asarray(o) * np.float32(2)
    return {"obs": o}


def column_of_ones(history: Any) -> Any:
    o = history.observations()
    return {"obs": np.concatenate([o, np.ones((o.shape[0], 1), np.float32)], 1)}


def repeated_constant(history: Any) -> Any:
    o = history.observations()
    return {"obs": np.concatenate([o, np.broadcast_to(np.arange(4, dtype=np.float32), (o.shape[0], 4))], 1)}


def element_by_element(history: Any) -> Any:
    return {"obs": np.vectorize(lambda x: x * 2)(history.observations())}


def spectrum(history: Any) -> Any:
    return {"obs": np.abs(np.fft.rfft(history.observations(4), axis=1)).reshape(-1, 12).astype(np.float32)}


def depends_on_others(history: Any) -> Any:
    o = history.observations()
    return {"obs": o - o.mean(axis=0, keepdims=True)}


def draws_numbers(history: Any) -> Any:
    return {"obs": (history.observations() + np.random.default_rng().normal(size=4)).astype(np.float32)}


def another_number_of_rows(history: Any) -> Any:
    return {"obs": np.unique(history.observations())}


class Rounded(Connector):
    """A connector between the policy's outputs and the environment."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch["actions_for_env"] = np.round(batch["actions"] * 2) / 2
        return batch


EXPORTED = [
    *(Scale(), ZerosLike(), Doubled(), speed, polar, fourier, clock, moving_mean, decayed, bins, bins_by_comparison),
    *(last_actions, actions_of_window, masked, selected, statistics, sorted_parts, normalized, differences),
    *(rewards_so_far, clipped_in_place, loop_over_frames, in_place_columns, differences_of_bytes, integer_division),
    *(angles_of_zeros, logs_of_sums, functions_of_integers),
    *(half_precision, even_steps, masks_alone, speeds_of_window, products, softmax, Multiplied(3)),
    partial(multiplied, by=3.0),
]
ALONE = [ScaleOne(), fourier_by_len, by_row, column_of_ones, repeated_constant]  # with batch=1 only
REJECTED: list[tuple[Any, str]] = [
    (IntoBuffer(), "needs the numbers|len.. of a batch"),
    (Branching(), "`if`"),
    (TorchInside(), "np.ascontiguousarray cannot be exported|needs the numbers|can't convert"),
    (PlainOfEpisodes(), "no episodes"),
    (last_action_by_eye, "needs the numbers"),
    (reads_infos, r"history\.infos"),
    (as_numpy, "np.asarray"),
    (logits, r"history\.extra"),
    (cubic, "np.cbrt cannot be exported"),
    (Aliasing(), "after a write into a slice"),
    (ClipsRareValues(), "after a write into a slice"),
    (angle_of_doubles, r"(?s)onnxruntime cannot run the file.*Atan.*astype"),
    (element_by_element, "needs the numbers"),
    (spectrum, "np.rfft cannot be exported"),
    (Stateful(), DIFFERS := "does not act as the actor"),
]
FOUND_BY_ACTING = [ReadsEpisodes(), Random(), MovingMean(), FirstIsOther(), by_type, by_trial]
REJECTED_BY_ACTOR = [depends_on_others, draws_numbers, another_number_of_rows]


def name_of(piece: Any) -> str:
    piece = piece.func if isinstance(piece, partial) else piece
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
    """Policy that reads the observations only."""


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


@pytest.mark.parametrize(
    ("piece", "words"),
    [*REJECTED, *[pytest.param(piece, DIFFERS, marks=pytest.mark.slow) for piece in FOUND_BY_ACTING]],
    ids=[*[name_of(piece) for piece, _ in REJECTED], *map(name_of, FOUND_BY_ACTING)],
)
def test_piece_without_a_form_is_rejected_with_its_line(piece: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=words) as error:
        export(made_actor(piece), tmp_path / "policy.onnx", num_steps=200)
    assert re.search(rf"{name_of(piece)}.*\(.*test_export_of_user_pieces\.py:\d+\)", str(error.value), re.DOTALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("piece", REJECTED_BY_ACTOR, ids=name_of)
def test_view_that_breaks_the_rules_of_views_makes_no_actor(piece: Any) -> None:
    with pytest.raises(EpisodeError, match=f"view {name_of(piece)}"):
        made_actor(piece)


def test_view_of_agent_ids_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=r"OneHotAgentId.*history\.agent_ids"):
        export(made_actor(OneHotAgentId(["left", "right"])), tmp_path / "policy.onnx")


class BranchingPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        outputs = super().forward(batch, explore)
        return outputs if batch["obs"].sum() > 0 else {name: -value for name, value in outputs.items()}


class DrawingPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        return {"actions": torch.multinomial(super().forward(batch)["action_dist_inputs"].softmax(-1), 1)[:, 0]}


class RandomPolicy(MLPPolicy):
    """Draws its actions by `draw`, from a distribution with parameters."""

    def __init__(self, *spaces: Any, draw: Any) -> None:
        super().__init__(*spaces, hidden_sizes=(4,))
        self.draw = draw

    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        numbers = torch.zeros_like(batch["obs"][:, :2])
        self.draw(numbers)  # the result is in `numbers`
        return {"actions": numbers + 0 * batch["obs"][:, :2]}


WIDE = spaces.Box(-1.0, 1.0, (2,), np.float32)
DRAWS: dict[str, tuple[Any, float, float]] = {  # with mean and standard deviation
    "normal": (lambda x: x.normal_(0.5, 0.1), 0.5, 0.1),
    "normal by names": (lambda x: x.normal_(mean=-0.5, std=0.1), -0.5, 0.1),
    "uniform": (lambda x: x.uniform_(0.2, 0.8), 0.5, 0.6 / 12**0.5),
    "uniform by names": (lambda x: x.uniform_(to=0.8, **{"from": 0.2}), 0.5, 0.6 / 12**0.5),
    "exponential": (lambda x: x.exponential_(20.0), 0.05, 0.05),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("explore", [False, True])
def test_random_numbers_of_a_policy_have_the_parameters_of_its_distribution(
    kind: str, explore: bool, tmp_path: Path
) -> None:
    draw, mean, deviation = DRAWS[kind]
    actor = Actor(partial(RandomPolicy, draw=draw), NUMBERS, WIDE)
    export(actor, tmp_path / "policy.onnx", explore=explore, num_steps=4)
    actions = ServedPolicy(tmp_path / "policy.onnx", 4000, seed=0)(np.zeros((4000, 4), np.float32), first=True)
    assert actions.mean() == pytest.approx(mean, abs=0.02)
    assert actions.std() == pytest.approx(deviation, rel=0.1)


class DropoutPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        return super().forward({**batch, "obs": torch.nn.functional.dropout(batch["obs"], 0.5, training=True)})


class NormalPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        return super().forward({**batch, "obs": torch.normal(batch["obs"], 1.0)})


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize(
    ("make", "words"), [(DropoutPolicy, DIFFERS), (NormalPolicy, r"torch\.normal draws random numbers")]
)
def test_policy_with_other_random_numbers_is_rejected(make: Any, words: str, explore: bool, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=words):
        export(Actor(make, NUMBERS, CHOICE), tmp_path / "policy.onnx", explore=explore, num_steps=50)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "words"), [(BranchingPolicy, "BranchingPolicy|the actor"), (DrawingPolicy, "multinomial")]
)
def test_policy_that_has_no_form_is_rejected(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=words):
        export(Actor(make, NUMBERS, CHOICE), tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == []

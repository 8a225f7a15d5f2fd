"""Connectors and views of a user are exported with equal results, or rejected by name."""

from __future__ import annotations

import re
from collections.abc import Callable
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


class View:
    """View that computes "obs" by a function of the history, under a name."""

    def __init__(self, name: str, compute: Callable[[Any], Any]) -> None:
        self.name, self.compute = name, compute

    def __call__(self, history: Any) -> Any:
        return {"obs": self.compute(history)}


class Rows(ObservationPreprocessor):
    """Preprocessor that rewrites rows by a function of the rows and the episodes."""

    def __init__(self, name: str, compute: Callable[..., Any], width: int = 4) -> None:
        self.compute, self.width = compute, width
        super().__init__(name=name)

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return self.compute(observations, episodes)

    def recompute_output_observation_space(self, *arguments: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, (self.width,), np.float32)


class ScaleOne(ObservationPreprocessor):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return (observation / 3).astype(np.float32)


class Stateful(ObservationPreprocessor):
    num_calls = 0

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        self.num_calls += 1
        return (observations + np.float32(self.num_calls)).astype(np.float32)


class Random(ObservationPreprocessor):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return (observations + self.generator.normal(size=4)).astype(np.float32)


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


class Batches(Connector):
    """Connector that replaces the observations of the batch by a function of the batch and the episodes."""

    def __init__(self, name: str, compute: Callable[..., Any]) -> None:
        self.compute = compute
        super().__init__(name=name)

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        batch["obs"] = self.compute(batch["obs"], episodes)
        return batch


def into_buffer(observations: Any, episodes: Any) -> Any:
    out = np.zeros((len(observations), 5), np.float32)
    out[:, :4], out[:, 4] = observations, 1
    return out


def into_zeros_like(observations: Any, episodes: Any) -> Any:
    out = np.zeros_like(observations)
    out[:, 0], out[:, 1:] = observations[:, 1], observations[:, :3] * 2
    return out


def into_slice(observations: Any, episodes: Any) -> Any:
    out = observations * 1
    part = out[:, :2]
    part *= 0.5
    return out


def into_slice_of_rare_values(observations: Any, episodes: Any) -> Any:
    out = observations * 1
    part = out[:, 2:]
    part[part > 1000] = 1000  # which no sampled observation needs
    return out


def masked(history: Any) -> Any:
    o = history.observations() * 1
    o[o < 0] = 0
    return {"obs": o}


def clipped_in_place(history: Any) -> Any:
    o = history.observations() * 2
    np.clip(o, -1, 1, out=o)
    o += np.float32(0.5)
    o[:, 0] += np.float32(1)
    o[:, 1:] *= np.float32(2)
    return {"obs": o}


def loop_over_frames(history: Any) -> Any:
    frames = history.observations(3)
    total = frames[:, 0] * 0
    for i in range(3):
        total = total * np.float32(0.5) + frames[:, i]
    return {"obs": total}


def speed(history: Any) -> Any:
    two = history.observations(2)
    return {"obs": np.concatenate([two[:, 1], (two[:, 1] - two[:, 0]) * history.observed(2)[:, :1]], axis=1)}


def functions_of_integers(history: Any) -> Any:
    o = np.trunc(history.observations() * 3).astype(np.int64)
    parts = [np.fmax(o, 1), np.floor(o), np.rint(o), np.round(o), np.square(o), np.isfinite(o), np.isnan(o)]
    return {"obs": np.concatenate([*parts, o // -3, o % 3], 1).astype(np.float32)}


def differences_of_bytes(history: Any) -> Any:
    o = (history.observations(2) * 10 + 128).astype(np.uint8)  # differences wrap around
    return {"obs": (o[:, 1] - o[:, 0]).astype(np.float32)}


def reads_infos(history: Any) -> Any:
    return {"obs": history.observations(), "n": np.array([len(info) for info in history.infos], np.float32)}


def by_trial(history: Any) -> Any:
    o = history.observations()
    with suppress(TypeError):
        o = np.asarray(o) * np.float32(2)
    return {"obs": o}


class Multiplied:
    """View that is an object with settings."""

    def __init__(self, by: float) -> None:
        self.by = np.float32(by)

    def __call__(self, history: Any) -> Any:
        return {"obs": history.observations() * self.by}


def multiplied(history: Any, by: float) -> Any:
    return {"obs": history.observations() * np.float32(by)}


def joined(*parts: Any) -> Any:
    return np.concatenate(parts, 1).astype(np.float32)


def waves(o: Any) -> Any:
    angles = o[..., None] * (2.0 ** np.arange(3))
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)


def polar(o: Any) -> Any:
    return [np.hypot(o[:, 0], o[:, 1]), np.arctan2(o[:, 0], o[:, 1]), np.sin(o[:, 2]), np.cos(o[:, 3])]


WEIGHTS = (0.9 ** np.arange(4)[::-1]).astype(np.float32)
OF_HISTORIES: dict[str, Callable[[Any], Any]] = {
    "clock": lambda h: joined(h.observations(), np.minimum(h.t, 80)[:, None] / 80),
    "moving mean": lambda h: h.observations(8).mean(axis=1),
    "decayed": lambda h: np.einsum("bkd,k->bd", h.observations(4), WEIGHTS),
    "last actions": lambda h: joined(h.observations(), h.flat_actions(3).reshape(-1, 6), h.rewards(3)),
    "actions of a window": lambda h: joined(h.observations(), h.window(2).flat_actions(1).reshape(-1, 4)),
    "statistics": lambda h: joined(*(getattr(h.observations(4), name)(1) for name in ("mean", "std", "max", "min"))),
    "differences": lambda h: np.diff(h.observations(3), axis=1).reshape(-1, 8),
    "rewards so far": lambda h: joined(h.observations(), np.cumsum(h.rewards(4), axis=1)),
    "even steps": lambda h: h.observations() * (h.t % 2 == 0)[:, None].astype(np.float32),
    "masks alone": lambda h: joined(h.stepped(3), h.observed(3)),
    "speeds of a window": lambda h: np.diff(h.window(3).observations(2), axis=1).reshape(-1, 12),
}
OF_OBSERVATIONS: dict[str, Callable[[Any], Any]] = {
    "polar": lambda o: np.stack(polar(o), axis=-1).astype(np.float32),
    "fourier": lambda o: waves(o).reshape(o.shape[0], -1).astype(np.float32),
    "bins": lambda o: (np.digitize(o, [-1, 0, 1])[..., None] == np.arange(4)).reshape(o.shape[0], -1).astype("f"),
    "bins by comparison": lambda o: (o[..., None] >= np.array([-1, 0, 1], np.float32)).sum(-1).astype(np.float32),
    "selected": lambda o: np.where(o < 0, o.dtype.type(0), o),
    "sorted": lambda o: np.sort(o, axis=-1)[:, ::-1] * np.float32(1),
    "normalized": lambda o: o / (np.linalg.norm(o, axis=-1, keepdims=True) + np.float32(1e-3)),
    "angles of zeros": lambda o: joined(np.arctan2(np.trunc(o), -1), np.arctan2(np.trunc(o), np.trunc(o)[:, ::-1])),
    "logs of sums": lambda o: np.logaddexp(o * 40, 1).astype(np.float32),  # the exponential of 89 overflows
    "half precision": lambda o: o.astype(np.float16).astype(np.float32),
    "products": lambda o: (o[:, :, None] * o[:, None, :]).reshape(-1, 16),
    "softmax": lambda o: np.exp(o - o.max(-1, keepdims=True)) / np.exp(o - o.max(-1, keepdims=True)).sum(-1)[:, None],
}


def views_of(functions: dict[str, Callable[[Any], Any]]) -> list[View]:
    """Return views of the newest observations."""
    return [View(name, lambda h, compute=compute: compute(h.observations())) for name, compute in functions.items()]


class Rounded(Connector):
    """A connector between the policy's outputs and the environment."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch["actions_for_env"] = np.round(batch["actions"] * 2) / 2
        return batch


EXPORTED = [
    Rows("scaled", lambda rows, episodes: np.tanh(rows / np.float32(3)).astype(np.float32)),
    Rows("zeros like", into_zeros_like),
    Batches("doubled", lambda rows, episodes: rows * 2),
    *(speed, masked, clipped_in_place, loop_over_frames, functions_of_integers, differences_of_bytes),
    *(Multiplied(3), partial(multiplied, by=3.0)),
    *[View(name, compute) for name, compute in OF_HISTORIES.items()],
    *views_of(OF_OBSERVATIONS),
]
ALONE = [  # with batch=1 only
    ScaleOne(),
    *views_of(
        {
            "reshape by len": lambda o: waves(o).reshape(len(o), -1).astype(np.float32),
            "by row": lambda o: np.stack([row * 2 for row in o]),
            "column of ones": lambda o: joined(o, np.ones((o.shape[0], 1), np.float32)),
            "constants": lambda o: joined(o, np.broadcast_to(np.arange(4, dtype=np.float32), (o.shape[0], 4))),
        }
    ),
]
OF_UNKNOWN_FORM: dict[str, tuple[Callable[[Any], Any], str]] = {
    "action by eye": (lambda h: joined(h.observations(), np.eye(2)[h.actions(1)[:, 0]]), "needs the numbers"),
    "as numpy": (lambda h: np.asarray(h.observations(), np.float32) * 2, "np.asarray"),
    "logits": (lambda h: joined(h.observations(), h.extra("x", 1, np.zeros(2, "f"))[:, 0]), r"history\.extra"),
    "cubic": (lambda h: np.cbrt(h.observations()), "np.cbrt cannot be exported"),
    "doubles": (lambda h: np.arctan(h.observations().astype(float)), "(?s)onnxruntime cannot run.*Atan.*astype"),
    "elements": (lambda h: np.vectorize(lambda x: x * 2)(h.observations()), "needs the numbers"),
    "spectrum": (lambda h: np.abs(np.fft.rfft(h.observations())).astype("f"), "np.rfft cannot be exported"),
}
NO_ARRAY = "np.ascontiguousarray cannot be exported|needs the numbers|can't convert"
REJECTED: list[tuple[Any, str]] = [
    (Rows("buffer", into_buffer, width=5), "needs the numbers|len.. of a batch"),
    (Rows("branch", lambda rows, episodes: rows if rows[0, 0] > 0 else -rows), "`if`"),
    (Rows("torch", lambda rows, _: torch.from_numpy(np.ascontiguousarray(rows)).tanh().numpy()), NO_ARRAY),
    (Rows("slice", into_slice), "after a write into a slice"),
    (Rows("rare values", into_slice_of_rare_values), "after a write into a slice"),
    (Batches("episodes", lambda _, episodes: np.stack([e.get_observations(-1) for e in episodes])), "no episodes"),
    (reads_infos, r"history\.infos"),
    *[(View(name, compute), words) for name, (compute, words) in OF_UNKNOWN_FORM.items()],
    (Stateful(), DIFFERS := "does not act as the actor"),
]
FOUND_BY_ACTING = [
    Rows("length", lambda rows, episodes: rows if episodes is None else (rows * len(episodes[0])).astype(np.float32)),
    *(Random(), MovingMean(), FirstIsOther()),
    View("type", lambda h: h.observations() * np.float32(2 if isinstance(h.observations(), np.ndarray) else 1)),
    by_trial,
]
REJECTED_BY_ACTOR = views_of(
    {
        "other rows": lambda o: o - o.mean(axis=0, keepdims=True),
        "chance": lambda o: (o + np.random.default_rng().normal(size=4)).astype(np.float32),
        "unique": np.unique,
    }
)


def name_of(piece: Any) -> str:
    piece = piece.func if isinstance(piece, partial) else piece
    return getattr(piece, "__name__", None) or getattr(piece, "name", type(piece).__name__)


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

"""Each policy with each view and rewriter acts in its exported file as its actor does, where torch is not installed.

The files are replayed in a virtual environment with numpy and onnxruntime only. It is made once, with pip. All cases:

    python -m pytest -m slow -s tests/connectors/test_export_matrix.py

Distribution inputs and continuous actions are equal if they differ by at most 1e-5 of their range. Rounding alone
comes close to it in networks that amplify it, such as "autoregressive encoder, parts, all", whose actions are inputs of
its next steps. There torch itself is 4.7e-6 of the range from the same network in float64, and the file 0.7e-5: the two
sum in different orders. It was 1.2e-5 with the float32 Tanh of onnxruntime, so files compute Tanh in float64.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from connectors import Actor, distribution_for
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    NormalizeObservations,
    ObservationPreprocessor,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
from connectors.export import export
from connectors.export.actor_graph import Noise
from connectors.export.serve import ServedPolicy
from episode_learners import (
    EncoderPolicy,
    GRUPolicy,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    QPolicy,
    SACPolicy,
    TransformerPolicy,
)
from episodes.tracks import nested
from tests.actor_cases import (
    BOX,
    CHOICE,
    IMAGE,
    MASKED,
    NESTED,
    NUMBERS,
    PARTS,
    SMALL,
    autoregressive,
    make_actor,
    sample_items,
    squashed,
)

NUM_ENVS, NUM_STEPS = 4, 500  # 2,000 steps of each case
TOLERANCE = 1e-5  # relative to the range of actions, and to the largest distribution input
MOST_TIES = 4  # steps of a case whose two best actions are equal up to rounding


class Scaled(ObservationPreprocessor):
    """A rewriter of a user."""

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return nested.map_leaves(lambda leaf: np.tanh(leaf / np.float32(3)).astype(np.float32), observations)


VIEWS: dict[str, Callable[[], list[Any]]] = {
    "nothing": list,
    "flat": lambda: [FlattenObservations()],
    "filter": lambda: [MeanStdFilter()],
    "unclipped filter": lambda: [MeanStdFilter(clip_by_value=None)],
    "normalized": lambda: [NormalizeObservations(), FrameStacking(num_frames=2)],
    "preprocessor": lambda: [Scaled()],
    "frames": lambda: [FrameStacking(num_frames=4)],
    "frames of frames": lambda: [FrameStacking(num_frames=2), FrameStacking(num_frames=3)],
    "previous steps": lambda: [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3), FlattenObservations()],
    "time": lambda: [time_steps],
    "all": lambda: [
        *(FlattenObservations(), MeanStdFilter(), Scaled(), FrameStacking(num_frames=4)),
        *(PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2), FlattenObservations(), time_steps),
    ],
}
OF_NUMBERS = tuple(name for name in VIEWS if name not in ("flat", "all"))
OF_PARTS = ("flat", "all")
ENCODED = ("nothing", "filter", "flat", "previous steps", "time", "all")  # of a Dict

# policy, action space, {observation space: views}, connectors after the views
KINDS: dict[str, tuple[Any, Any, list[tuple[Any, tuple[str, ...]]], list[Any]]] = {
    "mlp": (partial(MLPPolicy, **SMALL), CHOICE, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "mlp of a box": (partial(MLPPolicy, **SMALL), BOX, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "mlp of nested actions": (partial(MLPPolicy, **SMALL), NESTED, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "squashed mlp": (partial(squashed), BOX, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "sac": (partial(SACPolicy, **SMALL), BOX, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "lstm": (partial(LSTMPolicy, state_size=16), CHOICE, [(NUMBERS, OF_NUMBERS), (PARTS, ("filter", *OF_PARTS))], []),
    "gru": (partial(GRUPolicy, state_size=16), BOX, [(NUMBERS, OF_NUMBERS), (PARTS, ("filter", *OF_PARTS))], []),
    "q": (QPolicy, CHOICE, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS), (MASKED, ("nothing",))], []),
    "dueling q": (partial(QPolicy, dueling=True), CHOICE, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "lstm q": (LSTMQPolicy, CHOICE, [(NUMBERS, OF_NUMBERS), (PARTS, OF_PARTS)], []),
    "encoder": (EncoderPolicy, CHOICE, [(PARTS, ENCODED), (MASKED, ("nothing", "time"))], []),
    "encoder of images": (EncoderPolicy, CHOICE, [(IMAGE, ("nothing", "frames", "frames of frames"))], []),
    "autoregressive encoder": (partial(autoregressive), NESTED, [(NUMBERS, OF_NUMBERS), (PARTS, ENCODED)], []),
    "transformer": (
        TransformerPolicy,
        CHOICE,
        [(NUMBERS, ("nothing", "filter", "unclipped filter", "preprocessor")), (PARTS, ("filter",))],
        [TransformerContext(k=5)],
    ),
}
NAMES = {id(NUMBERS): "numbers", id(PARTS): "parts", id(IMAGE): "image", id(MASKED): "masked"}


@dataclass(frozen=True)
class Case:
    kind: str
    observation_space: Any
    view: str
    explore: bool

    def __str__(self) -> str:
        explores = ", explore" if self.explore else ""
        return f"{self.kind}, {NAMES[id(self.observation_space)]}, {self.view}{explores}"

    def make_actor(self) -> Actor:
        """Return an actor with statistics, whose actions depend on what it sees."""
        make, action_space, _, after = KINDS[self.kind]
        return make_actor(make, self.observation_space, action_space, [*VIEWS[self.view](), *after])


def list_cases() -> Iterator[Case]:
    for kind, (_, _, inputs, _) in KINDS.items():
        for space, views in inputs:
            yield from (Case(kind, space, view, False) for view in views)
        space, views = inputs[0]
        yield Case(kind, space, views[-1], True)


# Run in the other environment: a folder with policy.onnx, serve.py and data.npz.
REPLAY = """
import importlib.util, json, sys
sys.path.insert(0, ".")
import numpy as np
from serve import ServedPolicy
for name in ("torch", "gymnasium", "episodes", "connectors", "episode_learners"):
    assert importlib.util.find_spec(name) is None, name
data = np.load("data.npz", allow_pickle=False)
num_steps, num_envs = data["first"].shape
together, alone = ServedPolicy("policy.onnx", num_envs), [ServedPolicy("policy.onnx") for _ in range(num_envs)]

def structured(names, arrays):
    if isinstance(names, str):
        return arrays[names]
    parts = names.items() if isinstance(names, dict) else enumerate(names)
    parts = {key: structured(part, arrays) for key, part in parts}
    return parts if isinstance(names, dict) else tuple(parts.values())

def flat(names, value):
    if isinstance(names, str):
        return {names: np.asarray(value)}
    parts = names.items() if isinstance(names, dict) else enumerate(names)
    return {name: leaf for key, part in parts for name, leaf in flat(part, value[key]).items()}

rows = []
for t in range(num_steps):
    row = {name: data[name][t] for name in data.files}
    noise = row.get("noise")
    observations = structured(together.about["observation"], row)
    actions = flat(together.about["action"], together(observations, row["reward"], first=row["first"], noise=noise))
    single = []
    for i, policy in enumerate(alone):
        observation = structured(together.about["observation"], {name: leaf[i : i + 1] for name, leaf in row.items()})
        part = slice(i, i + 1)
        options = {"first": row["first"][part], "noise": None if noise is None else noise[part]}
        action = policy(observation, row["reward"][part], **options)
        single.append({**flat(together.about["action"], action), **policy.outputs})
    row = {**together.outputs, **actions}
    rows.append({f"together/{name}": array for name, array in row.items() if not name.startswith("next/")})
    rows[-1] |= {f"alone/{name}": np.concatenate([one[name] for one in single]) for name in row if "next/" not in name}
np.savez("served.npz", **{name: np.stack([row[name] for row in rows]) for name in rows[0]})
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a virtual environment with numpy and onnxruntime, and nothing else that the file needs."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "--no-input", "install", "--quiet", "numpy>=2", "onnxruntime>=1.20"]
    subprocess.run(install, check=True)
    return python


def act_on_samples(actor: Actor, served: ServedPolicy, explore: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let an actor act on sampled observations in episodes of random lengths.

    Returns:
        The inputs [T, N, ...] by name, and the actor's actions and distribution inputs [T, N, ...] by name.
    """
    generator = np.random.default_rng(0)
    items = sample_items(actor.observation_space, NUM_ENVS * NUM_STEPS)
    first = generator.random((NUM_STEPS, NUM_ENVS)) < 0.05
    first[0] = True
    rewards = np.where(first, 0, generator.normal(size=first.shape)).astype(np.float32)
    sizes = [(kind, size) for kind, size in served.about["noise"]]
    draws: dict[str, Any] = {"exponential": generator.standard_exponential, "normal": generator.standard_normal}
    parts = [draws.get(kind, generator.random)((NUM_STEPS, NUM_ENVS, size), np.float32) for kind, size in sizes]
    noise = np.concatenate(parts, -1) if parts else None
    states: list[Any] = [None] * NUM_ENVS
    rows: list[Any] = []
    for t in range(NUM_STEPS):
        for env in range(NUM_ENVS):
            state = None if first[t, env] else states[env]
            with Noise(None if noise is None else torch.from_numpy(noise[t, env][None].copy())):
                action, states[env] = actor.act(
                    items[t * NUM_ENVS + env], state, reward=float(rewards[t, env]), explore=explore
                )
            outputs = {"action_dist_inputs": states[env].outputs["action_dist_inputs"]}
            rows.append({**nested.flatten(action, "action"), **outputs})
    shape = (NUM_STEPS, NUM_ENVS)
    stacked = nested.flatten(nested.stack(items), "obs")
    inputs = {name: leaf.reshape(*shape, *leaf.shape[1:]) for name, leaf in stacked.items()}
    inputs |= {"first": first, "reward": rewards} | ({} if noise is None else {"noise": noise})
    outputs = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    return inputs, {name: leaf.reshape(*shape, *leaf.shape[1:]) for name, leaf in outputs.items()}


ALL = [pytest.param(case, marks=pytest.mark.slow, id=str(case)) for case in list_cases()]


@pytest.mark.parametrize("case", ALL)
def test_file_acts_as_its_actor_without_torch(case: Case, bare_python: Path, tmp_path: Path) -> None:
    actor = case.make_actor()
    export(actor, tmp_path / "policy.onnx", explore=case.explore, num_steps=8)
    inputs, expected = act_on_samples(actor, ServedPolicy(tmp_path / "policy.onnx"), case.explore)
    np.savez(tmp_path / "data.npz", **inputs)
    command = [bare_python, "-I", "-c", REPLAY]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    served = np.load(tmp_path / "served.npz", allow_pickle=False)
    for way in ("together", "alone"):
        check_equal(actor, expected, {name: served[f"{way}/{name}"] for name in expected}, inputs["first"])


def check_equal(actor: Actor, expected: dict[str, Any], actual: dict[str, Any], first: np.ndarray) -> None:
    """Assert that two sides acted equally."""
    actions = [name for name in expected if name != "action_dist_inputs"]
    discrete = [name for name in actions if expected[name].dtype.kind != "f"]
    differs = np.zeros(first.shape, bool)
    for name in discrete:
        assert expected[name].dtype == actual[name].dtype
        differs |= (expected[name] != actual[name]).reshape(*first.shape, -1).any(-1)
    compared = np.ones(first.shape, bool)
    for t, env in np.argwhere(differs):  # after a tie, the rest of the episode differs
        if compared[t, env]:
            assert is_tie(actor, expected, actual, (t, env))
            end = t + 1 + int(np.argmax(np.append(first[t + 1 :, env], True)))
            compared[t:end, env] = False
    ties = int((differs & ~compared).any(0).sum())
    assert ties <= MOST_TIES
    for name in expected:
        expected_values, result = expected[name][compared].astype(float), actual[name][compared].astype(float)
        if name in discrete:
            np.testing.assert_array_equal(result, expected_values)
            continue
        finite = np.isfinite(expected_values)
        np.testing.assert_array_equal(result[~finite], expected_values[~finite])
        is_action = name != "action_dist_inputs"
        scale = 8.0 if is_action else max(1.0, float(np.abs(expected_values[finite]).max()))  # the range of BOX
        difference = float(np.abs(result[finite] - expected_values[finite]).max()) / scale
        assert difference <= TOLERANCE, name


def is_tie(actor: Actor, expected: dict[str, Any], actual: dict[str, Any], index: tuple[int, int]) -> bool:
    """Return True if the distribution gives both discrete choices the same probability, up to rounding."""
    inputs = torch.as_tensor(expected["action_dist_inputs"][index])[None].double()
    distribution = actor.policy.distribution or distribution_for(actor.action_space)
    names = [name for name in expected if name != "action_dist_inputs"]
    if names != ["action"]:
        return False
    values = [
        float(distribution.log_prob(inputs, torch.as_tensor(side["action"][index])[None]))
        for side in (expected, actual)
    ]
    return abs(values[0] - values[1]) < 1e-4

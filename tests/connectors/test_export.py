"""An exported file acts like its actor, in a process with numpy and onnxruntime only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors import Actor, module_to_env_pipeline
from connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from connectors.export import export
from connectors.export.serve import ServedPolicy
from episode_learners import (
    PPO,
    EncoderPolicy,
    LSTMPolicy,
    MLPPolicy,
)
from episode_runners import SingleAgentEnvRunner
from episodes.errors import InvalidArgument, NotExportable, StateMismatch, WrongType
from episodes.tracks import nested
from tests.actor_cases import (
    BOX,
    CHOICE,
    NESTED,
    NUMBERS,
    PARTS,
    SMALL,
    make_actor,
    sample_items,
)


def all_views() -> list[Any]:
    views = [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2), FlattenObservations()]
    return [FlattenObservations(), MeanStdFilter(), FrameStacking(num_frames=4), *views]


POLICIES: dict[str, tuple[Any, Any, Any, list[Any]]] = {  # all policies and views: see test_export_matrix
    "mlp": (partial(MLPPolicy, **SMALL), NUMBERS, CHOICE, []),
    "mlp, filter": (partial(MLPPolicy, **SMALL), NUMBERS, CHOICE, [MeanStdFilter()]),
    "mlp, all": (partial(MLPPolicy, **SMALL), PARTS, NESTED, all_views()),
    "mlp, nested actions": (partial(MLPPolicy, **SMALL), NUMBERS, NESTED, [MeanStdFilter()]),
    "lstm, all": (partial(LSTMPolicy, state_size=16), PARTS, CHOICE, all_views()),
}


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Actor, Path]:
    """Return a recurrent actor with all views, and the path of its exported file."""
    actor, path = made_actor("lstm, all"), tmp_path_factory.mktemp("lstm") / "policy.onnx"
    export(actor, path, outputs=["action_dist_inputs"], num_steps=100)
    return actor, path


def made_actor(kind: str) -> Actor:
    """Return an actor whose actions depend on its observations."""
    return make_actor(*POLICIES[kind])


def test_exported_policy_acts_as_its_actor(tmp_path: Path) -> None:
    actor = made_actor("mlp, nested actions")
    before = nested.map_leaves(np.copy, actor.env_to_module.get_state())
    exported = export(actor, tmp_path / "policy.onnx", explore=True, num_steps=300)
    assert exported.parity.num_steps == 300
    assert exported.parity.num_episodes > 10
    assert exported.parity.num_ties <= 3
    assert nested.equal(actor.env_to_module.get_state(), before)
    assert {path.name for path in tmp_path.iterdir()} == {"policy.onnx", "serve.py"}
    assert not any("critic" in name for name in exported.inputs + exported.outputs)


def test_served_process_imports_numpy_and_onnxruntime_only(lstm: tuple[Actor, Path], tmp_path: Path) -> None:
    actor, path = lstm
    for name in ("policy.onnx", "serve.py"):
        shutil.copy(path.with_name(name), tmp_path)
    actor.observation_space.seed(5)
    observations = [actor.observation_space.sample() for _ in range(200)]
    first = np.arange(200) % 9 == 0
    actions, state = [], None
    for t, observation in enumerate(observations):
        action, state = actor.act(observation, None if first[t] else state, reward=0.0 if first[t] else t / 100)
        actions.append(int(action))
    flat = {
        name: np.array([nested.flatten(first_observation)[name] for first_observation in observations])
        for name in nested.flatten(observations[0])
    }
    np.savez(tmp_path / "data.npz", first=first, **flat)
    code = """
import sys, json, numpy as np
sys.path.insert(0, ".")
from serve import ServedPolicy
data = np.load("data.npz")
policy = ServedPolicy("policy.onnx")
names = [name for name in data.files if name != "first"]
acted = []
for t, first in enumerate(data["first"]):
    acted.append(int(policy.act({name: data[name][t] for name in names}, t / 100, first=bool(first))))
loaded = {name.split(".")[0] for name in sys.modules}
print(json.dumps([acted, sorted(loaded & {"torch", "gymnasium", "episodes", "connectors"})]))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [actions, []]


def test_several_environments_are_served_together(lstm: tuple[Actor, Path]) -> None:
    actor, path = lstm
    together, alone = ServedPolicy(path, 4), [ServedPolicy(path) for _ in range(4)]
    generator = np.random.default_rng(0)
    actor.observation_space.seed(2)
    for t in range(60):
        rows = [actor.observation_space.sample() for _ in range(4)]
        rewards, first = generator.normal(size=4).astype(np.float32), (generator.random(4) < 0.2) | (t == 0)
        actions = together(nested.stack(rows), rewards, first=first)
        each = [served.act(row, r, first=f) for served, row, r, f in zip(alone, rows, rewards, first, strict=True)]
        assert actions.tolist() == [int(action) for action in each]
        for i, served in enumerate(alone):
            inputs = served.outputs["action_dist_inputs"][0]
            np.testing.assert_allclose(together.outputs["action_dist_inputs"][i], inputs, atol=1e-5)


ARRAYS = st.sampled_from("?bBhiqQfdFSUOM").flatmap(
    lambda char: st.sampled_from([(), (0,), (1,), (2,), (3,), (1, 3), (3, 1)]).map(
        lambda shape: np.zeros(shape, f"{char}8[s]" if char == "M" else char)
    )
)
BROKEN = st.one_of(ARRAYS, st.sampled_from([None, "text", [[1.0], [1.0, 2.0]], {"a": 1.0}, (), 300, -1.5]))


@given(name=st.sampled_from(["obs/place", "obs/kind", "obs/bits", "obs/on", "reward", "first", "noise"]), value=BROKEN)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_served_policy_names_each_wrong_input_and_keeps_its_state(
    lstm: tuple[Actor, Path], name: str, value: Any
) -> None:
    policy = ServedPolicy(lstm[1], 3)
    rows = nested.stack(sample_items(PARTS, 3))
    call = {"obs": rows, "reward": np.ones(3), "first": np.ones(3, bool), "noise": None}
    policy(rows, call["reward"], first=call["first"])
    state = {key: array.copy() for key, array in policy.state.items()}
    key, _, part = name.partition("/")
    call |= {key: {**rows, part: value} if part else value}
    kinds = {"obs/place": "biuf", "reward": "iuf", "first": "b"}.get(name, "biu")
    shapes = {"obs/place": [(3, 3)], "obs/bits": [(3, 2)], "obs/on": [(3, 2)], "first": [(), (3,)]}.get(name, [(3,)])
    is_array = isinstance(value, np.ndarray)
    is_valid = is_array and value.shape in shapes and value.dtype.kind in kinds and name != "noise"
    if is_valid or (value is None and name in ("noise", "reward")):
        assert policy(call["obs"], call["reward"], first=call["first"], noise=call["noise"]).shape == (3,)
        return
    with pytest.raises(ValueError, match=rf"^{name} (is|has|was) "):
        policy(call["obs"], call["reward"], first=call["first"], noise=call["noise"])
    assert all(np.array_equal(policy.state[key], array) for key, array in state.items())


WRONG_CALLS: list[tuple[str, Callable[[ServedPolicy, Any], Any]]] = [
    ("obs has the parts .*'bits'.*: give .*'place'", lambda p, o: p.act({"bits": o["bits"]}, first=True)),
    ("obs has the parts .*'more'", lambda p, o: p.act({**o, "more": 1}, first=True)),
    ("obs has no parts, but is a ndarray", lambda p, o: p.act(o["place"], first=True)),
    (r"obs/kind is float64 \(\): give int64 \(\)", lambda p, o: p.act({**o, "kind": 1.5}, first=True)),
    (r"obs/on is \[300, 0\], which int8 cannot hold", lambda p, o: p.act({**o, "on": [300, 0]}, first=True)),
    ("this policy reads rewards", lambda p, o: p.act(o)),
    (r"reward is float64 \(1,\): give float32 \(\)", lambda p, o: p.act(o, [0.5])),
    ("first is 7: give True, False", lambda p, o: p.reset(7)),
    (r"first is \[0, 2\]", lambda p, o: p.reset([0, 2])),
    ("noise was given, and this policy is greedy", lambda p, o: p(nested.stack([o]), [0.5], noise=np.ones((1, 3)))),
    ("reward is True: give numbers, and `first` by its name", lambda p, o: p.act(o, True)),
    ("obs/place is NaN in 3 of 3 numbers", lambda p, o: p.act({**o, "place": o["place"] * np.nan}, first=True)),
    ("reward is NaN", lambda p, o: p.act(o, np.nan)),
    ("num_envs is 0", lambda p, o: ServedPolicy(p.path, 0)),
    ("act is for one environment", lambda p, o: ServedPolicy(p.path, 2).act(o, 0.5)),
]


@pytest.mark.parametrize(("words", "call"), WRONG_CALLS, ids=[words for words, _ in WRONG_CALLS])
def test_served_policy_names_a_wrong_argument(lstm: tuple[Actor, Path], words: str, call: Any) -> None:
    policy: Any = ServedPolicy(lstm[1])
    policy.path = lstm[1]
    with pytest.raises(ValueError, match=words):
        call(policy, sample_items(PARTS, 1)[0])


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_raise(lstm: tuple[Actor, Path], tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(lstm[1].read_bytes())
    position = data.draw(st.integers(0, len(content) - 1), "position")
    if data.draw(st.booleans(), "is cut"):
        content = content[:position]
    else:
        content[position] ^= data.draw(st.integers(1, 255), "change")
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged\.onnx (is damaged|was not written)"):
        ServedPolicy(path)


def test_noise_outside_its_distribution_raises(tmp_path: Path) -> None:
    actor = made_actor("mlp, nested actions")
    export(actor, tmp_path / "policy.onnx", explore=True, num_steps=10)
    policy = ServedPolicy(tmp_path / "policy.onnx")
    is_exponential = [kind == "exponential" for kind, size in policy.about["noise"] for _ in range(size)]
    assert any(is_exponential)
    observations = nested.stack(sample_items(actor.observation_space, 1))
    policy(observations, first=True, noise=np.full((1, len(is_exponential)), 0.5, np.float32))
    for value in (-1.0, 0.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=r"^noise is "):
            policy(observations, first=True, noise=np.where([is_exponential], value, 0.5).astype(np.float32))


@pytest.mark.slow
def test_trained_and_seeded_actor_is_exported(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    pieces = [MeanStdFilter(), FrameStacking(num_frames=4)]
    actor = Actor(partial(LSTMPolicy, state_size=16), env.observation_space, env.action_space, pieces=pieces)
    PPO(actor).update(SingleAgentEnvRunner("CartPole-v1", actor, num_envs=2, seed=0).sample(num_timesteps=64))
    for explore in (False, True):
        export(actor, tmp_path / "policy.onnx", check_on="CartPole-v1", explore=explore, num_steps=100)


def test_seeded_noise_is_repeatable(tmp_path: Path) -> None:
    export(made_actor("mlp"), tmp_path / "policy.onnx", explore=True, outputs=["action_logp"], num_steps=20)
    runs = []
    for seed in (1, 1, 2):
        policy = ServedPolicy(tmp_path / "policy.onnx", 8, seed=seed)
        runs.append([policy(np.zeros((8, 3))).tolist() for _ in range(10)])
        assert (policy.outputs["action_logp"] < 0).all()
    assert runs[0] == runs[1] != runs[2]
    assert len({action for row in runs[0] for action in row}) > 1
    for noise in (np.zeros((8, 2)), np.zeros(8), "noise"):
        with pytest.raises(ValueError, match=r"noise is .*: give float32 \(8, 3\)"):
            policy(np.zeros((8, 3)), noise=noise)


def test_file_has_no_paths_and_little_more_than_weights(lstm: tuple[Actor, Path]) -> None:
    actor, path = lstm
    data = path.read_bytes()
    assert b"/connectors/" not in data
    assert b"site-packages" not in data
    weights = sum(
        parameter.nbytes for name, parameter in actor.policy.named_parameters() if not name.startswith("critic")
    )
    assert len(data) <= weights + 20_000


@pytest.mark.slow
def test_float32_computes_without_doubles(tmp_path: Path) -> None:
    actor = made_actor("mlp, all")
    exported = export(actor, tmp_path / "policy.onnx", double=False, tolerance=1e-4)
    session = onnxruntime.InferenceSession(exported.path)
    assert {model_input.type for model_input in session.get_inputs()} & {"tensor(double)"} == set()
    assert b"tensor(double)" not in exported.path.read_bytes()


class TanhPolicy(MLPPolicy):
    def forward(self, batch: Any, explore: bool | None = None) -> Any:
        return {"actions": torch.tanh(batch["obs"])}


def test_tanh_of_a_file_is_exact_to_the_last_place(tmp_path: Path) -> None:
    actor = Actor(TanhPolicy, NUMBERS, spaces.Box(-1.0, 1.0, (3,), np.float32))
    export(actor, tmp_path / "policy.onnx", num_steps=4)
    values = np.linspace(-9, 9, 30_000, dtype=np.float32).reshape(-1, 3)
    actions = ServedPolicy(tmp_path / "policy.onnx", len(values))(values, first=True)
    exact = np.tanh(values.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_max_ulp(actions, exact, 1)


def test_clipped_actions_and_module_pieces_are_exported(tmp_path: Path) -> None:
    pipeline = module_to_env_pipeline(NUMBERS, BOX, normalize_actions=False, clip_actions=True)
    actor = Actor(partial(MLPPolicy, **SMALL), NUMBERS, BOX, module_to_env=pipeline)
    with torch.no_grad():
        for parameter in actor.policy.parameters():
            parameter += torch.randn_like(parameter)
    export(actor, tmp_path / "policy.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("make", ["CartPole-v1", lambda: gym.make("CartPole-v1")], ids=["id", "function"])
def test_parity_is_checked_in_an_environment(make: Any, tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    actor = Actor(MLPPolicy, env.observation_space, env.action_space, pieces=[FrameStacking(num_frames=2)])
    parity = export(actor, tmp_path / "policy.onnx", check_on=make, num_steps=100).parity
    assert (parity.num_steps, parity.num_ties) == (100, 0)


def test_parity_is_checked_on_recorded_episodes(tmp_path: Path) -> None:
    pack = SingleAgentEnvRunner("CartPole-v1", num_envs=2, seed=0).sample(num_timesteps=100, random_actions=True)
    env = gym.make("CartPole-v1")
    actor = Actor(
        LSTMPolicy, env.observation_space, env.action_space, pieces=[PrevActionsPrevRewards(), FlattenObservations()]
    )
    assert export(actor, tmp_path / "policy.onnx", check_on=list(pack)).parity.num_episodes > 10


@pytest.mark.slow
def test_half_precision_policy_is_exported_in_float32(tmp_path: Path) -> None:
    actor = made_actor("mlp")
    actor.policy.bfloat16()
    export(actor, tmp_path / "policy.onnx", tolerance=0.05, num_steps=20)
    assert actor.policy.device.type == "cpu"
    assert next(actor.policy.parameters()).dtype is torch.bfloat16


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    actor, path = made_actor("mlp"), tmp_path / "policy.onnx"
    with pytest.raises(WrongType, match="MLPPolicy is not an actor"):
        export(actor.policy, path)
    with pytest.raises(InvalidArgument, match=r"does not end in \.onnx"):
        export(actor, tmp_path / "policy.pt")
    arguments: list[tuple[dict[str, Any], str]] = [
        ({"batch": True}, "batch is True"),
        ({"batch": 3}, "batch is 3"),
        ({"check_on": "MountainCar-v0"}, "check_on has the observation"),
        ({"check_on": []}, r"check_on is .*at least one recorded episode"),
        ({"check_on": 5}, r"check_on is .*at least one recorded episode"),
        ({"outputs": "action_logp"}, r"give a list of names, as in outputs=\['action_logp'\]"),
        ({"tolerance": -1.0}, "tolerance=-1.0"),
        ({"tolerance": float("nan")}, "tolerance=nan"),
        ({"seed": None}, "seed=None"),
        ({"num_steps": 0}, "num_steps=0"),
    ]
    with pytest.raises(InvalidArgument, match=r"the folder .* does not exist; create it"):
        export(actor, tmp_path / "missing" / "policy.onnx")
    for argument, words in arguments:
        with pytest.raises(InvalidArgument, match=words):
            export(actor, path, **argument)
    with pytest.raises(NotExportable, match="not 'nothing'"):
        export(actor, path, outputs=["nothing"])
    with pytest.raises(NotExportable, match="Text"):
        export(Actor(lambda batch, explore=None: {}, spaces.Text(3), CHOICE), path)
    for name, space in (("observation", spaces.Dict({0: NUMBERS})), ("action", spaces.Dict({"a": NESTED, 0: CHOICE}))):
        of_spaces = {"observation": NUMBERS, "action": CHOICE, name: space}
        with pytest.raises(NotExportable, match=f"{name}_space has the key 0 in a Dict"):
            export(Actor(EncoderPolicy, *of_spaces.values()), path)
    trained = made_actor("mlp, filter")
    trained.policy.pipeline_fingerprint = trained.fingerprint
    trained.env_to_module.reset_state()
    with pytest.raises(StateMismatch, match="MeanStdFilter, which has seen no observation"):
        export(trained, path)
    assert list(tmp_path.iterdir()) == []

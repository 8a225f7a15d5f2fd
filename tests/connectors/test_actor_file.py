"""`Actor.save` and `Actor.load`: a file has all data for acting in another process, without pickles."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial, reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors import Actor, module_to_env_pipeline
from connectors.env_to_module import (
    FlattenObservations,
    ForEachAgent,
    FrameStacking,
    MeanStdFilter,
    ObservationPreprocessor,
    PrevActionsPrevRewards,
    TransformerContext,
    time_steps,
)
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
from episodes.errors import EpisodeError, InvalidArgument, StateMismatch, UnreadableData
from episodes.tracks import nested
from tests.actor_cases import BOX, CHOICE, NUMBERS, PARTS, make_actor, sample_items, squashed

KINDS: dict[str, tuple[Any, Any, Any, list[Any]]] = {
    "mlp": (MLPPolicy, NUMBERS, CHOICE, [MeanStdFilter(clip_by_value=3.0)]),
    "squashed": (partial(squashed), NUMBERS, BOX, [FrameStacking(num_frames=3)]),
    "lstm": (LSTMPolicy, PARTS, CHOICE, [FlattenObservations(), MeanStdFilter(), FrameStacking(num_frames=2)]),
    "gru": (GRUPolicy, NUMBERS, BOX, [PrevActionsPrevRewards(n_prev_rewards=2), FlattenObservations()]),
    "encoder": (EncoderPolicy, PARTS, CHOICE, [MeanStdFilter()]),
    "q": (QPolicy, NUMBERS, CHOICE, [time_steps]),
    "lstm q": (LSTMQPolicy, NUMBERS, CHOICE, []),
    "sac": (SACPolicy, NUMBERS, BOX, [MeanStdFilter(clip_by_value=None)]),
    "transformer": (TransformerPolicy, NUMBERS, CHOICE, [TransformerContext(k=3)]),
}


def filled_actor(kind: str) -> Actor:
    return make_actor(*KINDS[kind])


def logits_of(actor: Actor) -> np.ndarray:
    """Return the distribution inputs of an episode, float32 [8, ...]."""
    result, state = [], None
    for observation in sample_items(actor.observation_space, 8):
        _, state = actor.act(observation, state, reward=0.5)
        result.append(state.outputs["action_dist_inputs"])
    return np.array(result)


def load(folder: Path) -> None:
    """Load each actor in another process, and compare its outputs with the saved numbers."""
    for kind, (make, *_) in KINDS.items():
        actor = Actor.load(folder / f"{kind}.actor", make)
        np.testing.assert_array_equal(logits_of(actor), np.load(folder / f"{kind}.npy"))


def test_actors_of_all_policies_load_in_another_process(tmp_path: Path) -> None:
    for kind in KINDS:
        actor = filled_actor(kind)
        actor.save(tmp_path / f"{kind}.actor")
        np.save(tmp_path / f"{kind}.npy", logits_of(actor))
    code = f"from tests.connectors.test_actor_file import load, Path; load(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_named_and_repeated_connectors_are_rebuilt(tmp_path: Path) -> None:
    pieces = [MeanStdFilter(name="first"), FlattenObservations(dtype=np.float64), FrameStacking(num_frames=2)]
    actor = Actor(MLPPolicy, NUMBERS, BOX, pieces=[*pieces, FrameStacking(num_frames=3)])
    actor.env_to_module.rewrite(nested.stack(sample_items(NUMBERS, 20)))
    actor.save(tmp_path / "a.actor")
    loaded = Actor.load(tmp_path / "a.actor", MLPPolicy)
    assert loaded.env_to_module.names == actor.env_to_module.names
    np.testing.assert_array_equal(logits_of(loaded), logits_of(actor))


def test_connector_with_class_argument_must_be_passed_to_load(tmp_path: Path) -> None:
    actor = Actor(MLPPolicy, NUMBERS, BOX, pieces=[ForEachAgent(MeanStdFilter)])
    actor.save(tmp_path / "a.actor")
    with pytest.raises(InvalidArgument, match=r"ForEachAgent.* has settings that cannot be stored: give pieces="):
        Actor.load(tmp_path / "a.actor", MLPPolicy)
    assert (
        "ForEachAgent"
        in Actor.load(tmp_path / "a.actor", MLPPolicy, pieces=[ForEachAgent(MeanStdFilter)]).env_to_module
    )


class Halved(ObservationPreprocessor):
    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.by = by

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        return (observations / self.by).astype(np.float32)


def test_custom_connectors_must_be_passed_to_load(tmp_path: Path) -> None:
    path = tmp_path / "a.actor"
    actor = Actor(MLPPolicy, NUMBERS, BOX, pieces=[Halved(3.0), FrameStacking(num_frames=2)])
    actor.save(path)
    with pytest.raises(InvalidArgument, match=r"Halved, which is defined outside of this library, .* give pieces="):
        Actor.load(path, MLPPolicy)
    with pytest.raises(StateMismatch, match=r"Halved.by=3.0., here Halved.by=2.0."):
        Actor.load(path, MLPPolicy, pieces=[Halved(), FrameStacking(num_frames=2)])
    loaded = Actor.load(path, MLPPolicy, pieces=[Halved(3.0), FrameStacking(num_frames=2)])
    np.testing.assert_array_equal(logits_of(loaded), logits_of(actor))


def test_module_to_env_pipeline_is_rebuilt(tmp_path: Path) -> None:
    pipeline = module_to_env_pipeline(NUMBERS, BOX, normalize_actions=False, clip_actions=True, seed=4)
    actor = Actor(MLPPolicy, NUMBERS, BOX, module_to_env=pipeline)
    with torch.no_grad():
        for parameter in actor.policy.parameters():
            parameter += 5.0
    actor.save(tmp_path / "a.actor")
    loaded = Actor.load(tmp_path / "a.actor", MLPPolicy)
    assert loaded.fingerprint == actor.fingerprint
    assert loaded.act(np.ones(3))[0].tolist() == actor.act(np.ones(3))[0].tolist() == [6.0, 6.0]


def test_fingerprint_of_training_is_loaded(tmp_path: Path) -> None:
    actor = filled_actor("mlp")
    actor.policy.pipeline_fingerprint = actor.fingerprint
    actor.save(tmp_path / "a.actor")
    loaded = Actor.load(tmp_path / "a.actor", MLPPolicy)
    assert loaded.policy.pipeline_fingerprint == actor.fingerprint
    with pytest.raises(StateMismatch, match="MeanStdFilter"):
        Actor(loaded.policy).act(np.zeros(3))


def test_rejected_weights_leave_a_given_policy_as_it_was(tmp_path: Path) -> None:
    filled_actor("mlp").save(tmp_path / "a.actor")
    policy = MLPPolicy(NUMBERS, CHOICE, hidden_sizes=(7,))
    before = deepcopy(policy.state_dict())
    for given in (policy, partial(MLPPolicy, hidden_sizes=(7,))):
        with pytest.raises(StateMismatch, match="weights of a MLPPolicy do not fit"):
            Actor.load(tmp_path / "a.actor", given)
    for name, values in policy.state_dict().items():
        assert nested.equal(values, before[name])


def test_each_changed_value_of_a_header_loads_or_raises_an_error_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.actor"
    filled_actor("mlp").save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[40:48], "little")
    header, arrays = json.loads(data[48 : 48 + length]), data[48 + length :]

    def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, part in items:
            yield (*place, key)
            yield from places(part, (*place, key))

    generator = random.Random(0)
    others = [None, -1, 2**70, "x", "f4,f4", [], [1], {}, {"array": 0}, {"array": 999}, {"bytes": "!"}, {"list": [1]}]
    for place in generator.sample(list(places(header)), 300):
        changed = deepcopy(header)
        *parents, key = place
        reduce(lambda part, name: part[name], parents, changed)[key] = generator.choice(others)
        content = json.dumps(changed).encode()
        content = len(content).to_bytes(8, "little") + content + arrays
        path.write_bytes(b"RLACTOR1" + sha256(content).digest() + content)
        with suppress(EpisodeError):
            Actor.load(path, partial(MLPPolicy, hidden_sizes=(8,)))


def test_damaged_and_foreign_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.actor"
    filled_actor("sac").save(path)
    data = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in [*range(60), *generator.integers(60, len(data), 60).tolist()]:
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << int(generator.integers(8)))]) + data[place + 1 :])
        with pytest.raises(UnreadableData):
            Actor.load(path, SACPolicy)
    for content in (data[:-1], data + b"\0", data[:20], b"", b"PK\3\4 a zip"):
        path.write_bytes(content)
        with pytest.raises(UnreadableData):
            Actor.load(path, SACPolicy)
    torch.save(filled_actor("sac").policy.state_dict(), path)
    with pytest.raises(UnreadableData, match="is not a file of"):
        Actor.load(path, SACPolicy)


def test_failed_save_keeps_the_file(tmp_path: Path) -> None:
    class Odd(MLPPolicy):
        def get_extra_state(self) -> Any:
            return {"what": object()}

        def set_extra_state(self, state: Any) -> None: ...

    path = tmp_path / "a.actor"
    filled_actor("mlp").save(path)
    before = path.read_bytes()
    with pytest.raises(InvalidArgument, match="a object in a state cannot be written"):
        Actor(Odd, NUMBERS, CHOICE).save(path)
    with pytest.raises(InvalidArgument, match=r"is not a torch\.nn\.Module"):
        Actor(lambda batch, explore=None: {}, NUMBERS, CHOICE).save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["a.actor"]


def test_half_precision_weights_are_saved(tmp_path: Path) -> None:
    actor = Actor(partial(MLPPolicy, hidden_sizes=(4,)), NUMBERS, CHOICE)
    actor.policy.bfloat16()
    actor.save(tmp_path / "a.actor")
    loaded = Actor.load(tmp_path / "a.actor", MLPPolicy(NUMBERS, CHOICE, hidden_sizes=(4,)).bfloat16())
    for saved_weights, loaded_weights in zip(actor.policy.parameters(), loaded.policy.parameters(), strict=True):
        assert torch.equal(saved_weights, loaded_weights)


def test_gym_spaces_are_saved(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    actor = Actor(MLPPolicy(env.observation_space, env.action_space))
    actor.save(tmp_path / "a.actor")
    loaded = Actor.load(tmp_path / "a.actor", MLPPolicy)
    assert (loaded.observation_space, loaded.action_space) == (env.observation_space, env.action_space)

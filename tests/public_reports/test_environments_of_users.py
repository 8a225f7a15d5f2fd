"""Public reports of users whose programs, packages and settings differ from those of a library's own tests.

Each test has a sentence on what the person did with the library that is named, and asserts the right value here.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import Connector, ConnectorPipeline
from connectors.learner import ComputeReturnsToGo
from episode_learners import DQN, PPO, SAC, MLPPolicy, QPolicy, SACPolicy
from episode_runners import SingleAgentEnvRunner, make_vector_env
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import EpisodeError, EpisodeStateError, UnreadableData
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.space_json import from_json, to_json
from episodes.tokens import token_batch
from tests.code_rules import ROOT


def run(code: str, folder: Path, *, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that starts in `folder`, with `path` as PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def episode(num_steps: int = 3) -> SingleAgentEpisode:
    arrays = np.arange(num_steps + 1.0), np.zeros(num_steps, np.int64), np.ones(num_steps)
    return SingleAgentEpisode.from_arrays(*arrays, id_="e", terminated=True)


# --- a user's package of the same name --------------------------------------------------------------------------------

IMPORTS = {"connectors": ["episodes"], "episode_runners": ["episodes", "connectors"]}
IMPORTS["episode_learners"] = ["episodes", "connectors", "episode_runners"]
FORMS = {"package": "{}/__init__.py", "file": "{}.py"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("package", "foreign"), [(user, name) for user, names in IMPORTS.items() for name in names])
def test_own_package_beside_the_script_is_named(package: str, foreign: str, form: str, tmp_path: Path) -> None:
    """Ray: a project had a file `ray.py`, which Python imported as Ray, so that `ray.tune` was no module."""
    file = tmp_path / FORMS[form].format(foreign)
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('it was run')")
    result = run(f"import {package}", tmp_path)
    line = result.stderr.strip().splitlines()[-1]
    place = file if form == "file" else file.parent
    assert line.startswith(
        f"ImportError: import {foreign}: Python finds {place} in place of the package {ROOT / foreign}"
    )
    assert "rename yours" in line


def test_own_package_that_is_not_imported_does_not_matter(tmp_path: Path) -> None:
    """Ray: as before, but the program does not import the package whose name is taken."""
    (tmp_path / "connectors").mkdir()
    (tmp_path / "connectors" / "__init__.py").write_text("mine = True")
    code = "import connectors, episodes.replay, episodes.storage; print(connectors.mine)"
    assert run(code, tmp_path).stdout == "True\n"


# --- reloaded modules -------------------------------------------------------------------------------------------------


def twin(kind: type) -> type:
    """Return the class of the same name from a second run of its module, as after a reload."""
    module = sys.modules[kind.__module__]
    spec = importlib.util.spec_from_file_location(module.__name__, str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    return getattr(other, kind.__name__)


def made(kind: type) -> Any:
    """Return an object of the twin of a class."""
    other = twin(kind)
    if kind is EpisodePack:
        return other.from_episodes([episode()])
    if kind is SingleAgentEpisode:
        return other.from_arrays(np.arange(4.0), np.zeros(3, np.int64), np.ones(3), terminated=True)
    return other()


def growing() -> SingleAgentEpisode:
    result = SingleAgentEpisode()
    result.add_env_reset(0.0)
    return result


def growing_several() -> MultiAgentEpisode:
    result = MultiAgentEpisode()
    result.add_env_reset(observations={"a": 0.0})
    return result


def converted(value: Any, path: Path) -> None:
    from episodes.converters import to_parquet

    to_parquet([value], path / "rows")


def plotted(value: Any, path: Path) -> None:
    from episodes.inspect import plot_episode

    plot_episode(value)


def compared(value: Any, path: Path) -> None:
    from episodes.inspect import compare_episodes

    compare_episodes(value, episode())


RELOADED: dict[str, tuple[type, Callable[[Any, Path], Any]]] = {
    "pack": (SingleAgentEpisode, lambda value, path: EpisodePack.from_episodes([value])),
    "concat_episode": (SingleAgentEpisode, lambda value, path: growing().concat_episode(value)),
    "concat_episode of several agents": (
        MultiAgentEpisode,
        lambda value, path: growing_several().concat_episode(value),
    ),
    "replay": (SingleAgentEpisode, lambda value, path: EpisodeReplayBuffer(10).add(value)),
    "replay of a list": (SingleAgentEpisode, lambda value, path: EpisodeReplayBuffer(10).add([value])),
    "replay of several agents": (
        MultiAgentEpisode,
        lambda value, path: MultiAgentEpisodeReplayBuffer(10).add(value),
    ),
    "writer": (SingleAgentEpisode, lambda value, path: EpisodeWriter(path).add(value)),
    "writer of a list": (SingleAgentEpisode, lambda value, path: EpisodeWriter(path).add([value])),
    "converter": (SingleAgentEpisode, converted),
    "plot": (SingleAgentEpisode, plotted),
    "comparison": (SingleAgentEpisode, compared),
    "tokens": (EpisodePack, lambda value, path: token_batch(value)),
    "pipeline": (Connector, lambda value, path: ConnectorPipeline(connectors=[value])),
}


@pytest.mark.parametrize("place", RELOADED)
def test_object_of_a_reloaded_class_is_named_as_such(place: str, tmp_path: Path) -> None:
    """fastai and IPython: after autoreload, `isinstance` was False for an object of the class of the same name."""
    kind, use = RELOADED[place]
    with pytest.raises(
        EpisodeError, match=f"{kind.__name__} of another {kind.__module__}, which was reloaded: restart"
    ):
        use(made(kind), tmp_path)


# --- settings of the process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [PPO, DQN, SAC])
def test_update_with_another_default_device(algorithm: Any) -> None:
    """TorchRec and PyTorch: with another default device, such as `meta`, random draws and `randperm` failed."""
    env = make_vector_env("Pendulum-v1" if algorithm is SAC else "CartPole-v1", 2)
    make = {PPO: MLPPolicy, DQN: QPolicy, SAC: SACPolicy}[algorithm]
    learner = algorithm(make(env.single_observation_space, env.single_action_space, hidden_sizes=[4]))
    buffer = EpisodeReplayBuffer(100, seed=0)
    with torch.device("meta"):  # a tensor that is made without a device has no values
        runner = SingleAgentEnvRunner(env, learner.policy, seed=0)
        if algorithm is PPO:
            metrics = learner.update(runner.sample(num_timesteps=64))
        else:
            runner.sample_into(buffer, num_timesteps=80)
            metrics = learner.update_from(buffer, 1)
    assert np.isfinite(list(metrics.values())).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_update_without_gradients_is_named(mode: Any) -> None:
    """Lightning: gradients in a step in inference mode raised `element 0 of tensors does not require grad`."""
    env = make_vector_env("CartPole-v1", 2)
    ppo = PPO(MLPPolicy(env.single_observation_space, env.single_action_space, hidden_sizes=[4]))
    pack = SingleAgentEnvRunner(env, ppo.policy, seed=0).sample(num_timesteps=32)
    before = [parameter.clone() for parameter in ppo.policy.parameters()]
    with mode(), pytest.raises(EpisodeStateError, match="PPO: an update inside torch"):
        ppo.update(pack)
    assert all(map(torch.equal, before, ppo.policy.parameters()))


@pytest.mark.parametrize("gamma", [0.1, 1e-30])
def test_returns_with_floating_point_errors_raised(gamma: float) -> None:
    """librosa and PyDDM: programs that raise floating-point errors stopped at underflows that have no effect."""
    pack = EpisodePack.from_episodes([episode(3000)])
    with np.errstate(all="raise"):
        batch = ComputeReturnsToGo(gamma=gamma)(batch={}, episodes=pack)
    np.testing.assert_allclose(batch["returns_to_go"][:-40], 1 / (1 - gamma), rtol=1e-6)


# --- versions of packages ---------------------------------------------------------------------------------------------


class OldDiscrete(spaces.Discrete):
    """`Discrete` of Gymnasium before 1.2.2."""

    def __init__(self, n: int, seed: Any = None, start: int = 0) -> None:
        super().__init__(n, seed, start)


def test_discrete_space_without_dtype_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari: a stored `Discrete` space lost its dtype, for which older versions of Gymnasium have no argument."""
    stored, of_32_bits = to_json(spaces.Discrete(3, start=1), "a"), to_json(spaces.Discrete(3, dtype=np.int32), "a")
    monkeypatch.setattr(spaces, "Discrete", OldDiscrete)
    space = from_json(stored)
    assert (space.n, space.start, space.dtype) == (3, 1, np.int64)
    with pytest.raises(UnreadableData, match=r"dtype int32 needs gymnasium>=1\.2\.2"):
        from_json(of_32_bits)


def test_shard_is_written_without_descriptors_of_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face Datasets: with an older pyarrow, `pyarrow.lib has no attribute 'IpcReadOptions'`."""
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(pa, "OSFile", None)
    with EpisodeWriter(tmp_path) as writer:
        writer.add([episode()])
    assert EpisodeDataset(tmp_path).pack() == EpisodePack.from_episodes([episode()])


def test_size_of_a_selection_is_its_own(tmp_path: Path) -> None:
    """Minari: the number of steps of a filtered data set was computed from other episodes too."""
    with EpisodeWriter(tmp_path) as writer:
        for i in range(8):
            each = copy.copy(episode(9))
            each.id_ = str(i)
            writer.add(each)
    dataset = EpisodeDataset(tmp_path)
    assert dataset.select([1, 5]).num_steps == 18
    assert dataset.select([1, 5]).nbytes == pytest.approx(dataset.nbytes / 4, abs=1)
    assert dataset.select(np.ones(8, bool)).nbytes == dataset.nbytes
    assert dataset.select([]).nbytes == 0

"""`TorchVectorEnv`: a simulator that lives in torch, many environments at once, as a vector environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.tracks import nested
from episodes.tracks.validation import checked_choice, checked_count, checked_items, checked_key, checked_space

__all__ = ["TorchVectorEnv"]


class TorchVectorEnv(VectorEnv):
    """The environments of a batched simulator, which resets those that end within the step; same-step autoreset.

    Args:
        simulator: `reset()` gives observations, or (observations, extras). `step(actions)` gives (observations,
            rewards, dones, extras) or (observations, rewards, terminateds, truncateds, extras): tensors [N, ...] on one
            device, which it may write to again, and a dict of extras.
        observation_space, action_space: of one environment.
        num_envs: `simulator.num_envs` by default.
        final_observations: the key in the extras of the true last observations [N, ...], wherever an episode ended.
        missing_final_observation: what happens where the extras have none: "raise", or "repeat" the one before.
        time_outs: the key in the extras of the flags [N] that tell which of the `dones` are time limits.
        observation_key: which of a dict of observations is the environment's: "policy", say; all of them by default.
        info_keys: which of the extras become infos: tensors [N, ...], or dicts of 0-d ones as "log"; none by default.

    "repeat" is for simulators that write over the last observation before anybody saw it. Then a time limit bootstraps
    from the value of the observation before, and `new_obs` of an episode's last step is false: wrong for world models,
    a little wrong for the rest. Better: let the simulator put its observations into the extras before it resets.

    A simulator on a GPU is waited for once a step, since rows come down together, and once more where episodes ended;
    `fill_rollout` samples without bringing them down. Tensors of the simulator are never inference tensors, so that it
    may write to them in and out of a runner. `reset(seed=...)` calls `simulator.seed(seed)` where there is one.

    Raises:
        TrackMismatch: from `step`, an episode ended and its final observations are missing; or four values came
            without time-outs.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
    simulator: Any = None

    def __init__(
        self,
        simulator: Any,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        num_envs: int | None = None,
        final_observations: str = "final_obs",
        missing_final_observation: str = "raise",
        time_outs: str = "time_outs",
        observation_key: str | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        checked_choice("missing_final_observation", missing_final_observation, ("raise", "repeat"))
        count = getattr(simulator, "num_envs", None) if num_envs is None else num_envs
        if count is None:
            raise InvalidArgument(f"{type(simulator).__name__} does not say its num_envs; pass num_envs")
        self.simulator, self.num_envs = simulator, checked_count("num_envs", count)
        self.single_observation_space = checked_space("observation_space", observation_space, or_none=False)
        self.single_action_space = checked_space("action_space", action_space, or_none=False)
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._action_shape = (self.num_envs, *(action_space.shape or ()))
        self.missing_final_observation = missing_final_observation
        self._final_key = checked_key("final_observations", final_observations)
        self._time_outs = checked_key("time_outs", time_outs)
        self._observation_key = None if observation_key is None else checked_key("observation_key", observation_key)
        self._info_keys = tuple(checked_items("info_keys", info_keys, "keys of extras"))
        self.observations: Any = None  # the newest tensors [N, ...], the simulator's own
        self._newest: Any = None  # the same as numpy, where somebody asked for that

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observations [N, ...] of new episodes, and no infos."""
        with outside_inference():
            if seed is not None and hasattr(self.simulator, "seed"):
                self.simulator.seed(seed)
            answer = self.simulator.reset()
            self.observations = self._own(answer[0] if isinstance(answer, tuple) else answer)
            self._newest = _as_numpy(self.observations)
        return self._newest, {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """The row [N, ...] after the actions [N, ...]; last observations of episodes that ended in `infos`."""
        actions = np.asarray(actions, self.single_action_space.dtype)
        if actions.shape != self._action_shape:
            raise ShapeMismatch(f"{self}: actions have shape {actions.shape}; give {self._action_shape}")
        with outside_inference():
            *columns, extras = self.step_tensors(torch.tensor(actions, device=self.device))
            told = {key: extras[key] for key in self._info_keys if key in extras}
            observations, rewards, terminateds, truncateds, told = _as_numpy((*columns, told))
            done = terminateds | truncateds
            infos = _infos(told, done)
            if np.count_nonzero(done):
                infos["final_obs"] = self._last_rows(extras, np.flatnonzero(done))
            self._newest = observations
        return observations, rewards, terminateds, truncateds, infos

    @property
    def device(self) -> torch.device:
        """Where the simulator's tensors are."""
        if self.observations is None:
            raise EpisodeStateError("step before the reset; call reset() first")
        return nested.first_leaf(self.observations).device

    def step_tensors(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """The row as the simulator's own tensors: observations, rewards, terminateds, truncateds, and its extras."""
        observations, *columns = self._in_five(self.simulator.step(actions))
        self.observations = self._own(observations)
        return self.observations, *columns  # type: ignore[return-value]

    def _in_five(self, row: Any) -> tuple[Any, ...]:
        """Observations, rewards, two flags and extras, of what `step` of the simulator gave."""
        if not isinstance(row, tuple) or len(row) not in (4, 5):
            raise WrongType(f"step of {type(self.simulator).__name__} must give a tuple of four or five: {_brief(row)}")
        if len(row) == 5:
            observations, rewards, terminateds, truncateds, extras = row
            return observations, rewards, terminateds.bool(), truncateds.bool(), extras
        observations, rewards, dones, extras = row
        if self._time_outs not in extras:
            raise TrackMismatch(
                f"extras of {type(self.simulator).__name__} has no {self._time_outs!r} (it has {list(extras)}), so "
                "nobody can tell a time limit from a termination; name its key: time_outs="
            )
        dones, late = dones.bool(), extras[self._time_outs].bool()
        return observations, rewards, dones & ~late, dones & late, extras

    def _own(self, observations: Any) -> Any:
        if self._observation_key is None:
            return observations
        if not isinstance(observations, dict) or self._observation_key not in observations:
            raise UnknownKey(f"observation_key={self._observation_key!r}, and observations are {_brief(observations)}")
        return observations[self._observation_key]

    def last_observations(self, extras: dict[str, Any], envs: Any) -> Any:
        """The true last observations [k, ...] of the environments [k] that ended; None where the one before stands in.

        Raises:
            TrackMismatch: there are none, and nobody said that they may be missing.
        """
        if extras.get(self._final_key) is not None:
            return nested.map_leaves(lambda leaf: leaf[envs], self._own(extras[self._final_key]))
        if self.missing_final_observation == "repeat":
            return None
        raise TrackMismatch(
            f"episodes ended, and extras of {type(self.simulator).__name__} has no {self._final_key!r} "
            f"(it has {list(extras)}): their last observations are lost. Name the key (final_observations=), or pass "
            'missing_final_observation="repeat"'
        )

    def _last_rows(self, extras: dict[str, Any], envs: np.ndarray) -> Any:
        """Rows [N, ...] that hold the last observations of the environments that ended; from a GPU only these come."""
        is_here = self.device.type == "cpu"
        last = self.last_observations(extras, slice(None) if is_here else torch.as_tensor(envs, device=self.device))
        if last is None:
            return self._newest
        rows = _as_numpy(last)
        return rows if is_here else nested.map_leaves(lambda leaf: _spread(leaf, envs, self.num_envs), rows)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator, where it can be closed."""
        close = getattr(self.simulator, "close", None)
        if close is not None:
            close()


@contextmanager
def outside_inference() -> Iterator[None]:
    """Out of inference mode, where a runner samples: tensors made there could not be written to elsewhere."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _as_numpy(tensors: Any) -> Any:
    """The nested tensors as arrays of their own, brought down together with one wait for the device."""
    devices: list[torch.device] = []
    brought = nested.map_leaves(lambda leaf: _brought(leaf, devices) if isinstance(leaf, Tensor) else leaf, tensors)
    if not devices:
        return brought
    torch.cuda.current_stream(devices[0]).synchronize()
    return nested.map_leaves(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, brought)


def _brought(leaf: Tensor, devices: list[torch.device]) -> Any:
    """The tensor as an array of its own; of a GPU, a tensor in host memory that is on its way from that device."""
    leaf = leaf.detach() if leaf.requires_grad else leaf
    leaf = leaf.float() if leaf.dtype is torch.bfloat16 else leaf  # numpy has no such numbers
    if not leaf.is_cuda:
        return leaf.numpy(force=True).copy()
    devices.append(leaf.device)
    return leaf.to("cpu", non_blocking=True)


def _infos(told: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """A vector info: what the step said belongs to the episodes that ended, and to those that go on."""
    told = nested.map_leaves(lambda leaf: leaf.item() if isinstance(leaf, np.ndarray) and not leaf.ndim else leaf, told)
    if not told or not np.count_nonzero(done):
        return told
    goes_on = {f"_{key}": ~done for key in told}
    return {**told, **goes_on, "final_info": {**told, **{f"_{key}": done for key in told}}}


def _spread(rows: np.ndarray, envs: np.ndarray, num_envs: int) -> np.ndarray:
    """Rows [k, ...] at their environments among [N, ...]."""
    spread = np.zeros((num_envs, *rows.shape[1:]), rows.dtype)
    spread[envs] = rows
    return spread


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} items"
    return f"a dict with {list(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"

"""`TorchVectorEnv`: a batched torch simulator as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike
from torch import Tensor

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.tracks import nested
from episodes.tracks.space_kinds import SpaceKind, kind_of
from episodes.tracks.validation import checked_choice, checked_count, checked_items, checked_key, checked_space

__all__ = ["TorchVectorEnv"]


class TorchVectorEnv(VectorEnv):
    """Gymnasium vector environment of a batched torch simulator with same-step autoreset.

    Args:
        simulator: its `reset()` returns observations, or (observations, extras). Its `step(actions)` returns
            (observations, rewards, dones, extras) or (observations, rewards, terminateds, truncateds, extras): tensors
            [N, ...] on one device, which it may overwrite later, and a dict of extras.
        observation_space: space of one environment's observations.
        action_space: space of one environment's actions.
        num_envs: number of environments, N; `simulator.num_envs` by default.
        final_observations: key of the true last observations [N, ...] in the extras, for steps that end episodes.
        missing_final_observation: what to do if the extras have none: "raise", or "repeat" the observation before.
        time_outs: key in the extras of the flags [N] that mark `dones` that are time limits.
        observation_key: key of the environment's observations if the simulator returns a dict, "policy" for example.
            All keys by default.
        info_keys: keys of extras that become infos: tensors [N, ...], or dicts of 0-d tensors as "log". None by
            default.

    "repeat" is for simulators that overwrite the last observation at once. Then a time limit bootstraps from the value
    of the observation before, and `new_obs` of an episode's last step is wrong: harmful for world models, a small error
    for others. It is better if the simulator stores its observations in the extras before it resets.

    With a GPU, the host waits once per step, because the tensors of a row are copied together, and once more if
    episodes ended. `fill_rollout` samples without copies to the host. The simulator's tensors are never inference
    tensors, so it may write to them inside and outside of a runner. `reset(seed=...)` calls `simulator.seed(seed)` if
    it exists.

    Raises:
        InvalidArgument: `num_envs` is neither given nor an attribute of the simulator.
        TrackMismatch: raised by `step` if an episode ended without final observations, or `dones` came without
            time-outs.
        WrongType: a space or a name has another type.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
    simulator: Any = None

    def __init__(
        self,
        simulator: object,
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
            raise InvalidArgument(f"{type(simulator).__name__} has no attribute num_envs; pass num_envs=")
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
        self.observations: Any = None  # the simulator's newest tensors [N, ...]
        self._newest: Any = None  # the newest observations as numpy arrays, if `step` or `reset` was called

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, and return the first observations [N, ...] and an empty dict of infos.

        Raises:
            WrongType: observations are tuples, and the simulator does not return (observations, extras).
        """
        with outside_inference():
            if seed is not None and hasattr(self.simulator, "seed"):
                self.simulator.seed(seed)
            answer = self.simulator.reset()
            self.observations = self._select_observations(self._without_extras(answer))
            self._newest = _as_numpy(self.observations)
        return self._newest, {}

    def step(self, actions: ArrayLike) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step the environments with actions [N, ...].

        Returns:
            Observations [N, ...], rewards [N], terminateds [N], truncateds [N] and infos. "final_obs" in the infos has
            the last observations of episodes that ended.

        Raises:
            EpisodeStateError: the environments were never reset.
            ShapeMismatch: the actions have another shape.
            TrackMismatch: an episode ended without final observations, or `dones` came without time-outs.
            WrongType: the simulator's `step` does not return a tuple of four or five.
        """
        actions = np.asarray(actions, self.single_action_space.dtype)
        if actions.shape != self._action_shape:
            raise ShapeMismatch(f"{self}: actions have shape {actions.shape}; give {self._action_shape}")
        with outside_inference():
            *columns, extras = self.step_tensors(torch.tensor(actions, device=self.device))
            step_infos = {key: extras[key] for key in self._info_keys if key in extras}
            observations, rewards, terminateds, truncateds, step_infos = _as_numpy((*columns, step_infos))
            done = terminateds | truncateds
            infos = _infos(step_infos, done)
            if np.count_nonzero(done):
                infos["final_obs"] = self._last_rows(extras, np.flatnonzero(done))
            self._newest = observations
        return observations, rewards, terminateds, truncateds, infos

    def _without_extras(self, answer: object) -> Any:
        """Return the observations in the result of the simulator's `reset`, which may be (observations, extras).

        Raises:
            WrongType: observations are tuples, and the result is not a pair whose first item is one.
        """
        if not isinstance(answer, tuple):
            return answer
        is_pair = len(answer) == 2 and isinstance(answer[0], (tuple, list))
        if kind_of(self.single_observation_space) is SpaceKind.TUPLE and not is_pair:
            raise WrongType(
                f"reset of {type(self.simulator).__name__} returned {_brief(answer)}; with observations of a Tuple "
                "space return (observations, extras)"
            )
        return answer[0]

    @property
    def device(self) -> torch.device:
        """Device of the simulator's tensors.

        Raises:
            EpisodeStateError: the environments were never reset.
        """
        if self.observations is None:
            raise EpisodeStateError("step before the reset; call reset() first")
        return nested.first_leaf(self.observations).device

    def step_tensors(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step the simulator with `actions` [N, ...] on its device, without a copy to the host.

        Returns:
            Observations [N, ...], rewards [N], terminateds [N], truncateds [N] and extras, as the simulator's tensors.

        Raises:
            WrongType: the simulator returned no tuple of four or five items.
            TrackMismatch: the simulator returned `dones` without time-outs.
            ShapeMismatch: `dones` and time-outs have different shapes.
            UnknownKey: the observations have no `observation_key`.
        """
        observations, *columns = self._as_five_values(self.simulator.step(actions))
        self.observations = self._select_observations(observations)
        return self.observations, *columns  # type: ignore[return-value]

    def _as_five_values(self, row: object) -> tuple[Any, ...]:
        """Convert the simulator's step result, which has four or five items, to observations, rewards,
        terminateds, truncateds and extras.

        Raises:
            WrongType: the result is not a tuple of four or five.
            TrackMismatch: there are four, and the extras do not mark time limits.
            ShapeMismatch: dones and time-outs have different shapes.
        """
        if not isinstance(row, tuple) or len(row) not in (4, 5):
            raise WrongType(
                f"step of {type(self.simulator).__name__} must return a tuple of four or five: {_brief(row)}"
            )
        if len(row) == 5:
            observations, rewards, terminateds, truncateds, extras = row
            return observations, rewards, terminateds.bool(), truncateds.bool(), extras
        observations, rewards, dones, extras = row
        if self._time_outs not in extras:
            raise TrackMismatch(
                f"extras of {type(self.simulator).__name__} has no {self._time_outs!r} (it has {list(extras)}), so "
                "time limits cannot be distinguished from terminations; name its key: time_outs="
            )
        dones, late = dones.bool(), extras[self._time_outs].bool()
        if dones.shape != late.shape:
            raise ShapeMismatch(
                f"{type(self.simulator).__name__}: dones are {list(dones.shape)} and {self._time_outs!r} are "
                f"{list(late.shape)}; give a flag for each environment, [{self.num_envs}]"
            )
        return observations, rewards, dones & ~late, dones & late, extras

    def _select_observations(self, observations: object) -> Any:
        """Return the observations under `observation_key`, or all if that is `None`. Raise `UnknownKey` if they lack
        the key.
        """
        if self._observation_key is None:
            return observations
        if not isinstance(observations, dict) or self._observation_key not in observations:
            raise UnknownKey(
                f"observation_key={self._observation_key!r}: the simulator's observations are {_brief(observations)}; "
                "give one of their keys"
            )
        return observations[self._observation_key]

    def last_observations(self, extras: dict[str, Any], envs: np.ndarray | torch.Tensor | slice) -> Any:
        """Return the last observations [k, ...] of the episodes that ended in environments `envs` [k], read from
        `extras`.

        Returns:
            None if the observations are missing and `missing_final_observation` is "repeat".

        Raises:
            TrackMismatch: the observations are missing, and `missing_final_observation` is "raise".
        """
        last = self.all_last_observations(extras)
        if last is None:
            self.check_may_repeat(extras)
            return None
        return nested.map_leaves(lambda leaf: leaf[envs], last)

    def all_last_observations(self, extras: dict[str, Any]) -> Any:
        """Return the observations [N, ...] before the resets of a step, read from its `extras`, or None if missing.

        Rows of episodes that did not end have no meaning.
        """
        last = extras.get(self._final_key)
        return None if last is None else self._select_observations(last)

    def check_may_repeat(self, extras: dict[str, Any]) -> None:
        """Raise `TrackMismatch` for `extras` without last observations, unless `missing_final_observation` is
        "repeat".
        """
        if self.missing_final_observation != "repeat":
            raise TrackMismatch(
                f"episodes ended, and extras of {type(self.simulator).__name__} has no {self._final_key!r} "
                f"(it has {list(extras)}): their last observations are lost. Name the key (final_observations=), or "
                'pass missing_final_observation="repeat"'
            )

    def _last_rows(self, extras: dict[str, Any], envs: np.ndarray) -> Any:
        """Return arrays [N, ...] whose rows `envs` are the last observations of the episodes that ended.
        Other rows are meaningless.
        """
        is_here = self.device.type == "cpu"
        last = self.last_observations(extras, slice(None) if is_here else torch.as_tensor(envs, device=self.device))
        if last is None:
            return self._newest
        rows = _as_numpy(last)
        return rows if is_here else nested.map_leaves(lambda leaf: _scatter_rows(leaf, envs, self.num_envs), rows)

    def close_extras(self, **kwargs: object) -> None:
        """Close the simulator, if it has a `close`."""
        close = getattr(self.simulator, "close", None)
        if close is not None:
            close()


@contextmanager
def outside_inference() -> Iterator[None]:
    """Context manager that disables torch's inference mode and gradients.
    Tensors made in the block can be modified later.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def _as_numpy(tensors: object) -> Any:
    """Copy nested tensors to numpy arrays. GPU tensors are copied together, with a single synchronization."""
    devices: list[torch.device] = []
    brought = nested.map_leaves(
        lambda leaf: _copy_to_host(leaf, devices) if isinstance(leaf, Tensor) else leaf, tensors
    )
    if not devices:
        return brought
    torch.cuda.current_stream(devices[0]).synchronize()
    return nested.map_leaves(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, brought)


def _copy_to_host(leaf: Tensor, devices: list[torch.device]) -> Any:
    """Return a CPU tensor as a copied array.
    For a GPU tensor, start the copy to the host, and add its device to `devices`.
    """
    leaf = leaf.detach() if leaf.requires_grad else leaf
    leaf = leaf.float() if leaf.dtype is torch.bfloat16 else leaf  # numpy has no such numbers
    if not leaf.is_cuda:
        return leaf.numpy(force=True).copy()
    devices.append(leaf.device)
    return leaf.to("cpu", non_blocking=True)


def _infos(step_infos: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """Return the infos of a vector step in Gymnasium's form,
    in which "final_info" has the infos of the environments `done`, bool [N].
    """
    step_infos = nested.map_leaves(
        lambda leaf: leaf.item() if isinstance(leaf, np.ndarray) and not leaf.ndim else leaf, step_infos
    )
    if not step_infos or not np.count_nonzero(done):
        return step_infos
    goes_on = {f"_{key}": ~done for key in step_infos}
    return {**step_infos, **goes_on, "final_info": {**step_infos, **{f"_{key}": done for key in step_infos}}}


def _scatter_rows(rows: np.ndarray, envs: np.ndarray, num_envs: int) -> np.ndarray:
    """Return an array [N, ...] with `rows` [k, ...] at the indices `envs` [k], and zeros elsewhere."""
    spread = np.zeros((num_envs, *rows.shape[1:]), rows.dtype)
    spread[envs] = rows
    return spread


def _brief(value: object) -> str:
    """Describe a value for an error: its length, keys or type."""
    if isinstance(value, tuple):
        return f"{len(value)} items"
    return f"a dict with {list(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"

"""`RolloutBuffer`: T steps of N environments as one TensorDict [N, T + 1] on a device.

A simulator on a GPU writes its tensors into it. `connectors.rollout.episodes` converts episodes to rollouts and back.

>>> buffer = RolloutBuffer(num_envs=2, rollout_len=3, obs_dim=4, action_dim=1, device="cpu")
>>> rollout = buffer.start_rollout()
>>> for t in range(3):
...     rollout["obs"][:, t], rollout["reward"][:, t] = torch.ones(2, 4), t
>>> rollout["terminated"][0, 1] = rollout["done"][0, 1] = True
>>> buffer.add(rollout)
>>> rollout = add_advantages(buffer.get(flatten=False), gamma=0.9, lambda_=1.0)
>>> rollout["return"][:, :3]
tensor([[0.9000, 1.0000, 2.0000],
        [2.5200, 2.8000, 2.0000]])
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor

from connectors.returns import gae
from connectors.staging import checked_device
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType, needing
from episodes.tracks.validation import checked_choice, checked_count

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = [
    "FinalObservations",
    "RolloutBuffer",
    "add_advantages",
    "add_sequence_returns",
    "iterate_minibatches",
    "transition_view",
]

Truncation = Literal["final", "terminate", "previous"]

FINAL = "final"  # the rollout's FinalObservations
FRAGMENTS = "fragments"  # rows of the chunks from which the rollout was filled, if any
_SIDE_DATA = (FINAL, FRAGMENTS)
_LAST_SLOT = ("obs", "value")  # columns with values at index T


class FinalObservations:
    """Last observations [K] of episodes, for which a rollout has no row because the next row has the next episode's
    first observation.

    With same-step autoreset or a manual reset, the row after an ending has the first observation of the next episode. A
    rollout stores the replaced observations here: `rollout["final"].append(...)`.

    Args:
        num_envs: number of environments N.
        num_slots: number of rows per environment, T + 1.
        obs_dim: length of an observation.
    """

    def __init__(self, num_envs: int, num_slots: int, obs_dim: int, device: torch.device | str) -> None:
        self._num_envs, self._num_slots = num_envs, num_slots
        self._rows = [torch.zeros(0, dtype=torch.int64, device=device)]
        self._obs = [torch.zeros(0, obs_dim, device=device)]
        self._value = [torch.zeros(0, device=device)]

    def append(self, step: int, envs: Tensor, obs: Tensor, value: Tensor | None = None) -> None:
        """Add the last observations of the episodes that ended with one step of the rollout.

        Args:
            step: the row t of the step, 0..T-1.
            envs: indices of the environments, int [k], or a bool mask [N].
            obs: the observations [k, obs_dim], in the order of `envs`.
            value: their values [k]; 0 until `set_value` if not given.

        Raises:
            ShapeMismatch: `obs` or `value` does not have one row per environment.
            InvalidArgument: the rollout has no such step.
        """
        envs = envs.nonzero().squeeze(1) if envs.dtype == torch.bool else envs.long()
        expected = (len(envs), self._obs[0].shape[1])
        if tuple(obs.shape) != expected or (value is not None and tuple(value.shape) != expected[:1]):
            value_text = "" if value is None else f", value {list(value.shape)}"
            raise ShapeMismatch(
                f"final obs {list(obs.shape)}{value_text} of {len(envs)} environments: give {list(expected)}"
            )
        if not 0 <= step < self._num_slots - 1:
            raise InvalidArgument(f"step={step}: the rollout has steps 0..{self._num_slots - 2}")
        self.append_rows(envs * self._num_slots + step, obs, value)

    def append_rows(self, rows: Tensor, obs: Tensor, value: Tensor | None = None) -> None:
        """Add the last observations [k, obs_dim] of episodes that ended with the steps at the flat indices `rows` [k].
        Without `value`, their value estimates are 0.

        The flat index of step t of an environment is env * (T + 1) + t.
        """
        like = self._value[0]
        self._rows.append(rows.to(like.device))
        self._obs.append(obs.to(like))
        self._value.append(like.new_zeros(len(rows)) if value is None else value.to(like))

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    @property
    def rows(self) -> Tensor:
        """Flat index env * (T + 1) + t, in the rollout, of the step before each last observation, int64 [K]."""
        return _concatenate_in_place(self._rows)

    @property
    def obs(self) -> Tensor:
        """Last observations [K, obs_dim] of the ended episodes."""
        return _concatenate_in_place(self._obs)

    @property
    def value(self) -> Tensor:
        """Value estimates of the last observations, [K]."""
        return _concatenate_in_place(self._value)

    def set_value(self, value: Tensor) -> None:
        """Set the value estimates of all last observations, [K], for example after one forward pass over `obs`.

        Raises:
            ShapeMismatch: there is not one value per last observation.
        """
        if tuple(value.shape) != (len(self),):
            raise ShapeMismatch(
                f"final value {list(value.shape)} of {len(self)} final observations: give [{len(self)}]"
            )
        self._value = [value.to(self._value[0])]


def _concatenate_in_place(parts: list[Tensor]) -> Tensor:
    """Return a list of tensors as one tensor, which then is the only item of the list."""
    if len(parts) > 1:
        parts[:] = [torch.cat(parts)]
    return parts[0]


class RolloutBuffer:
    """Reusable storage for a rollout: T steps of N environments in one TensorDict [N, T + 1], written while sampling,
    then read to learn.

    Columns: `obs` [N, T + 1, obs_dim], `action` [N, T + 1, action_dim], `sample_log_prob`, `value`, `reward`, all
    float32, and `done`, `terminated`, `truncated`, `valid`, bool. Index T has the observation after the last step and
    its value. Other columns are zero at index T.

    `valid` is False for rows that are not transitions: index T, and with next-step autoreset the row after an ending,
    whose observation is the true last one and whose action was ignored. `done` is True if the next row is not the next
    step of the same episode. `rollout["final"]` has the `FinalObservations`.

    The storage is allocated once. The results of `start_rollout` and `get(flatten=False)` are views of it. They are
    valid until the next `start_rollout`.

    Args:
        num_envs: number N of environments.
        rollout_len: number T of steps.
        obs_dim: size of an observation vector.
        action_dim: size of an action vector.
        device: the device of the storage.

    Raises:
        InvalidArgument: a size is not an int or too small, or torch does not know the device.
        MissingExtra: tensordict is not installed.
    """

    def __init__(
        self, num_envs: int, rollout_len: int, obs_dim: int, action_dim: int, device: torch.device | str
    ) -> None:
        sizes = {"num_envs": num_envs, "rollout_len": rollout_len, "obs_dim": obs_dim, "action_dim": action_dim}
        for name, size in sizes.items():
            checked_count(name, size, 1 if name in ("num_envs", "rollout_len") else 0)
        device = checked_device(device)
        self.num_envs, self.rollout_len, self.obs_dim, self.action_dim = num_envs, rollout_len, obs_dim, action_dim
        slots = (num_envs, rollout_len + 1)
        columns = {
            "obs": torch.zeros(*slots, obs_dim, device=device),
            "action": torch.zeros(*slots, action_dim, device=device),
            **{name: torch.zeros(slots, device=device) for name in ("sample_log_prob", "value", "reward")},
            **{
                name: torch.zeros(slots, dtype=torch.bool, device=device)
                for name in ("done", "terminated", "truncated", "valid")
            },
        }
        self.device = columns["obs"].device
        self._columns = columns
        self._rollout = _tensordict(columns, batch_size=slots, device=self.device)
        self._phase: Literal["idle", "filling", "ready"] = "idle"

    def __repr__(self) -> str:
        shape = f"{self.num_envs} x {self.rollout_len}, obs {self.obs_dim}, action {self.action_dim}"
        return f"RolloutBuffer({shape}, {self.device}, {self._phase})"

    def start_rollout(self) -> TensorDict:
        """Return the storage, a TensorDict [N, T + 1], to be filled with a new rollout.

        Flags are False, rows are valid, and index T is zero. Other values are those of the previous rollout.

        Raises:
            EpisodeStateError: the previous rollout was not read, or is still being filled.
        """
        if self._phase == "ready":
            raise EpisodeStateError("start_rollout: the last rollout has not been read; call get() first")
        if self._phase == "filling":
            raise EpisodeStateError("start_rollout while one is being filled; add() it first, or discard() it")
        rollout = self._rollout
        for name in set(rollout.keys()) - self._columns.keys():
            rollout.del_(name)
        for column in self._columns.values():
            (column if column.dtype == torch.bool else column[:, -1]).zero_()
        self._columns["valid"][:, :-1] = True
        final = FinalObservations(self.num_envs, self.rollout_len + 1, self.obs_dim, self.device)
        rollout.set_non_tensor(FINAL, final)
        self._phase = "filling"
        return rollout

    def add(self, rollout: TensorDict) -> None:
        """Mark the rollout that `start_rollout` returned as filled. Then `get` returns the rollout.

        Columns that were replaced by other tensors are copied to the storage.

        Raises:
            EpisodeStateError: no rollout was started.
            InvalidArgument: the rollout is not the one of this buffer, or a column is on another device.
            TrackMismatch: a column is missing.
            ShapeMismatch, WrongType: a column has another shape or dtype.
        """
        if self._phase != "filling":
            raise EpisodeStateError(
                f"add, but no rollout is being filled (the buffer is {self._phase}); start_rollout first"
            )
        if rollout is not self._rollout:
            raise InvalidArgument("add takes the rollout that start_rollout handed out; write into that one in place")
        replaced = {name: rollout.get(name, None) for name in self._columns}
        for name, column in self._columns.items():
            _check_column(name, column, replaced[name])
        for name, column in self._columns.items():
            if replaced[name] is not column:
                column.copy_(replaced[name])
                rollout.set(name, column)
        self._columns["valid"][:, -1] = False
        self._phase = "ready"

    def get(self, flatten: bool = True) -> TensorDict:
        """Return the rollout that `add` has marked as filled. Another call needs a new rollout.

        The result has the valid transitions [B], or with `flatten=False` it is the whole TensorDict [N, T + 1].

        Raises:
            EpisodeStateError: no rollout was added since the last call.
        """
        if self._phase != "ready":
            raise EpisodeStateError(f"get: the buffer contains no rollout (it is {self._phase}); call add first")
        self._phase = "idle"
        return transition_view(self._rollout, flatten=True) if flatten else self._rollout

    def discard(self) -> None:
        """Discard the current rollout. Then `start_rollout` can begin a new rollout."""
        self._phase = "idle"


def _check_column(name: str, expected: Tensor, actual: Tensor | None) -> None:
    """Check that a column of a rollout has the shape, dtype and device of the buffer's column.

    Raises:
        TrackMismatch: it is missing (None).
        ShapeMismatch: it has another shape.
        WrongType: it has another dtype.
        InvalidArgument: it is on another device.
    """
    if actual is None:
        raise TrackMismatch(f"the rollout has no column {name!r} any more; write into the storage in place")
    if actual.shape != expected.shape:
        raise ShapeMismatch(f"column {name!r} is {list(actual.shape)}, the buffer's is {list(expected.shape)}")
    if actual.dtype != expected.dtype:
        raise WrongType(f"column {name!r} is {actual.dtype}, the buffer's is {expected.dtype}")
    if actual.device != expected.device:
        raise InvalidArgument(f"column {name!r} is on {actual.device}, the buffer on {expected.device}")


def transition_view(rollout: TensorDict, flatten: bool = False) -> TensorDict:
    """Return the steps [N, T] of a rollout [N, T + 1] without copying, or with `flatten` a copy of the valid
    transitions [B].
    """
    if not flatten:
        return cast("TensorDict", rollout.exclude(*_SIDE_DATA)[:, :-1])
    return _take_rows(_flat_columns(rollout), _valid_rows(rollout))


def _flat_columns(rollout: TensorDict) -> dict[str, Tensor]:
    """Return the columns of a rollout with environments and steps as one axis, [N * (T + 1), ...], without copying.

    Transitions that are flat already stay unchanged.
    """
    last = rollout.batch_dims - 1
    return {name: cast(Tensor, column).flatten(0, last) for name, column in rollout.items() if name not in _SIDE_DATA}


def _valid_rows(rollout: TensorDict) -> Tensor:
    """Return the flat indices of a rollout's valid transitions among all N * (T + 1) rows."""
    return cast(Tensor, rollout["valid"]).flatten().nonzero().squeeze(1)


def _take_rows(columns: dict[str, Tensor], rows: Tensor) -> TensorDict:
    """Return a TensorDict with the rows at the indices `rows` of all columns."""
    selected = {name: column.index_select(0, rows) for name, column in columns.items()}
    return _tensordict(selected, batch_size=[len(rows)], device=rows.device)


def iterate_minibatches(
    rollout: TensorDict, batch_size: int, device: torch.device | str, generator: torch.Generator | None = None
) -> Iterator[TensorDict]:
    """Yield a rollout's valid transitions in random order, as minibatches of `batch_size` on `device`.

    The last minibatch may be smaller.

    Args:
        rollout: [N, T + 1], or flattened transitions [B].
        batch_size: number of transitions in a minibatch.
        device: the device of the minibatches.
        generator: random generator for the order; by default torch's.

    Raises:
        InvalidArgument: `batch_size` is less than 1.
    """
    checked_count("batch_size", batch_size)
    rows, columns = _valid_rows(rollout), _flat_columns(rollout)
    order = torch.randperm(len(rows), generator=generator, device=None if generator is None else generator.device)
    for part in rows[order.to(rows.device)].split(batch_size):
        yield _take_rows(columns, part) if rows.device == torch.device(device) else _take_rows(columns, part).to(device)


def add_advantages(
    rollout: TensorDict, *, gamma: float, lambda_: float, truncation: Truncation = "final"
) -> TensorDict:
    """Add the columns `advantage` (GAE) and `return` (value targets), [N, T + 1] each, to a rollout, and return the
    rollout.

    The new columns are zero for rows that are not valid.

    Args:
        rollout: [N, T + 1].
        gamma: the discount factor.
        lambda_: the parameter of GAE.
        truncation: the value after a truncated step. "final": that of its true last observation, from
            `rollout["final"]`, or with next-step autoreset from the next row. For comparison with other libraries:
            "terminate" (zero) and "previous" (that of the observation before).

    Raises:
        TrackMismatch: the last observation of a truncated step is missing.
        InvalidArgument: `truncation` is none of the three, or `gamma` or `lambda_` is outside [0, 1].
    """
    checked_choice("truncation", truncation, get_args(Truncation))
    steps = {name: rollout[name][:, :-1] for name in ("reward", "terminated", "truncated", "done", "valid", "value")}
    terminated = steps["terminated"]
    boundary = (steps["truncated"] | steps["done"]) & ~terminated
    finals = None
    if truncation == "final":
        finals = _values_after(rollout, boundary & steps["valid"])
    elif truncation == "previous":
        finals = steps["value"]
    else:
        terminated = terminated | boundary
    advantages, targets = gae(
        steps["reward"].T,
        rollout["value"].T,
        terminated.T,
        boundary.T,
        gamma=gamma,
        lambda_=lambda_,
        final_values=None if finals is None else finals.T,
    )
    for name, column in (("advantage", advantages), ("return", targets)):
        padded = torch.zeros_like(rollout["value"])
        padded[:, :-1] = column.T.masked_fill(~steps["valid"], 0)
        rollout.set(name, padded)
    return rollout


def add_sequence_returns(rollout: TensorDict) -> TensorDict:
    """Add the mask `seq_mask` of each environment's first episode, and its sum of rewards `seq_return`, [N, T + 1]
    each, to a rollout.

    The sequence of an environment has the steps from row 0 to its first ending, or to the end of the rollout.
    `seq_mask` is True for these steps. `seq_return` is the sum of their rewards there, and zero elsewhere. The rollout
    is returned.
    """
    steps = {name: rollout[name][:, :-1] for name in ("reward", "terminated", "truncated", "done", "valid")}
    ended = (steps["terminated"] | steps["truncated"] | steps["done"]) & steps["valid"]
    mask = torch.zeros_like(rollout["valid"])
    mask[:, :-1] = steps["valid"] & (ended.cumsum(1) - ended.long() == 0)
    returns = steps["reward"].masked_fill(~mask[:, :-1], 0).sum(1, keepdim=True)
    rollout.set("seq_mask", mask)
    rollout.set("seq_return", torch.where(mask, returns, 0))
    return rollout


def _values_after(rollout: TensorDict, boundary: Tensor) -> Tensor:
    """Return the value estimate of the observation after each step, [N, T], also for last observations in
    `rollout["final"]`. `boundary`, bool [N, T], is True for the last steps of episodes that did not terminate.

    Raises:
        TrackMismatch: the last observation of a truncated step is missing.
    """
    final = final_observations(rollout)
    at = final.rows // rollout.shape[1], final.rows % rollout.shape[1]
    lost = boundary & rollout["valid"][:, 1:]
    lost[at] = False
    if lost.any():
        env, step = lost.nonzero()[0].tolist()
        raise TrackMismatch(
            f"environment {env} was truncated at step {step} and row {step + 1} is another episode's: append its last "
            "observation to rollout['final'], or choose truncation='terminate' or 'previous'"
        )
    values = rollout["value"][:, 1:].clone()
    values[at] = final.value
    return values


def final_observations(rollout: TensorDict) -> FinalObservations:
    """Return the last observations of episodes that a rollout stores outside of its rows (`FinalObservations`).

    Raises:
        TrackMismatch: the rollout has none.
    """
    final = rollout.get_non_tensor(FINAL, None)
    if not isinstance(final, FinalObservations):
        raise TrackMismatch(f"rollout[{FINAL!r}] is {final!r}; start_rollout puts FinalObservations there")
    return final


def _tensordict(*arguments: Any, **options: Any) -> TensorDict:
    """Return a new TensorDict made of these arguments. Raise `MissingExtra` if tensordict is not installed."""
    with needing("tensordict", "rollout buffers need tensordict"):
        from tensordict import TensorDict
    return TensorDict(*arguments, **options)

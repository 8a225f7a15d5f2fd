"""`check_policy`: check that a policy of yours gives consistent outputs while acting and learning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from connectors.connector import ColumnDict
from connectors.module_to_env.tensor_to_numpy import array_of
from connectors.policy import check_interface, distribution_of, module_of
from connectors.tensors import NumpyToTensor
from connectors.views.samples import SampleHistory
from connectors.views.view import View, Views
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import EpisodeError
from episodes.testing.contract import brief, differing_leaf, violation
from episodes.tracks import nested

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["check_policy"]

BATCH_SIZES = (1, 2, 7)
NUM_STEPS = 4  # of a sequence, where the policy has a memory
_COMPARED = (Columns.ACTION_DIST_INPUTS, Columns.STATE_OUT, "values")


def check_policy(
    policy: Policy,
    observation_space: gym.Space,
    action_space: gym.Space,
    *,
    views: Iterable[View] = (),
    interface: Sequence[str] = (),
    tolerance: float = 1e-4,
) -> None:
    """Check on sample data that a policy of yours gives consistent outputs: while acting and learning, in batches of
    several sizes.

    The rules: It returns a distribution or action for each row. The result for a row does not depend on the other rows,
    and is the same while acting and learning, also step by step with recurrent states. It keeps nothing between calls,
    and does not write to its inputs. If its outputs while learning differ in kind (for example Q-values), these are
    compared. A module is run in evaluation mode and returned to its mode.

    Args:
        policy: the policy.
        observation_space: space of the stored observations.
        action_space: space of the stored actions.
        views: the views of the policy, in order.
        interface: names of further members that it must have, such as "compute_values"; see `connectors.Policy`.
        tolerance: allowed difference of numbers between two calls, relative to the largest. Batches of other sizes are
            rounded differently, above all in half precision.

    Raises:
        ContractViolation: a rule is broken. The error names the call and the output or column.
        EpisodeError: the views cannot be bound, see `Views`.
        InvalidArgument: a member of `interface` is missing.
        WrongType: the policy cannot be called as `policy(batch, explore=...)`.
    """
    name = type(policy).__name__
    try:
        check_interface(policy, "check_policy", interface)
    except EpisodeError as error:
        raise violation(name, "a policy", str(error)) from None
    check = _PolicyCheck(policy, Views(views, observation_space, action_space), action_space, tolerance)
    with _in_eval_mode(policy):
        for batch_size in BATCH_SIZES:
            check.check_acting(batch_size)
            check.check_learning(batch_size)
        check.check_rows_alone(max(BATCH_SIZES))
        check.check_steps_alone(max(BATCH_SIZES))


class _PolicyCheck:
    """Checks of one policy: each calls the policy on sample inputs and examines the outputs."""

    def __init__(self, policy: Policy, views: Views, action_space: gym.Space, tolerance: float) -> None:
        self.policy, self.module, self.views = policy, module_of(policy), views
        self.initial = nested.map_leaves(np.asarray, self.module.initial_state())
        self.distribution: Any = distribution_of(policy, action_space)
        self.tolerance = tolerance

    # What it is given

    def batch(self, batch_size: int, num_steps: int) -> ColumnDict:
        """Return a sample batch of the policy's input columns [B, ...]. A recurrent policy gets [B, num_steps, ...] and
        "state_in" [B, ...].
        """
        count = batch_size * num_steps if self.initial else batch_size
        columns = nested.map_leaves(np.array, self.views(SampleHistory(self.views.given, np.arange(count))))
        if not self.initial:
            return columns
        leading = (batch_size, num_steps)
        columns = nested.map_leaves(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), columns)
        columns[Columns.STATE_IN] = nested.map_leaves(lambda leaf: np.stack([leaf] * batch_size), self.initial)
        return columns

    def leading(self, batch_size: int, num_steps: int) -> tuple[int, ...]:
        """Return the leading axes of the policy's outputs, as a tuple: (B,) or, for a recurrent policy, (B, T)."""
        return (batch_size, num_steps) if self.initial else (batch_size,)

    # What it gives

    def outputs(self, columns: ColumnDict, explore: bool | None) -> ColumnDict:
        """Call the policy on a batch, and return its outputs as numpy arrays. Check that it did not write to
        the batch.
        """
        options = {} if explore is None else {"explore": explore}
        call = "policy(batch)" if explore is None else f"policy(batch, explore={explore})"
        tensors = NumpyToTensor(device=self.module.device).to_tensors(nested.map_leaves(np.array, columns))
        with torch.no_grad() if explore is None else torch.inference_mode():
            outputs = self._call(call, columns, lambda: self.policy(tensors, **options))
        self._check_inputs_unchanged(call, columns, tensors)
        if not isinstance(outputs, Mapping):
            raise self._violation("a dict of columns", brief(outputs), call=call)
        return {name: nested.map_leaves(array_of, column) for name, column in outputs.items()}

    def values(self, columns: ColumnDict) -> np.ndarray:
        """Return the policy's value estimates for a batch as a numpy array. Check that it did not write to the
        batch.
        """
        call = "compute_values(batch)"
        tensors = NumpyToTensor(device=self.module.device).to_tensors(nested.map_leaves(np.array, columns))
        with torch.no_grad():
            values = self._call(call, columns, lambda: self.module.compute_values(tensors))
        self._check_inputs_unchanged(call, columns, tensors)
        return array_of(values)

    def _call(self, call: str, columns: ColumnDict, run: Callable[[], Any]) -> Any:
        """Return the result of `run()`, which calls the policy. Raise `ContractViolation` if the call fails."""
        try:
            return run()
        except KeyError as error:
            advice = "what it reads must be a column that the views make"
            raise self._violation(f"columns {list(columns)} to do", f"KeyError {error}", advice, call=call) from error
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise self._violation(f"a call with {brief(columns)} to work", failure, call=call) from error

    def _check_inputs_unchanged(self, call: str, columns: ColumnDict, tensors: ColumnDict) -> None:
        """Raise `ContractViolation` if the policy changed its input tensors, which were made of `columns`."""
        path = differing_leaf(columns, nested.map_leaves(array_of, tensors))
        if path is not None:
            column = path or sorted(columns.keys() ^ tensors.keys())
            raise self._violation(
                "a batch that is as it was", "another one", "write to a copy", call=call, column=column
            )

    # What is checked

    def check_acting(self, batch_size: int) -> None:
        """Check that the policy returns actions or a distribution per row while acting, and the same in a
        second call.
        """
        columns = self.batch(batch_size, 1)
        for explore in (True, False):
            call = f"policy(batch, explore={explore})"
            outputs = self.outputs(columns, explore)
            if not _has_actions(outputs):
                raise self._violation("'actions' or 'action_dist_inputs'", f"{list(outputs)}", call=call)
            self._check_outputs(call, outputs, batch_size, 1)
            self._check_equal("the same as in the call before", outputs, self.outputs(columns, explore), call=call)

    def check_learning(self, batch_size: int) -> None:
        """Check that the policy returns the same distributions while learning as while acting, and one value
        per row.
        """
        num_steps = NUM_STEPS if self.initial else 1
        columns = self.batch(batch_size, num_steps)
        outputs = self.outputs(columns, None)
        if not outputs.keys() - {Columns.STATE_OUT}:
            raise self._violation("what is learned from", f"{list(outputs)}", call="policy(batch)")
        self._check_outputs("policy(batch)", outputs, batch_size, num_steps)
        columns = self.batch(batch_size, 1)
        acting_outputs, learned = self.outputs(columns, True), self.outputs(columns, None)
        self._check_equal("what it said when it acted", acting_outputs, learned, call="policy(batch)")
        if self.module.has_values:
            columns = self.batch(batch_size, num_steps)
            values, expected = self.values(columns), self.leading(batch_size, num_steps)
            if values.shape != expected:
                raise self._violation(f"values {list(expected)}", brief(values), call="compute_values(batch)")

    def check_rows_alone(self, batch_size: int) -> None:
        """Check that the policy's outputs for a row do not depend on the other rows of the batch."""
        some = np.array([batch_size - 1, 1])
        for explore, call in ((None, "policy(batch)"), (False, "policy(batch, explore=False)")):
            columns = self.batch(batch_size, NUM_STEPS if self.initial and explore is None else 1)
            whole, alone = self.outputs(columns, explore), self.outputs(nested.take(columns, some), explore)
            expected = nested.take(whole, some)
            self._check_equal("what it is in a larger batch", expected, alone, among=whole, call=call)
        if self.module.has_values:
            whole, alone = {"values": self.values(columns)}, {"values": self.values(nested.take(columns, some))}
            expected = {"values": whole["values"][some]}
            self._check_equal(
                "what it is in a larger batch", expected, alone, among=whole, call="compute_values(batch)"
            )

    def check_steps_alone(self, batch_size: int) -> None:
        """Check that a recurrent policy has the same outputs for a sequence as for its single steps with the state
        passed on.
        """
        if not self.initial:
            return
        columns = self.batch(batch_size, NUM_STEPS)
        whole, state, steps = self.outputs(columns, None), columns.pop(Columns.STATE_IN), []
        explore = True if _has_actions(whole) else None
        for t in range(NUM_STEPS):
            step = nested.map_leaves(lambda leaf, t=t: leaf[:, t : t + 1], columns)
            steps.append(self.outputs({**step, Columns.STATE_IN: state}, explore))
            state = steps[-1][Columns.STATE_OUT]
        names = [name for name in _names_to_compare(whole) if name != Columns.STATE_OUT and name in steps[0]]
        one_by_one = {name: _join_steps([step[name] for step in steps]) for name in names}
        one_by_one[Columns.STATE_OUT] = state
        self._check_equal("what it is step by step", one_by_one, whole, call="policy(batch)")

    def _check_outputs(self, call: str, outputs: ColumnDict, batch_size: int, num_steps: int) -> None:
        """Check the shapes of all outputs for a batch, and that they contain no NaN."""
        leading = self.leading(batch_size, num_steps)
        for name, column in outputs.items():
            self._check_rows(call, name, column, leading[:1] if name == Columns.STATE_OUT else leading)
        inputs = outputs.get(Columns.ACTION_DIST_INPUTS)
        num_inputs = self.distribution.num_inputs
        if inputs is not None and inputs.shape != (*leading, num_inputs):
            expected = f"action_dist_inputs {[*leading, num_inputs]}, as {type(self.distribution).__name__} takes"
            raise self._violation(expected, brief(inputs), call=call)
        if self.initial:
            self._check_state(call, outputs.get(Columns.STATE_OUT), batch_size)

    def _check_rows(self, call: str, name: str, column: NestedArrays, leading: tuple[int, ...]) -> None:
        """Raise `ContractViolation` unless all arrays of an output have the first axes `leading`, and no NaN."""
        for path, leaf in nested.flatten(column, name).items():
            if np.shape(leaf)[: len(leading)] != leading:
                raise self._violation(f"{path} [{', '.join(map(str, leading))}, ...]", brief(leaf), call=call)
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and np.isnan(leaf).any():
                raise self._violation("numbers", f"NaN in {path}", call=call)

    def _check_state(self, call: str, state: object, batch_size: int) -> None:
        """Check that "state_out" has the structure and shapes of the initial state, with one row per sequence."""
        expected = nested.map_leaves(lambda leaf: np.stack([leaf] * batch_size), self.initial)
        if state is None:
            advice = "get_initial_state() returns a state, so forward must return the next state"
            raise self._violation("a state_out", "none", advice, call=call)
        same = nested.same_structure(expected, state) and all(
            a.shape == b.shape for a, b in zip(nested.leaves(expected), nested.leaves(state), strict=True)
        )
        if not same:
            advice = "the next step's state_in is this step's state_out"
            raise self._violation(f"state_out {brief(expected)}", brief(state), advice, call=call)

    def _check_equal(
        self, label: str, expected: ColumnDict, result: ColumnDict, among: ColumnDict | None = None, **place: Any
    ) -> None:
        """Check that two calls had equal outputs within rounding. Outputs that depend on chance are not compared.

        Args:
            label: what the outputs are compared with, for the error.
            expected: the expected outputs.
            result: the actual outputs.
            among: outputs of which `expected` are some rows. Their size determines the allowed difference.
            place: the call, for the error.

        Raises:
            ContractViolation: outputs differ.
        """
        for name in _names_to_compare(expected):
            if name not in result:
                continue
            leaves, expected_leaves = nested.flatten(result[name], name), nested.flatten(expected[name], name)
            scales = expected_leaves if among is None else nested.flatten(among[name], name)
            for path, column in leaves.items():
                near = _is_close(column, expected_leaves[path], self.tolerance * _largest(scales[path]))
                if not near.all():
                    row = int(np.flatnonzero(~near.reshape(len(near), -1).all(axis=1))[0])
                    texts = f"{label}, {_format_numbers(expected_leaves[path][row])}", _format_numbers(column[row])
                    raise self._violation(*texts, **place, column=path, row=row)

    def _violation(self, expected: str, result: str, advice: str = "", **place: object) -> EpisodeError:
        return violation(type(self.policy).__name__, expected, result, advice, **place)


def _has_actions(outputs: ColumnDict) -> bool:
    """Return True if a policy's outputs contain actions or the inputs of an action distribution."""
    return Columns.ACTIONS in outputs or Columns.ACTION_DIST_INPUTS in outputs


def _names_to_compare(outputs: ColumnDict) -> list[str]:
    """Return the names of a policy's outputs that do not depend on random numbers, so that two calls can be
    compared.
    """
    return [name for name in outputs if name in _COMPARED or not _has_actions(outputs)]


def _join_steps(steps: list[Any]) -> Any:
    """Return the outputs of T single steps, nested arrays [B, 1, ...] each, as one sequence [B, T, ...]."""
    return nested.map_leaves(lambda *leaves: np.concatenate(leaves, axis=1), *steps)


def _is_close(result: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Return where two arrays are equal or differ by at most `tolerance`, as an array of bools."""
    with np.errstate(invalid="ignore"):  # minus infinity says that an action is not allowed
        return (result == expected) | (np.abs(result - expected) <= tolerance)


def _largest(numbers: np.ndarray) -> float:
    """Return the largest absolute value of the finite numbers in an array, or 0 without finite numbers."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))


def _format_numbers(row: np.ndarray) -> str:
    return np.array2string(row, precision=4, threshold=8, edgeitems=2).replace("\n", "")


@contextmanager
def _in_eval_mode(policy: Policy) -> Iterator[None]:
    """Run the body of a `with` statement with the policy in evaluation mode. Then restore its mode and torch's random
    state.
    """
    training = [module for module in policy.modules() if module.training] if isinstance(policy, torch.nn.Module) else []
    with torch.random.fork_rng():
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

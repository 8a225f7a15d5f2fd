"""`ActorGraph`: torch module that computes an actor's actions from observations, so that an exporter can trace it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from math import prod
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from connectors.actor import Actor
from connectors.batch_items import BatchItems
from connectors.connector import Connector
from connectors.env_to_module import AddObservations, AddStates, AddTimeDimension
from connectors.export.traced_array import NotTraceable, TracedArray, as_tensors, as_traced
from connectors.export.traced_history import ACTIONS, OBSERVATIONS, REWARDS, TIME, TracedHistory
from connectors.module_to_env import GetActions, ListifyForVectorEnv, TensorToNumpy, UnbatchItems
from connectors.module_to_env.remove_time_dimension import RemoveTimeDimension
from connectors.policy import distribution_of, module_of
from connectors.rewriting.observation_preprocessor import ObservationPreprocessor
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.tensors import NumpyToTensor
from connectors.views.piece import ViewPiece
from connectors.views.view import name_of
from episodes.columns import Columns
from episodes.errors import NotExportable
from episodes.tracks import nested
from episodes.tracks.nested import as_any_array
from episodes.tracks.spaces import empty_items

if TYPE_CHECKING:
    from connectors.pipeline import ConnectorPipeline
    from connectors.policy import Policy

__all__ = ["ActorGraph", "Noise", "explained", "parts_of_user"]

_OURS = {"torch", "numpy", "connectors", "episodes", "episode_learners", "episode_runners", "onnxscript", "onnx"}
_DRAWS = ("multinomial", "bernoulli", "poisson", "rand", "randn", "rand_like", "randn_like", "randint", "randperm")
_DRAWS = (*_DRAWS, "normal", "randint_like", "random_", "bernoulli_", "cauchy_", "geometric_", "log_normal_")


def _uniform(numbers: Tensor, low: float | Tensor = 0.0, high: float | Tensor = 1.0, **named: float | Tensor) -> Tensor:
    low, high = named.get("from", low), named.get("to", high)
    return low + (high - low) * numbers


_SCALED: dict[str, Callable[..., Tensor]] = {  # random numbers with the parameters of torch's methods
    "exponential_": lambda numbers, lambd=1.0: numbers / lambd,
    "normal_": lambda numbers, mean=0.0, std=1.0: mean + std * numbers,
    "uniform_": _uniform,
}


@contextmanager
def explained(part: str, made: object = None) -> Iterator[None]:
    """Context manager that converts errors to `NotExportable`, and adds the part and the line of the user's code.

    `part` names the part. If the error was not raised in the user's code, the line is where the class or function of
    `made` begins.
    """
    try:
        yield
    except NotExportable:
        raise
    except Exception as error:
        missing = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(error))
        reason = str(error).split("\n\n")[0].strip() or type(error).__name__
        if missing:
            reason = f"ONNX has no operation {missing[1]}; write it with other operations"
        place = _user_line(error.__traceback__) or (made is not None and _definition(made)) or ""
        raise NotExportable(f"{part} cannot be exported: {reason}{place}") from error


def _user_line(traceback: TracebackType | None) -> str:
    """Return " (at FILE:LINE)" for the innermost frame of the user's code in a traceback, or "" if no such frame
    exists.
    """
    place = ""
    while traceback is not None:
        frame = traceback.tb_frame
        name = frame.f_globals.get("__name__", "").split(".")[0]
        if name not in _OURS and "site-packages" not in frame.f_code.co_filename:
            place = f" (at {frame.f_code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


def parts_of_user(actor: Actor) -> list[str]:
    """Return the name and source location of each connector, view and policy of an actor that the user defined."""
    named = {f"connector {name}": piece for name, piece in actor.env_to_module.rewriters.items()}
    named |= {f"view {name_of(view)}": view for view in actor.views.views}
    pipelines = (actor.env_to_module.other_pieces, _connectors_of(actor.module_to_env))
    named |= {f"connector {name}": piece for pieces in pipelines for name, piece in pieces.items()}
    named[f"policy {type(actor.policy).__name__}"] = actor.policy
    return [f"{name}{place}" for name, part in named.items() if (place := _definition(part)) is not None]


def _definition(part: object) -> str | None:
    """Return " (FILE:LINE)" where the user's code defines `part`, "" if the source is not known, or None for library
    code.
    """
    part = part.view if type(part) is ViewPiece else part
    part = part.func if isinstance(part, partial) else part
    code = part if isinstance(part, (FunctionType, type)) else type(part)
    if code.__module__.split(".")[0] in _OURS:
        return None
    try:
        return f" ({Path(inspect.getsourcefile(code) or '').name}:{inspect.getsourcelines(code)[1]})"
    except (OSError, TypeError):  # typed into an interpreter
        return ""


def _connectors_of(pipeline: ConnectorPipeline) -> dict[str, Connector]:
    return dict(zip(pipeline.names, pipeline.connectors, strict=True))


class Noise(TorchFunctionMode):
    """Context manager in which torch's random numbers are taken from a given tensor [B, K].

    Attributes:
        draws: [kind, size per row] of each draw.
    """

    def __init__(self, values: Tensor | None) -> None:
        super().__init__()
        self.values, self.draws, self._used = values, [], 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _SCALED:
            return self._fill(name, *args, **(kwargs or {}))
        if name in _DRAWS:
            raise NotTraceable(f"torch.{name} draws random numbers; use exponential_, normal_ or uniform_")
        return func(*args, **(kwargs or {}))

    def _fill(
        self, name: str, tensor: Tensor, *parameters: float, generator: torch.Generator | None = None, **named: float
    ) -> Tensor:
        """Fill `tensor` with the next random numbers, distributed as by torch's method `name`, and return it."""
        numbers = self._next_numbers(name[:-1], tensor)
        if parameters or named:
            numbers = _SCALED[name](numbers, *parameters, **named)
        return tensor.copy_(numbers)

    def _next_numbers(self, kind: str, like: Tensor) -> Tensor:
        """Return the next unused random numbers in the shape of `like`, and record their `kind` and number.

        Without a tensor of random numbers, all numbers are 1.
        """
        rows = like if like.ndim > 1 else like[None]  # one row, flattened by the sampler
        size = prod(rows.shape[1:])
        self.draws.append([kind, size])
        start, self._used = self._used, self._used + size
        if self.values is None:
            return torch.ones_like(like)
        return self.values[:, start : start + size].reshape(like.shape).to(like.dtype)


class _NoEpisodes:
    """Placeholder for the argument `episodes` of connectors, which raises `NotTraceable` when it is read."""

    def _raise(self, *args: object) -> Any:
        raise NotTraceable("an exported policy has no episodes; use a view (a function of a history)")

    __getattr__ = __iter__ = __len__ = __getitem__ = _raise


class ActorGraph(nn.Module):
    """Torch module that computes an actor's actions and next state from observations, last reward, state and noise.

    Args:
        actor: its policy is copied.
        explore: sample actions from noise; otherwise the most likely ones.
        outputs: names of further outputs.

    Raises:
        NotExportable: a part of the actor has no form in a graph.

    Attributes:
        reach: how many items of each track the views read; filled by a run.
        draws: [kind, size per row] of the noise; filled by a run.
    """

    def __init__(self, actor: Actor, explore: bool, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.policy = _copied_policy(actor.policy)
        self.explore, self.outputs = explore, outputs
        self.rewriters, self.pieces = actor.env_to_module.rewriters, actor.env_to_module.other_pieces
        self.views = actor.views
        self.after = _connectors_of(actor.module_to_env)
        self.is_recurrent = module_of(self.policy).is_recurrent
        self.action_space: Any = actor.action_space
        self.distribution: Any = distribution_of(self.policy, self.action_space)
        self.stored_observation_space: Any = actor.recorded_observation_space
        self.stored_action_space = actor.module_to_env.policy_action_space(self.action_space)
        self.reach: dict[str, int] = {}
        self.draws: list[Any] = []

    def forward(
        self, observations: Any, reward: Tensor | None, state: dict[str, Any], noise: Tensor | None
    ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return the actions for the environment [B, ...], the state for the next call, and further outputs by name.

        Args:
            observations: the newest observations [B, ...].
            reward: rewards of the last actions [B], or None if nothing reads them.
            state: state that the last call returned.
            noise: random numbers that replace torch's, or None if nothing is sampled.

        Raises:
            NotExportable: the policy lacks one of the further outputs.
        """
        past, t = state.get("past", {}), state.get(TIME)
        tracks = self._extend_tracks(self._rewrite(observations), reward, past, t)
        batch = self._batch(tracks, t, state)
        random = Noise(noise)
        with random, explained(f"policy {type(self.policy).__name__}", self.policy):
            outputs = dict(self.policy(batch, explore=self.explore))
        with random:
            rows, module_state = self._apply_module_to_env(outputs)
        self.draws = random.draws
        actions = as_tensors(rows[Columns.ACTIONS])
        for_env = as_tensors(rows.get(Columns.ACTIONS_FOR_ENV, rows[Columns.ACTIONS]))
        like = empty_items(self.action_space, 1)
        for_env = nested.map_leaves(lambda leaf, example: leaf.to(torch.as_tensor(example).dtype), for_env, like)
        after = self._next_state(tracks, past, t, actions, module_state)
        missing = [name for name in self.outputs if name not in rows]
        if missing:
            raise NotExportable(f"outputs={list(self.outputs)}: the policy has {list(rows)}, not {missing[0]!r}")
        return for_env, after, {name: as_tensors(rows[name]) for name in self.outputs}

    def initial_state(self, reach: Mapping[str, int]) -> dict[str, Any]:
        """Return the state at the start of an episode, without batch axis.

        `reach` is the number of past items per track.
        """

        def zeros(space: gym.Space, length: int) -> Any:
            """Return `length` items of a space, all zeros."""
            return nested.map_leaves(
                lambda leaf: np.zeros((length, *leaf.shape[1:]), leaf.dtype), empty_items(space, 1)
            )

        state: dict[str, Any] = {}
        past: dict[str, Any] = {}
        if reach.get(TIME) or reach.get(REWARDS):
            state[TIME] = np.zeros((), np.int64)
        if reach.get(OBSERVATIONS):
            past[OBSERVATIONS] = zeros(self.stored_observation_space, reach[OBSERVATIONS])
        if reach.get(ACTIONS):
            past[ACTIONS] = zeros(self.stored_action_space, reach[ACTIONS])
        if reach.get(REWARDS, 0) > 1:
            past[REWARDS] = np.zeros(reach[REWARDS] - 1, np.float32)
        if past:
            state["past"] = past
        if self.is_recurrent:
            state["module"] = nested.map_leaves(np.asarray, module_of(self.policy).initial_state())
        return state

    # --- before the policy -------------------------------------------------------------------------------------------

    def _rewrite(self, observations: Any) -> Any:
        """Return the observations as episodes would store them: changed by all `ObservationRewriter`s."""
        rows = as_traced(observations)
        for name, rewriter in self.rewriters.items():
            with explained(f"connector {name}", rewriter):
                rows = _rewrite_one(rewriter, rows) if _works_on_one(rewriter) else rewriter.rewrite(rows, None, False)
                _check_readable(rows)
        return as_tensors(rows)

    def _extend_tracks(
        self, observations: Any, reward: Tensor | None, past: dict[str, Any], t: Tensor | None
    ) -> dict[str, Any]:
        """Return the past observations, actions and rewards, extended by the newest observation and the last reward."""
        newest = nested.map_leaves(lambda leaf: leaf[:, None], observations)
        if OBSERVATIONS in past:
            newest = nested.map_leaves(lambda old, new: torch.cat([old, new], 1), past[OBSERVATIONS], newest)
        tracks = {OBSERVATIONS: newest}
        if ACTIONS in past:
            tracks[ACTIONS] = past[ACTIONS]
        if reward is not None and t is not None:
            last = torch.where(t > 0, reward, 0.0)[:, None]  # there is no reward at an episode's start
            tracks[REWARDS] = torch.cat([past[REWARDS], last], 1) if REWARDS in past else last
        return tracks

    def _batch(self, tracks: dict[str, Any], t: Tensor | None, state: dict[str, Any]) -> dict[str, Any]:
        """Return the policy's input batch, which the views and then the env-to-module connectors compute."""
        times = torch.zeros(1, dtype=torch.int64) if t is None else t
        history = TracedHistory(self.views.given, tracks, times, self.reach)
        for count, view in enumerate(self.views.views, 1):  # one view after the other, so that an error names it
            with explained(f"view {name_of(view)}", view):
                _check_readable(self.views.apply_first(count, history))
        batch = self.views(history)
        for name, piece in self.pieces.items():
            if type(piece) in (AddObservations, BatchItems):
                continue
            with explained(f"connector {name}", piece):
                if type(piece) is NumpyToTensor:
                    batch = nested.map_leaves(_as_float32, as_tensors(batch))
                elif type(piece) is AddTimeDimension:
                    batch = nested.map_leaves(lambda leaf: leaf[:, None], batch)
                elif type(piece) is AddStates:
                    batch = {**batch, Columns.STATE_IN: as_traced(state["module"])}
                else:
                    batch = _call_without_episodes(piece, self.policy, batch, self.explore)
                    _check_readable(batch)
        return batch

    # --- after the policy --------------------------------------------------------------------------------------------

    def _apply_module_to_env(self, outputs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the policy's outputs after all module-to-env connectors, and its new recurrent state."""
        module_state = outputs.pop(Columns.STATE_OUT, None)
        rows = outputs
        for name, piece in self.after.items():
            with explained(f"connector {name}", piece):
                if type(piece) is RemoveTimeDimension:
                    rows = nested.map_leaves(lambda leaf: leaf[:, 0], rows)
                elif type(piece) is GetActions:
                    rows = self._with_actions(rows)
                elif type(piece) is TensorToNumpy:
                    rows = as_traced(rows)
                elif type(piece) is not UnbatchItems and not (
                    type(piece) is ListifyForVectorEnv and not piece.changes_rows
                ):
                    rows = _call_without_episodes(piece, self.policy, rows, self.explore)
                    _check_readable(rows)
        return rows, module_state

    def _with_actions(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs with actions added: samples if `explore`, else the most likely actions. Log-probabilities
        are added on request.
        """
        if Columns.ACTIONS in rows:
            return rows
        inputs = rows[Columns.ACTION_DIST_INPUTS]
        inputs = inputs if inputs.dtype in (torch.float32, torch.float64) else inputs.float()
        actions = self.distribution.sample(inputs) if self.explore else self.distribution.mode(inputs)
        rows = {**rows, Columns.ACTIONS: actions, Columns.ACTION_DIST_INPUTS: inputs}
        if Columns.ACTION_LOGP in self.outputs and Columns.ACTION_LOGP not in rows:
            rows[Columns.ACTION_LOGP] = self.distribution.log_prob(inputs, actions)
        return rows

    def _next_state(
        self, tracks: dict[str, Any], past: dict[str, Any], t: Tensor | None, actions: Any, module_state: Any
    ) -> dict[str, Any]:
        """Return the state for the next call: time step, past observations, actions and rewards, and recurrent
        state.

        `past` and `t` are from the state of this call. `tracks` includes the newest items.
        """
        after: dict[str, Any] = {} if t is None else {TIME: t + 1}
        later: dict[str, Any] = {}
        if OBSERVATIONS in past:
            later[OBSERVATIONS] = nested.map_leaves(lambda leaf: leaf[:, 1:], tracks[OBSERVATIONS])
        if ACTIONS in past:
            later[ACTIONS] = nested.map_leaves(
                lambda old, new: torch.cat([old[:, 1:], new[:, None].to(old.dtype)], 1), past[ACTIONS], actions
            )
        if REWARDS in past:
            later[REWARDS] = tracks[REWARDS][:, 1:]
        if later:
            after["past"] = later
        if self.is_recurrent:
            after["module"] = module_state
        return after


def _copied_policy(policy: Policy | None) -> Any:
    """Return a copy of a torch policy on the CPU in evaluation mode, with half precision converted to float32."""
    if not isinstance(policy, nn.Module):
        return policy
    policy = deepcopy(policy).cpu().eval()
    half = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in policy.parameters())
    return policy.float() if half else policy


def _as_float32(leaf: object) -> Any:
    """Return a float64 tensor as float32, and any other value unchanged."""
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype is torch.float64 else leaf


def _check_readable(value: object) -> None:
    """Raise `NotTraceable` if a `TracedArray` in nested `value` is outdated, because its memory was written through
    another array.
    """
    for leaf in nested.leaves(value):
        if isinstance(leaf, TracedArray):
            leaf.check_readable()


def _works_on_one(rewriter: ObservationRewriter) -> bool:
    """Return True if `rewriter` is an `ObservationPreprocessor` that changes observations one at a time."""
    by_row = ObservationPreprocessor.preprocess_rows
    return isinstance(rewriter, ObservationPreprocessor) and type(rewriter).preprocess_rows is by_row


def _rewrite_one(rewriter: ObservationPreprocessor, rows: Any) -> Any:
    """Rewrite a batch of one observation by `preprocess`. Raise `NotTraceable` unless the batch has exactly one row."""
    size = nested.first_leaf(rows).shape[0]
    if type(size) is not int or size != 1:
        raise NotTraceable("preprocess works on one observation; override preprocess_rows, or export with batch=1")
    observation = rewriter.preprocess(nested.map_leaves(lambda leaf: leaf[0], rows), None)
    return nested.map_leaves(lambda leaf: as_any_array(leaf)[None], observation)


def _call_without_episodes(
    piece: Connector, policy: Policy | None, batch: dict[str, Any], explore: bool
) -> dict[str, Any]:
    """Return a connector's output for a batch, called without episodes."""
    episodes: Any = _NoEpisodes()
    return piece(rl_module=policy, batch=batch, episodes=episodes, explore=explore, shared_data={})

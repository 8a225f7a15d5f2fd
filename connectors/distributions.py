"""Action distributions: functions that compute samples, modes, log-probabilities and entropies from a policy's output
tensors.

A distribution belongs to an action space and stores only its layout. One row of inputs `[..., num_inputs]` describes
it, so a network needs one head of `num_inputs` units for any space. A batch of inputs is stored and shuffled like any
column.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from episodes.errors import InvalidArgument, ShapeMismatch
from episodes.tracks.space_kinds import SpaceKind, choices_of, joined_parts, kind_of, parts_of, rejected_space

__all__ = [
    "ActionDistribution",
    "Bernoulli",
    "Categorical",
    "DiagonalGaussian",
    "JointDistribution",
    "MultiCategorical",
    "SquashedGaussian",
    "distribution_for",
    "log_probs_of",
]


class ActionDistribution(ABC):
    """Base class of action distributions, whose parameters are given to each method as `inputs`, a tensor `[...,
    num_inputs]`.
    """

    num_inputs: int

    @abstractmethod
    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Any:
        """Return one random action for each row of inputs, `[..., *action shape]`, in the structure of the action
        space.

        Args:
            inputs: rows of inputs `[..., num_inputs]`.
            generator: source of the random numbers. None: torch's default generator of the device.
        """

    @abstractmethod
    def mode(self, inputs: Tensor) -> Any:
        """Return for each row of inputs the action `[..., *shape]` that the policy takes without exploration.

        It is the most likely action, for `SquashedGaussian` the median, in the structure of the action space.
        """

    @abstractmethod
    def log_prob(self, inputs: Tensor, actions: Any) -> Tensor:
        """Return the log-probability of each action, `[...]`. For continuous actions it is the logarithm of the
        density.
        """

    @abstractmethod
    def entropy(self, inputs: Tensor) -> Tensor:
        """Return the entropy of the distribution for each row of inputs, `[...]`, in nats."""

    def describes(self, inputs: Tensor) -> Tensor:
        """Return True for each row of inputs that describes a valid distribution, bool `[...]`.

        By default a row is valid if all its numbers are finite.
        """
        return inputs.isfinite().all(-1)

    def masked(self, inputs: Tensor, mask: Any) -> Tensor:
        """Return a copy of the inputs `[..., num_inputs]` for which the actions forbidden by `mask` have probability 0.

        Args:
            inputs: inputs of this distribution.
            mask: True or 1 for legal actions, in the shape of the logits `[..., n]`. For a joint distribution: one mask
                per part, in the structure of the space. A row without any legal action stays unchanged, as do parts
                without a mask.

        Raises:
            InvalidArgument: the distribution is not over discrete actions.
            ShapeMismatch: the mask has another shape.
        """
        raise InvalidArgument(
            f"{type(self).__name__}: an action mask applies to discrete actions, and this distribution has none"
        )


class Categorical(ActionDistribution):
    """Distribution over `n` discrete actions, from `start` to `start + n - 1`. The inputs are logits; -inf excludes an
    action.
    """

    def __init__(self, n: int, start: int = 0) -> None:
        self.num_inputs = n
        self.start = start

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._from_choices(_gumbel_argmax(inputs, generator))

    def mode(self, inputs: Tensor) -> Tensor:
        return self._from_choices(inputs.argmax(-1))

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        choices = actions.long()
        return _pick(log_probs_of(inputs), choices - self.start if self.start else choices)

    def entropy(self, inputs: Tensor) -> Tensor:
        return _categorical_entropy(inputs)

    def describes(self, inputs: Tensor) -> Tensor:
        """Return whether each row of logits is valid, bool `[...]`. A row is valid if its largest logit is finite."""
        return inputs.amax(-1).isfinite()

    def masked(self, inputs: Tensor, mask: object) -> Tensor:
        return _without_illegal(inputs, _as_mask(mask, inputs))

    def _from_choices(self, choices: Tensor) -> Tensor:
        return choices + self.start if self.start else choices


class MultiCategorical(ActionDistribution):
    """Distribution over several independent discrete actions `[..., *shape]`. The inputs are the logits of all actions,
    concatenated.
    """

    def __init__(self, num_choices: np.ndarray, start: np.ndarray | int = 0) -> None:
        counts = np.asarray(num_choices, dtype=np.int64)  # [*shape]
        ends = counts.ravel().cumsum()
        columns = np.arange(counts.max()) + (ends - counts.ravel())[:, None]  # [K, max choices]
        columns[columns >= ends[:, None]] = ends[-1]  # a column of minus infinity is appended there
        self.num_inputs = int(ends[-1])
        self.shape = counts.shape
        self._counts = counts.ravel().tolist()
        self.columns = _DeviceConstant(columns)
        self.start = _DeviceConstant(np.broadcast_to(np.asarray(start, dtype=np.int64), counts.shape).copy())

    def _logits(self, inputs: Tensor) -> Tensor:
        """Return the concatenated logits [..., num_inputs] in one row per action, [..., *shape, max choices], padded
        with -inf.
        """
        padded = functional.pad(inputs, (0, 1), value=-math.inf)
        columns = self.columns.on(inputs.device)
        return padded[..., columns].reshape((*inputs.shape[:-1], *self.shape, columns.shape[-1]))

    def _summed(self, values: Tensor) -> Tensor:
        return values.flatten(values.ndim - len(self.shape)).sum(-1)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return _gumbel_argmax(self._logits(inputs), generator) + self.start.on(inputs.device)

    def mode(self, inputs: Tensor) -> Tensor:
        return self._logits(inputs).argmax(-1) + self.start.on(inputs.device)

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        choices = actions.long() - self.start.on(inputs.device)
        return self._summed(_pick(log_probs_of(self._logits(inputs)), choices))

    def entropy(self, inputs: Tensor) -> Tensor:
        return self._summed(_categorical_entropy(self._logits(inputs)))

    def describes(self, inputs: Tensor) -> Tensor:
        """Return whether each row of logits is valid, bool `[...]`. In a valid row the largest logit of every action is
        finite.
        """
        return self._logits(inputs).amax(-1).isfinite().flatten(inputs.ndim - 1).all(-1)

    def masked(self, inputs: Tensor, mask: object) -> Tensor:
        legal = _as_mask(mask, inputs).split(self._counts, dim=-1)
        choices = zip(inputs.split(self._counts, dim=-1), legal, strict=True)
        return torch.cat([_without_illegal(*choice) for choice in choices], -1)


class Bernoulli(ActionDistribution):
    """Distribution over independent bits `[..., *shape]`, int8. The inputs are the logits of the value 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.num_inputs = math.prod(shape)
        self.shape = shape

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        ones = torch.empty_like(inputs).uniform_(generator=generator) < inputs.sigmoid()
        return _unflattened(ones.to(torch.int8), self.shape)

    def mode(self, inputs: Tensor) -> Tensor:
        return _unflattened((inputs > 0).to(torch.int8), self.shape)

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return (_flattened(actions, self.shape) * inputs - functional.softplus(inputs)).sum(-1)

    def entropy(self, inputs: Tensor) -> Tensor:
        return (functional.softplus(inputs) - inputs * inputs.sigmoid()).sum(-1)


class DiagonalGaussian(ActionDistribution):
    """Distribution over independent normally distributed actions `[..., *shape]`. The inputs are all means, followed by
    all log standard deviations.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.num_inputs = 2 * math.prod(shape)
        self.shape = shape

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, log_std = inputs.chunk(2, dim=-1)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return _unflattened(mean + noise * log_std.exp(), self.shape)

    def mode(self, inputs: Tensor) -> Tensor:
        return _unflattened(inputs.chunk(2, dim=-1)[0], self.shape)

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = inputs.chunk(2, dim=-1)
        deviations = (_flattened(actions, self.shape) - mean) * (-log_std).exp()
        return (-0.5 * deviations.square() - log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * mean.shape[-1]

    def entropy(self, inputs: Tensor) -> Tensor:
        log_std = inputs.chunk(2, dim=-1)[1]
        return log_std.sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * log_std.shape[-1]


class SquashedGaussian(ActionDistribution):
    """Distribution over the tanh of normally distributed numbers, `[..., *shape]` in (-1, 1), with the inputs of
    `DiagonalGaussian`.

    The densities are those of the squashed actions (Haarnoja et al., 2018, https://arxiv.org/abs/1801.01290, appendix
    C). The entropy has no closed form and is estimated from one sample per row.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.num_inputs = 2 * math.prod(shape)
        self.shape = shape

    def draw(self, inputs: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return random actions `[..., *shape]`, reparameterized so that gradients flow through them, and their
        log-densities `[...]`.
        """
        mean, log_std = _means_and_log_stds(inputs)
        noise = torch.empty_like(mean).normal_(generator=generator)
        raw = mean + log_std.exp() * noise
        log_density = (-0.5 * noise.square() - log_std - _log_tanh_slope(raw)).sum(-1)
        return _unflattened(raw.tanh(), self.shape), log_density - 0.5 * math.log(2 * math.pi) * mean.shape[-1]

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, log_std = _means_and_log_stds(inputs)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return _unflattened((mean + log_std.exp() * noise).tanh(), self.shape)

    def mode(self, inputs: Tensor) -> Tensor:
        """Return the tanh of the means, which is the median of the squashed actions, `[..., *shape]`."""
        return _unflattened(_means_and_log_stds(inputs)[0].tanh(), self.shape)

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = _means_and_log_stds(inputs)
        limit = 1.0 - torch.finfo(mean.dtype).eps
        raw = _flattened(actions, self.shape).to(mean.dtype).clamp(-limit, limit).atanh()
        deviations = (raw - mean) * (-log_std).exp()
        log_density = (-0.5 * deviations.square() - log_std - _log_tanh_slope(raw)).sum(-1)
        return log_density - 0.5 * math.log(2 * math.pi) * mean.shape[-1]

    def entropy(self, inputs: Tensor) -> Tensor:
        return -self.draw(inputs)[1]


class JointDistribution(ActionDistribution):
    """Distribution over a Dict or Tuple action space with independent components. The inputs of the components are
    concatenated.
    """

    def __init__(self, parts: dict[str, ActionDistribution] | tuple[ActionDistribution, ...]) -> None:
        self.parts = parts
        self._each = tuple(parts.values()) if isinstance(parts, dict) else parts
        self._sizes = [part.num_inputs for part in self._each]
        self.num_inputs = sum(self._sizes)

    def _inputs(self, inputs: Tensor) -> Any:
        return zip(self._each, inputs.split(self._sizes, dim=-1), strict=True)

    def _structured(self, actions: list[Any]) -> Any:
        return dict(zip(self.parts, actions, strict=True)) if isinstance(self.parts, dict) else tuple(actions)

    def _in_order(self, actions: Any) -> list[Any]:
        return [actions[key] for key in self.parts] if isinstance(self.parts, dict) else list(actions)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Any:
        return self._structured([part.sample(row, generator) for part, row in self._inputs(inputs)])

    def mode(self, inputs: Tensor) -> Any:
        return self._structured([part.mode(row) for part, row in self._inputs(inputs)])

    def log_prob(self, inputs: Tensor, actions: Any) -> Tensor:
        pairs = zip(self._inputs(inputs), self._in_order(actions), strict=True)
        return torch.stack([part.log_prob(row, action) for (part, row), action in pairs]).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        return torch.stack([part.entropy(row) for part, row in self._inputs(inputs)]).sum(0)

    def describes(self, inputs: Tensor) -> Tensor:
        """Return whether each row of inputs is valid for every component, bool `[...]`."""
        return torch.stack([part.describes(row) for part, row in self._inputs(inputs)]).all(0)

    def masked(self, inputs: Tensor, mask: Any) -> Tensor:
        keys: list[Any] = list(self.parts if isinstance(self.parts, dict) else range(len(self.parts)))
        masks: Mapping[Any, Any] = mask if isinstance(mask, Mapping) else dict(enumerate(mask))
        unknown = set(masks) - set(keys)
        if unknown:
            raise ShapeMismatch(f"an action mask has parts {sorted(unknown, key=str)}; the action has {keys}")
        rows = zip(keys, self._inputs(inputs), strict=True)
        return torch.cat([part.masked(row, masks[key]) if key in masks else row for key, (part, row) in rows], -1)


def distribution_for(space: spaces.Space, *, squashed: bool = False) -> ActionDistribution:
    """Return the default action distribution for the action space `space`.

    The spaces are Discrete, MultiDiscrete, MultiBinary, Box of floats, and Dict and Tuple of these. The bounds of a Box
    are ignored, because the module-to-env pipeline scales or clips actions to the bounds.

    Args:
        space: the action space.
        squashed: use tanh for Box spaces, so that actions are in (-1, 1) and are not clipped.

    Raises:
        InvalidArgument: the space has no distribution.
    """
    match kind_of(space):
        case SpaceKind.DISCRETE:
            first, count = map(int, choices_of(space))
            return Categorical(count, first)
        case SpaceKind.MULTI_DISCRETE if space.shape and all(space.shape):
            firsts, counts = choices_of(space)
            return MultiCategorical(counts, firsts)
        case SpaceKind.MULTI_BINARY:
            return Bernoulli(space.shape or ())
        case SpaceKind.BOX if np.issubdtype(space.dtype, np.floating):
            return (SquashedGaussian if squashed else DiagonalGaussian)(space.shape or ())
        case SpaceKind.DICT | SpaceKind.TUPLE if parts := parts_of(space):
            joined = (distribution_for(part, squashed=squashed) for part in parts.values())
            return JointDistribution(joined_parts(space, joined))
    allowed = "a Discrete, MultiDiscrete, MultiBinary, Box of floats, or non-empty Dict or Tuple of these"
    advice = "this space has no action distribution: let the policy return 'actions', not 'action_dist_inputs'"
    if kind_of(space).is_irregular or kind_of(space).is_nested:  # whose actions cannot be recorded either
        advice = "wrap the environment so that its actions are one of these"
    raise rejected_space("distribution_for", space, allowed, advice)


class _DeviceConstant:
    """Constant tensor with one copy per device. Each copy is made when it is first needed."""

    def __init__(self, values: np.ndarray) -> None:
        self._copies = {torch.device("cpu"): torch.from_numpy(values)}

    def on(self, device: torch.device) -> Tensor:
        """Return the constant on `device`. The copy for a device is made at the first call."""
        if device not in self._copies:
            with torch.inference_mode(False):  # created while sampling, it is used for learning too
                self._copies[device] = self._copies[torch.device("cpu")].to(device)
        return self._copies[device]

    def __reduce__(self) -> tuple[Any, ...]:
        return _DeviceConstant, (self._copies[torch.device("cpu")].numpy(),)


def _gumbel_argmax(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return one categorical sample per row, [...], from logits [..., n] by the Gumbel-max method."""
    return (logits - torch.empty_like(logits).exponential_(generator=generator).log_()).argmax(-1)


def log_probs_of(logits: Tensor) -> Tensor:
    """Return the normalized log-probabilities [..., n] (log-softmax) of logits [..., n].

    For small n on the CPU the axis is moved to the front, which is five times as fast for thousands of rows.
    """
    if logits.shape[-1] < 16 and logits.is_cpu:
        if logits.ndim == 2:  # the usual case; `mT` saves 1 us per vector step
            return logits.mT.log_softmax(0).mT
        return logits.movedim(-1, 0).log_softmax(0).movedim(0, -1)
    return logits.log_softmax(-1)


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    """Return from each row of `rows` [..., n] the element at the position given by `index` [...]."""
    return rows.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _as_mask(mask: object, inputs: Tensor) -> Tensor:
    """Return an action mask as a bool tensor. Raise `ShapeMismatch` if it is not a tensor of the inputs' shape."""
    if not isinstance(mask, Tensor) or mask.shape != inputs.shape:
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ShapeMismatch(f"an action mask {shape} for choices of {list(inputs.shape)}: it needs a number for each")
    return mask.bool()


def _without_illegal(logits: Tensor, legal: Tensor) -> Tensor:
    """Return logits [..., n] in which illegal actions are -inf. A row without any legal action stays unchanged."""
    return logits.masked_fill(~legal & legal.any(-1, keepdim=True), -math.inf)


def _categorical_entropy(logits: Tensor) -> Tensor:
    """Return the entropy [...] of the categorical distribution of each row of logits [..., n]. Logits of -inf are
    allowed.
    """
    log_probs = log_probs_of(logits.clamp(min=torch.finfo(logits.dtype).min))
    return -(log_probs.exp() * log_probs).sum(-1)


def _means_and_log_stds(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split inputs [..., 2 k] into means [..., k] and log standard deviations [..., k], and clip the latter to [-20,
    2].
    """
    mean, log_std = inputs.chunk(2, dim=-1)
    return mean, log_std.clamp(-20.0, 2.0)


def _log_tanh_slope(raw: Tensor) -> Tensor:
    """Return log(1 - tanh(raw) ** 2), the log-derivative of tanh, in a form that is accurate also for large `raw`."""
    return 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))


def _flattened(actions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flatten the axes `shape` of actions [..., *shape], and return them as [..., k]."""
    leading = actions.shape[: actions.ndim - len(shape)]
    return actions.reshape((*leading, math.prod(shape))) if len(shape) != 1 else actions


def _unflattened(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return flat actions [..., k] reshaped to [..., *shape]."""
    return rows.reshape((*rows.shape[:-1], *shape)) if len(shape) != 1 else rows

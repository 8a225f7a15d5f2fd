"""The gradient of a perceptron written out: what autograd finds as well, in a third of its time.

Autograd spends some 5 us on each operation of a graph. In a gradient step on 64 rows of a small network that is more
than the arithmetic, so an algorithm that knows the gradient of its loss with respect to the outputs goes on by this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from episode_learners.networks.layers import CastLinear, hooks_of, parameters_of

__all__ = ["Layer", "PlainLayers", "backpropagate", "gradient_of_inputs", "outputs_of"]


class Layer(NamedTuple):
    """A linear layer, and the activation behind it."""

    weight: Tensor  # [num_out, num_in]
    bias: Tensor  # [num_out]
    activation: type[nn.Module] | None  # ReLU, Tanh or none


class PlainLayers:
    """Modules that are called one behind the other, as layers, for as long as they are nothing more than layers.

    Looking at every module takes as long as a product of matrices. So they are looked at once, and asked before each
    use whether anything has come in between: a hook, another module, another parameter. A copy has looked at nothing:
    it would tell of the modules that were copied.

    Args:
        owners: the modules whose own call this stands for; children of theirs are the others. None: nothing is seen.
        modules: those that are called.
    """

    __slots__ = ("_children", "_hooks", "_layers", "_parameters")

    def __init__(self, owners: Sequence[nn.Module], modules: Iterable[nn.Module]) -> None:
        called = list(modules)
        self._children = [(vars(owner)["_modules"], tuple(owner.children())) for owner in owners]
        self._hooks = tuple(hooks for module in (*owners, *called) for hooks in hooks_of(module))
        self._layers = layers_of(called) or []
        linear = [module for module in called if type(module) is CastLinear] if self._layers else []
        found = zip(map(parameters_of, linear), self._layers, strict=True)
        self._parameters = [(own, layer.weight, layer.bias) for own, layer in found]

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainLayers, ((), ())

    @property
    def are_there(self) -> bool:
        """Whether the modules and parameters are still those that were looked at."""
        for modules, children in self._children:
            if tuple(modules.values()) != children:
                return False
        for own, weight, bias in self._parameters:
            if own.get("weight") is not weight or own.get("bias") is not bias:
                return False
        return bool(self._children)

    def now(self, dtype: torch.dtype, *, learned: bool) -> list[Layer] | None:
        """The layers, if all of them are of the dtype, and nothing but layers.

        Args:
            learned: whether every weight is also to be one that is learned, and to have a gradient to add to.
        """
        if any(self._hooks) or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return None
        for weight, bias, _ in self._layers:
            if weight.dtype is not dtype or (learned and not (_is_learned(weight) and _is_learned(bias))):
                return None
        return self._layers or None


def layers_of(modules: Sequence[nn.Module]) -> list[Layer] | None:
    """The modules as layers; None where one is something else."""
    layers: list[Layer] = []
    for module in modules:
        kind = type(module)  # another one where a layer is parametrized
        if kind is CastLinear:
            own = parameters_of(module)
            if own.get("weight") is None or own.get("bias") is None:
                return None
            layers.append(Layer(own["weight"], own["bias"], None))
        elif kind in (nn.ReLU, nn.Tanh) and layers and layers[-1].activation is None:
            layers[-1] = layers[-1]._replace(activation=kind)
        else:
            return None
    return layers


def _is_learned(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.grad is not None and not getattr(parameter, _HOOKS)


_HOOKS = "_backward_hooks"  # of a tensor


def outputs_of(layers: list[Layer], inputs: Tensor) -> list[Tensor]:
    """The inputs [B, k], what each layer makes of those before, and at the end the outputs [B, n]; no gradients."""
    found = [inputs]
    for weight, bias, activation in layers:
        inputs = functional.linear(inputs, weight, bias)
        if activation is not None:
            inputs = inputs.relu_() if activation is nn.ReLU else inputs.tanh_()
        found.append(inputs)
    return found


def backpropagate(layers: list[Layer], outputs: list[Tensor], gradient: Tensor) -> None:
    """Add to the gradients of all weights what a gradient [B, n] with respect to the last of `outputs_of` means.

    It is called where no gradients are recorded (`torch.no_grad`), and may change `gradient`.
    """
    for at in range(len(layers) - 1, -1, -1):
        weight, bias, activation = layers[at]
        gradient = _before(activation, outputs[at + 1], gradient)
        _add_product(weight.grad, gradient, outputs[at])
        bias.grad.add_(gradient.sum(0))  # type: ignore[union-attr]  # see `PlainLayers.now`
        if at:
            gradient = gradient.mm(weight)


def gradient_of_inputs(layers: list[Layer], outputs: list[Tensor], gradient: Tensor) -> Tensor:
    """What a gradient [B, n] with respect to the last of `outputs_of` says of the inputs, [B, k]; likewise."""
    for at in range(len(layers) - 1, -1, -1):
        gradient = _before(layers[at].activation, outputs[at + 1], gradient)
        gradient = gradient.mm(layers[at].weight)
    return gradient


def _before(activation: type[nn.Module] | None, output: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with respect to what an activation was given, which it made `output` of; in place."""
    if activation is nn.ReLU:
        return gradient.mul_(output.sign())  # 0 where it was cut off, else 1
    if activation is nn.Tanh:
        return gradient.addcmul_(gradient, output.square(), value=-1.0)
    return gradient


def _add_product(sums: Any, left: Tensor, right: Tensor) -> None:
    """Add left.T @ right, [m, k] of [B, m] and [B, k]; a narrow product takes a quarter of the time the other way."""
    if right.shape[1] * _NARROW <= left.shape[1]:
        sums.add_(right.t().mm(left).t())
    else:
        sums.addmm_(left.t(), right)


_NARROW = 8  # and more times as high as it is wide

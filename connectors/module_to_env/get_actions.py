"""Connector that samples actions from the distribution that the policy's outputs describe."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import ArrayLike

from connectors.categorical_sampler import NumpyCategoricalSampler, can_sample_in_numpy
from connectors.connector import ColumnDict, Connector
from connectors.distributions import ActionDistribution, distribution_for
from connectors.policy import module_of
from connectors.tensors import tensor_of
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import ShapeMismatch, UnknownKey, WrongType
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.validation import checked_count, checked_flag, checked_seed, reading_state

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["GetActions"]


class GetActions(Connector):
    """Connector that samples "actions" [N, ...] from "action_dist_inputs" [N, num_inputs], and adds their "action_logp"
    [N].

    With `explore=False` the actions are the most likely ones, and their "action_logp" are 0: the policy that acted was
    deterministic, so its actions have probability 1. With None actions are sampled. The distribution is
    `policy.distribution`, or the one of the action space. Inputs of half precision are converted to float32, in the
    batch too.

    Existing "actions" are kept. The distribution does not determine with which probability the policy chose them, so
    their "action_logp" are NaN (unknown) unless the policy returned "action_logp" too.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        seed: seed of a separate random generator; by default torch's global one is used.
        log_probs: add "action_logp". If False, `with_log_probs` adds it to all recorded steps at once, which is
            cheaper.
        name: name of the connector in its pipeline.

    Raises:
        UnknownKey: the outputs have neither "actions" nor "action_dist_inputs".
        ShapeMismatch: "action_dist_inputs" have a wrong number of columns.
        InvalidArgument: `seed` is not an int.
    """

    writes = (Columns.ACTIONS, Columns.ACTION_LOGP)

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        seed: int | None = None,
        log_probs: bool = True,
        name: str | None = None,
    ) -> None:
        self._seed = None if seed is None else checked_count("seed", seed, -math.inf)
        self.adds_log_probs = checked_flag("log_probs", log_probs)
        self._generator: torch.Generator | None = None
        self._distribution: ActionDistribution | None = None
        self._rows = NumpyCategoricalSampler(seed)
        super().__init__(input_observation_space, input_action_space, name=name)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the input spaces, and discard the distribution of the previous action space."""
        super().set_input_spaces(observation_space, action_space)
        self._distribution = None

    def __call__(
        self, *, rl_module: Policy | None = None, batch: ColumnDict, explore: bool | None = None, **kwargs: object
    ) -> ColumnDict:
        inputs = batch.get(Columns.ACTION_DIST_INPUTS)
        if Columns.ACTIONS in batch:
            if inputs is not None and Columns.ACTION_LOGP not in batch:
                batch[Columns.ACTION_LOGP] = torch.full(_as_floats(inputs).shape[:-1], math.nan)
            return batch
        if inputs is None:
            raise UnknownKey(
                f"{self.name}: the policy gave neither 'actions' nor 'action_dist_inputs', "
                f"but {', '.join(batch) or 'nothing'}"
            )
        if type(inputs) is not torch.Tensor or inputs.dtype is not torch.float32:
            inputs = batch[Columns.ACTION_DIST_INPUTS] = _as_floats(inputs)
        distribution = self.distribution_of(rl_module)
        if inputs.shape[-1] != distribution.num_inputs:
            raise _width_error(inputs, distribution)
        if can_sample_in_numpy(distribution, inputs):
            choose = self._rows.mode if explore is False else self._rows.sample
            actions = torch.from_numpy(choose(distribution, inputs.numpy()))
        elif explore is False:
            actions = distribution.mode(inputs)
        else:
            actions = distribution.sample(inputs, self._generator_for(inputs))
        batch[Columns.ACTIONS] = actions
        if self.adds_log_probs and Columns.ACTION_LOGP not in batch:
            log_probs = distribution.log_prob(inputs, actions)
            batch[Columns.ACTION_LOGP] = torch.zeros_like(log_probs) if explore is False else log_probs
        return batch

    def seed(self, seed: int | None) -> None:
        """Seed this connector's random generator. If a seed was set earlier, or `seed` is `None`, nothing changes.

        Raises:
            InvalidArgument: the seed is not an int.
        """
        if self._seed is None and seed is not None:
            self._seed = checked_count("seed", seed, -math.inf)
            self._rows = NumpyCategoricalSampler(seed)

    def unseed(self) -> None:
        """Remove the seed, so that actions are sampled with torch's global random generator."""
        self._seed, self._generator, self._rows = None, None, NumpyCategoricalSampler()

    def _generator_for(self, inputs: torch.Tensor) -> torch.Generator | None:
        """Return this connector's random generator on the device of `inputs`, or None for torch's global generator."""
        if self._generator is None and self._seed is not None:
            self._generator = torch.Generator(inputs.device).manual_seed(self._seed)
        return self._generator

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the state of the random generators. It is an empty dict if there is no seed."""
        if self._seed is None:
            return {}
        generator = self._generator
        state = None if generator is None else generator.get_state().numpy().copy()
        device = None if generator is None else str(generator.device)
        return {"seed": self._seed, "generator": state, "device": device, "rows": self._rows.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of the random generators that `get_state` returned. An empty dict changes nothing.

        Raises:
            StateMismatch: the state is malformed. Nothing is changed.
        """
        with reading_state(type(self)):
            if not state.keys():
                return
            seed, generator = checked_seed(state["seed"]), None
            rows = NumpyCategoricalSampler(seed)
            rows.set_state(state["rows"])
            if state["generator"] is not None:
                generator = torch.Generator(state["device"])
                generator.set_state(torch.from_numpy(state["generator"].copy()))
        self._seed, self._generator, self._rows = seed, generator, rows

    def reset_state(self) -> None:
        """Reset the random generators to their seed."""
        self._generator = None
        self._rows.restart()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return an empty state, with which each copy keeps its own random generators unchanged."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickling. Random generators are replaced by their states."""
        return {**self.__dict__, "_generator": None, "_rows": None, "_numbers": self.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        numbers = state.pop("_numbers")
        self.__dict__.update(state)
        self._rows = NumpyCategoricalSampler(self._seed)
        self.set_state(numbers)

    def with_log_probs(self, pack: EpisodePack, policy: Policy | None = None) -> EpisodePack:
        """Return the pack with "action_logp" (log-probabilities of the actions) for all steps, lookbacks included.
        `policy` is the policy whose distribution is used, if it has one.

        Returns:
            the pack itself if it has "action_logp", or lacks "action_dist_inputs".
        """
        log_probs = self.log_probs(pack.extra_model_outputs, pack.actions, policy)
        if log_probs is None:
            return pack
        return pack.replace(extra_model_outputs={**pack.extra_model_outputs, Columns.ACTION_LOGP: log_probs})

    def log_probs(
        self, outputs: Mapping[str, Any], actions: NestedArrays, policy: Policy | None = None
    ) -> np.ndarray | None:
        """Return the log-probabilities [n] of recorded actions [n, ...], given the recorded policy outputs of the same
        steps.

        Returns:
            None if `outputs` has "action_logp" already, or lacks "action_dist_inputs".

        Raises:
            UnknownKey: the policy has no distribution, and the action space is not known.
        """
        inputs = outputs.get(Columns.ACTION_DIST_INPUTS)
        if inputs is None or Columns.ACTION_LOGP in outputs:
            return None
        distribution = self.distribution_of(policy)
        if not isinstance(distribution, torch.nn.Module):
            with torch.no_grad():
                return distribution.log_prob(tensor_of(inputs), nested.map_leaves(tensor_of, actions)).numpy()
        device = module_of(distribution).device  # the device of the distribution's layers
        inputs, actions = nested.map_leaves(lambda leaf: tensor_of(leaf).to(device), (inputs, actions))
        with torch.no_grad():
            return distribution.log_prob(inputs, actions).cpu().numpy()

    def distribution_of(self, policy: Policy | None) -> ActionDistribution:
        """Return the policy's action distribution, or the default one of the action space if the policy has none.

        Raises:
            UnknownKey: the policy has no distribution, and the action space is not known.
            InvalidArgument: there is no default distribution for the action space.
        """
        distribution = getattr(policy, "distribution", None)
        if distribution is not None:
            return distribution
        if self._distribution is None:
            if self.input_action_space is None:
                raise UnknownKey(f"{self.name} has no action space; give one to the pipeline")
            self._distribution = distribution_for(self.input_action_space)
        return self._distribution


def _as_floats(inputs: ArrayLike | torch.Tensor) -> torch.Tensor:
    """Return the distribution inputs as a float32 or float64 tensor. Half precision, too coarse for sampling, becomes
    float32.

    Raises:
        WrongType: torch cannot convert them.
    """
    try:
        tensor = inputs if isinstance(inputs, torch.Tensor) else torch.as_tensor(inputs, device="cpu")
    except (RuntimeError, TypeError, ValueError) as error:
        raise WrongType(
            f"the policy's output 'action_dist_inputs' is a {type(inputs).__name__}; give a tensor [N, num_inputs]"
        ) from error
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _width_error(inputs: torch.Tensor, distribution: ActionDistribution) -> ShapeMismatch:
    """Return the error for distribution inputs of a width that the distribution does not take."""
    return ShapeMismatch(
        f"the policy's output 'action_dist_inputs' has shape {list(inputs.shape)}; {type(distribution).__name__} takes "
        f"{distribution.num_inputs} inputs for an action: give the policy's head that many units"
    )

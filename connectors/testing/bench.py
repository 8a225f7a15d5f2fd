"""Test pipelines for `check_connector`, which record the batch before and after the connector under test."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from connectors.column_parts import joined
from connectors.connector import ColumnDict, Connector
from connectors.distributions import distribution_for
from connectors.env_to_module import EnvToModulePipeline
from connectors.learner import AddColumns, AddNextObservations, AddObservations, LearnerPipeline
from connectors.module_to_env import GetActions, ModuleToEnvPipeline, TensorToNumpy
from connectors.pipeline import ConnectorPipeline
from connectors.policy import module_of
from connectors.views.samples import space_of
from episodes.columns import Columns
from episodes.testing.samples import sample_episodes
from episodes.tracks import nested

if TYPE_CHECKING:
    from connectors.policy import Policy

Samples = Sequence[Any]  # episodes, or rows of outputs: what a batch is made of


@dataclass(frozen=True)
class ConnectorRun:
    """Record of one run of a connector under test: its input batch and its output batch."""

    given: ColumnDict  # copies of the input columns
    given_after: ColumnDict  # the input columns after the run
    out: ColumnDict  # the output columns
    columns: ColumnDict  # the output columns as arrays


@dataclass
class Bench(ABC):
    """Test pipeline of one kind (learner, env-to-module or module-to-env) with sample data, in which `check_connector`
    runs a connector.
    """

    observation_space: gym.Space
    action_space: gym.Space
    policy: Any
    before: Sequence[Connector] | None  # the connectors before the tested connector; None: the result of `usual`

    name: ClassVar[str]
    input_columns: ClassVar[tuple[str, ...]] = ()  # columns before all connectors
    pipeline: ClassVar[type[ConnectorPipeline]]

    @abstractmethod
    def samples(self) -> Samples:
        """Return new sample episodes, or rows of policy outputs. They are equal in each call, and can be split at any
        index.
        """

    @abstractmethod
    def call(self, pipeline: Any, samples: Samples) -> None:
        """Call a pipeline with sample data as a runner or learner would."""

    def usual(self) -> Sequence[Connector]:
        """Return the connectors that a default pipeline of this kind runs before the connector under test."""
        return ()

    def num_rows(self, samples: Samples) -> int:
        """Return the number of rows of a batch that is made of these samples."""
        return len(samples)

    def run(self, piece: Connector, samples: Samples, only: Iterable[str] | None = None) -> ConnectorRun:
        """Run a connector on sample data in a test pipeline, and return its recorded input and output batches.

        Args:
            piece: the connector.
            samples: the samples.
            only: columns to keep before the connector; None keeps all.
        """
        first, last = _BatchRecorder("before", only), _BatchRecorder("after")
        before = self.usual() if self.before is None else self.before
        pieces = [*_copies_before(piece, before), first, piece, last]
        pipeline = self.pipeline(self.observation_space, self.action_space, connectors=pieces)
        if getattr(piece, "is_empty_filter", False):  # it raises without statistics
            known = self.samples()
            piece.rewrite(nested.stack([episode.get_observations(-1) for episode in known]), known, True)  # type: ignore[attr-defined]
        self.call(pipeline, samples)
        given_after = {key: as_arrays(column) for key, column in first.batch.items()}
        return ConnectorRun(first.copies, given_after, last.batch, last.copies)


class _BatchRecorder(Connector):
    """Connector that records a copy of the batch, and can remove columns from the batch."""

    reads_tracks = True

    def __init__(self, name: str, only: Iterable[str] | None = None) -> None:
        super().__init__(name=name)
        self.only = only

    def __call__(self, *, batch: ColumnDict, episodes: object = None, **kwargs: object) -> ColumnDict:
        selected = batch if self.only is None else {key: batch[key] for key in self.only}
        self.batch = dict(selected)
        self.copies = {key: as_arrays(column) for key, column in selected.items()}
        return dict(selected)


def as_arrays(column: object) -> Any:
    """Return a batch column (arrays, tensors or parts) as a copy in nested numpy arrays. Other values stay
    unchanged.
    """
    if isinstance(column, list):
        return copy.deepcopy(column)
    return nested.map_leaves(_as_array, joined(column))


def _as_array(leaf: object) -> Any:
    """Return a copy of a tensor or array as an array. Any other value is returned itself."""
    if isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu()
        return leaf.float().numpy().copy() if leaf.dtype == torch.bfloat16 else leaf.numpy().copy()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _copies_before(piece: Connector, before: Iterable[Connector]) -> list[Connector]:
    """Return copies of the connectors in `before` that do not replace the connector under test, `piece`.

    A connector replaces it if it has the same class, or writes a column that `piece` adds.
    """
    added = set(piece.writes) - set(piece.reads)
    return [
        copy.deepcopy(connector)
        for connector in before
        if type(connector) is not type(piece) and not added & set(connector.writes)
    ]


def _state_spaces_of(policy: Policy | None) -> dict[str, gym.Space]:
    """Return the spaces of the recurrent states to put into sample episodes, by column. It is empty for policies that
    are not recurrent.
    """
    module = module_of(policy)
    return {Columns.STATE_OUT: space_of(nested.stack([module.initial_state()]))} if module.is_recurrent else {}


class LearnerBench(Bench):
    """Test pipeline for learner connectors. Samples are finalized and growing, whole and cut episodes, with many, one
    or no steps.
    """

    name, pipeline = "learner", LearnerPipeline

    def usual(self) -> Sequence[Connector]:
        return AddObservations(), AddNextObservations(), AddColumns()

    def samples(self) -> Samples:
        """Return sample episodes with recorded policy outputs: distribution inputs, log-probabilities, values and
        states.
        """
        width = distribution_for(self.action_space).num_inputs
        outputs: dict[str, gym.Space] = {
            Columns.ACTION_DIST_INPUTS: gym.spaces.Box(-1, 1, (width,), np.float32),
            Columns.ACTION_LOGP: gym.spaces.Box(-3, 0, (), np.float32),
            Columns.VF_PREDS: gym.spaces.Box(-1, 1, (), np.float32),
        }
        outputs |= _state_spaces_of(self.policy)
        return sample_episodes(self.observation_space, self.action_space, extra_outputs=outputs, lookback=8)

    def num_rows(self, samples: Samples) -> int:
        return sum(map(len, samples))

    def call(self, pipeline: LearnerPipeline, samples: Samples) -> None:
        pipeline(episodes=samples, rl_module=self.policy, explore=False)


class EnvToModuleBench(Bench):
    """Test pipeline for env-to-module connectors. Samples are growing episodes, with a batch of their newest
    observations.
    """

    name, input_columns, pipeline = "env_to_module", (Columns.OBS,), EnvToModulePipeline

    def samples(self) -> Samples:
        outputs = _state_spaces_of(self.policy)
        return sample_episodes(self.observation_space, self.action_space, extra_outputs=outputs, lookback=8)

    def call(self, pipeline: EnvToModulePipeline, samples: Samples) -> None:
        rows = nested.stack([episode.get_observations(-1) for episode in samples])
        rows = pipeline.rewrite(rows, samples, False)  # as a runner does, before it records them
        pipeline(batch={Columns.OBS: rows}, episodes=samples, rl_module=self.policy, explore=False)


class ModuleToEnvBench(Bench):
    """Test pipeline for module-to-env connectors. Samples are batches of a policy's outputs."""

    name, input_columns = "module_to_env", (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)
    pipeline = ModuleToEnvPipeline

    def usual(self) -> Sequence[Connector]:
        return GetActions(seed=0), TensorToNumpy()

    def samples(self) -> Samples:
        width = distribution_for(self.action_space).num_inputs
        numbers = torch.Generator().manual_seed(0)
        rows = torch.rand(5, width + 1, generator=numbers)
        return [{Columns.ACTION_DIST_INPUTS: row[:-1], Columns.VF_PREDS: row[-1]} for row in rows]

    def call(self, pipeline: ModuleToEnvPipeline, samples: Samples) -> None:
        outputs = {key: torch.stack([row[key] for row in samples]) for key in samples[0]}
        episodes = sample_episodes(self.observation_space, self.action_space)[: len(samples)]
        pipeline(batch=outputs, episodes=episodes, rl_module=self.policy, explore=False)


BENCHES: dict[str, type[Bench]] = {bench.name: bench for bench in (LearnerBench, EnvToModuleBench, ModuleToEnvBench)}

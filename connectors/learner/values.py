"""Value estimates for all T + 1 observations of recorded episodes, computed in minibatches without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from connectors.learner.add_states import starting_states
from connectors.policy import Module, module_of
from connectors.sequences import Sequences
from connectors.tensors import NumpyToTensor
from connectors.views.pack_views import PackViews
from episodes.columns import Columns
from episodes.errors import ShapeMismatch
from episodes.pack import EpisodePack
from episodes.tracks import nested
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from connectors.policy import Policy


class ValueFunction:
    """Function that computes a policy's value estimates for recorded episodes, in minibatches on the policy's device.

    Args:
        minibatch_size: number of observations in one forward pass.
    """

    def __init__(self, minibatch_size: int) -> None:
        self.minibatch_size = checked_count("minibatch_size", minibatch_size)
        self._to_device = NumpyToTensor()

    def __call__(self, rl_module: Policy | None, pack: EpisodePack, pack_views: PackViews) -> np.ndarray:
        """Return the values of all T + 1 observations of each of n episodes, float32 [num_steps + n]. Lookbacks are
        left out.
        """
        rows, total = pack.all_observation_rows(), pack.num_steps + len(pack)
        parts = []
        for start in range(0, total, self.minibatch_size):
            span = slice(start, min(start + self.minibatch_size, total))
            columns = pack_views(span if isinstance(rows, slice) else rows[span])
            parts.append(self.compute(rl_module, columns, (span.stop - start,)))
        return on_host(parts)

    def in_sequences(
        self, rl_module: Policy | None, pack: EpisodePack, pack_views: PackViews, max_seq_len: int
    ) -> np.ndarray:
        """Return the values of all observations of n episodes, float32 [num_steps + n], for a recurrent policy that
        reads sequences.

        The module gets rows of `max_seq_len` steps and the state before each row. The last row of an episode has one
        more observation, the one after the last step.
        """
        rows = Sequences.of(pack.lengths, max_seq_len, with_empty=True)
        lengths = rows.lengths + rows.lasts  # [R] observations of each row
        firsts = pack.observation_offsets[rows.episodes] + pack.lookbacks[rows.episodes] + rows.starts
        places = np.arange(max_seq_len + 1)
        initial = module_of(rl_module).initial_state()
        states = {Columns.STATE_IN: starting_states(rows, pack, initial)} if initial else {}
        parts = []
        for part in rows.minibatches(self.minibatch_size):
            shape = (part.stop - part.start, max_seq_len + 1)
            observed = firsts[part, None] + np.minimum(places, lengths[part, None] - 1)
            flat = pack_views(observed.ravel())
            columns = nested.map_leaves(lambda leaf, shape=shape: leaf.reshape(*shape, *leaf.shape[1:]), flat)
            batch = {**columns, Columns.SEQ_LENS: lengths[part], **nested.take(states, part)}
            parts.append(self.compute(rl_module, batch, shape))
        return on_host(parts)[places < lengths[:, None]] if parts else on_host(parts)

    def of_batch(
        self, rl_module: Policy | None, batch: dict[str, Any], pack: EpisodePack, pack_views: PackViews | None = None
    ) -> np.ndarray:
        """Return the policy's value estimates of all observations of n episodes, [num_steps + n].

        The observations are read in sequences if the batch is padded. `pack_views` are the views of the policy's
        input. By default no views are applied.
        """
        pack_views, mask = pack_views or PackViews(pack), batch.get(Columns.LOSS_MASK)
        return (
            self(rl_module, pack, pack_views)
            if mask is None
            else self.in_sequences(rl_module, pack, pack_views, mask.shape[1])
        )

    def compute(self, rl_module: Policy | None, batch: dict[str, Any], shape: tuple[int, ...]) -> torch.Tensor:
        """Return the values of one minibatch as a tensor of shape `shape` on the policy's device.

        Raises:
            ShapeMismatch: the policy returns values of another shape.
        """
        module = Module(rl_module)
        device = module.device
        if self._to_device.device != device:
            self._to_device = NumpyToTensor(device=device)
        with torch.no_grad():
            values = module.compute_values(self._to_device(batch=batch))
        if tuple(values.shape) != shape:
            raise ShapeMismatch(
                f"compute_values gave {list(values.shape)} for {list(shape)} observations; it must give one each"
            )
        return values


def on_host(parts: list[torch.Tensor]) -> np.ndarray:
    """Return the values of all minibatches as one float32 array in host memory."""
    values = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else torch.zeros(0, device="cpu")
    return (values if values.dtype is torch.float32 else values.float()).numpy(force=True)

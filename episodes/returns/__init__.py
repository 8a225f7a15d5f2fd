"""Returns and advantages (GAE, n-step, V-trace) of numpy arrays. `connectors.returns` has the same for tensors."""

from episodes.returns.arrays import discounted_returns as discounted_returns
from episodes.returns.arrays import gae as gae
from episodes.returns.arrays import n_step_returns as n_step_returns
from episodes.returns.arrays import vtrace as vtrace

__all__: list[str] = []

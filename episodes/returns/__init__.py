"""Returns and advantages of episodes: on arrays here, on tensors in `connectors.returns`."""

from episodes.returns.arrays import discounted_returns, gae, n_step_returns, vtrace

__all__ = ["discounted_returns", "gae", "n_step_returns", "vtrace"]

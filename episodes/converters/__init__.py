"""Episodes to and from what other libraries hold. Each converter also tells what could not be kept, and where."""

from episodes.converters.buffers import from_d4rl, from_sb3, from_tianshou
from episodes.converters.losses import Loss, LossReport
from episodes.converters.minari import from_minari, to_minari
from episodes.converters.tensordicts import from_tensordict, to_tensordict

__all__ = [
    "Loss",
    "LossReport",
    "from_d4rl",
    "from_minari",
    "from_sb3",
    "from_tensordict",
    "from_tianshou",
    "to_minari",
    "to_tensordict",
]

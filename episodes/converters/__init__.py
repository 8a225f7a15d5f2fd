"""Converters between episodes and the formats of other libraries. Each one reports what information it lost."""

from episodes.converters.d4rl import from_d4rl
from episodes.converters.formats import read, write
from episodes.converters.lerobot import to_lerobot
from episodes.converters.lerobot_reading import from_lerobot
from episodes.converters.minari import from_minari, to_minari
from episodes.converters.parquet import from_parquet, to_huggingface, to_pandas, to_parquet
from episodes.converters.ray_data import to_ray_data
from episodes.converters.rllib import from_rllib, to_rllib
from episodes.converters.rllib_files import from_rllib_parquet, to_rllib_parquet
from episodes.converters.sb3 import from_sb3, to_sb3
from episodes.converters.tables import from_table
from episodes.converters.tensordicts import from_tensordict, to_tensordict
from episodes.converters.tianshou import from_tianshou, to_tianshou
from episodes.converters.token_messages import from_messages, to_messages
from episodes.converters.token_rows import (
    from_prime_rl,
    from_skyrl,
    from_trl,
    from_verl,
    to_prime_rl,
    to_skyrl,
    to_trl,
    to_verl,
)

__all__ = [
    "from_d4rl",
    "from_lerobot",
    "from_messages",
    "from_minari",
    "from_parquet",
    "from_prime_rl",
    "from_rllib",
    "from_rllib_parquet",
    "from_sb3",
    "from_skyrl",
    "from_table",
    "from_tensordict",
    "from_tianshou",
    "from_trl",
    "from_verl",
    "to_huggingface",
    "to_lerobot",
    "to_messages",
    "to_minari",
    "to_pandas",
    "to_parquet",
    "to_prime_rl",
    "to_ray_data",
    "to_rllib",
    "to_rllib_parquet",
    "to_sb3",
    "to_skyrl",
    "to_tensordict",
    "to_tianshou",
    "to_trl",
    "to_verl",
    "read",
    "write",
]

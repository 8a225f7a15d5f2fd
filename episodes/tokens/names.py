"""Names of the outputs, infos and custom data that token episodes store, and of the columns of token batches."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from episodes.columns import Columns

LOGP: Final = "logp"
"""Extra output: the log-probability of each sampled token."""
TRAINER_LOGP: Final = "trainer_logp"
"""Extra output, and column of a batch: the trainer's log-probability of each sampled token."""
LEARNED: Final = "learned"
"""Extra output: 0 for sampled tokens that are left out of the loss."""
VERSION: Final = "version"
"""Extra output: the policy version of each sampled token, if the weights changed within a turn."""
TOKEN_REWARDS: Final = "token_rewards"
"""Extra output: the part of the turn's reward that belongs to each sampled token."""
KEPT_TOKENS: Final = "kept_tokens"
"""Key of infos: the observation follows the first `kept_tokens` tokens of the sequence, not all of them."""
CALL: Final = "call"
"""Key of infos: number of the call in its session that sampled the turn, in the order of arrival."""
RESPONSE_ID: Final = "response_id"
"""Key of infos: id that the server gave its response."""
FINISH_REASON: Final = "finish_reason"
"""Key of infos: why the sample ended, such as "stop", "length" or "tool_calls"."""
IMAGES: Final = "images"
"""Key of infos: list of the images in the observation, in the order of their tokens."""
CHOICE: Final = "choice"
"""Key of infos: index of the sample among the choices of its response, if it is not 0."""
SAMPLING: Final = "sampling"
"""Key of infos: dict of sampling parameters, such as the temperature."""
GROUP: Final = "group"
"""Key of custom data: the user's key of the episode's group, such as the index of its prompt."""
GROUP_ID: Final = "group_id"
"""Key of custom data: id of the group. A `TokenRecorder` gives each complete group an id of its own."""
GROUP_SIZE: Final = "group_size"
"""Key of custom data: number of episodes in the group with this id."""
GROUP_KEYS: Final = (GROUP, GROUP_ID, GROUP_SIZE)
FORKED_FROM: Final = "forked_from"
"""Key of custom data: id of the episode that a conversation was forked from."""
FORKED_AT: Final = "forked_at"
"""Key of custom data: number of turns of that episode before the fork."""

INPUT_IDS: Final = "input_ids"
LABELS: Final = "labels"
LOSS_MASK: Final = Columns.LOSS_MASK
POSITION_IDS: Final = "position_ids"
ATTENTION_MASK: Final = "attention_mask"
CU_SEQLENS: Final = "cu_seqlens"
MAX_SEQLEN: Final = "max_seqlen"
EPISODES: Final = "episodes"
WEIGHTS: Final = "weights"

COLUMN_OF_OUTPUT: Final = MappingProxyType({LOGP: Columns.ACTION_LOGP, VERSION: Columns.POLICY_VERSION})
"""Columns of outputs that have another name in a batch. Other outputs keep their name."""

IGNORED: Final = -100
"""Label of a position that is not learned from."""

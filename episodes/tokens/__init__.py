"""Record the conversations of language agents as episodes, turn by turn, and make batches of
token sequences for losses."""

from episodes.tokens.batch import token_batch
from episodes.tokens.checking import TokenCheck, check_token_batch
from episodes.tokens.conversation import Conversation
from episodes.tokens.minibatches import select_sequences, sequence_lengths, token_minibatches
from episodes.tokens.recorder import TokenRecorder
from episodes.tokens.sequences import TokenSequences

__all__ = [
    "Conversation",
    "TokenCheck",
    "TokenRecorder",
    "TokenSequences",
    "check_token_batch",
    "select_sequences",
    "sequence_lengths",
    "token_batch",
    "token_minibatches",
]

"""Record the conversations of language agents as episodes, turn by turn, and make batches of
token sequences for losses."""

from episodes.tokens.batch import token_batch
from episodes.tokens.checking import check_token_batch
from episodes.tokens.conversation import Conversation
from episodes.tokens.groups import group_numbers
from episodes.tokens.minibatches import token_minibatches
from episodes.tokens.recorder import TokenRecorder
from episodes.tokens.responses import ResponseReader, Sample, read_record, read_response, read_stream
from episodes.tokens.sessions import Session, SessionRecorder, SessionReport

__all__ = [
    "Conversation",
    "ResponseReader",
    "Sample",
    "Session",
    "SessionRecorder",
    "SessionReport",
    "TokenRecorder",
    "check_token_batch",
    "group_numbers",
    "read_record",
    "read_response",
    "read_stream",
    "token_batch",
    "token_minibatches",
]

"""Convert episodes to the token sequences that a language model reads, with labels shifted by one position.

The position before a sampled token predicts it, so labels, advantages and masks of a token are stored one position
earlier than the token:

    segment         prompt          sampled    reply    sampled
    input_ids       1    2    3     7    4     8    5   5    0
    labels          -100 -100 7     4    -100  -100 5   0    -100
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.pack import EpisodePack
from episodes.tokens.arguments import check_logp, check_pack
from episodes.tokens.names import KEPT_TOKENS, LOGP
from episodes.tokens.segments import Segments, stream_of, whole_episodes, with_branches
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.ragged import Ragged
from episodes.tracks.validation import checked_count

__all__ = ["TokenSequences"]


class TokenSequences:
    """Token sequences for the episodes of a pack. Each episode becomes one sequence, and one more for each time a
    prompt changed earlier tokens.

    A sequence is the first prompt, the sampled tokens, the next part of the prompt, and so on. Each sampled token of a
    step is learned from exactly once. Steps of the lookback and the tokens that a branch shares with an earlier
    sequence are context.

    Letters: N positions of all sequences, S sequences, A sampled tokens of all steps (without lookbacks), n episodes.
    With `row_length`, each sequence is padded to a row of L positions, and N = S L.

    Args:
        pack: a pack with ragged observations and actions of one integer per token.
        with_last_observation: include the tokens after the last step, such as a tool's last answer.
        row_length: length L of the rows, or "longest" for that of the longest sequence. None: no padding.

    Raises:
        WrongType: `pack` is not an `EpisodePack`.
        TrackMismatch: observations or actions are not ragged integers.
        InvalidArgument: a chunk does not begin at its episode's start, and its lookback lacks earlier turns; or two
            chunks with one id and start differ, as copies of a conversation that both continued; or a sampled token is
            the first one of its sequence; or an info "kept_tokens" is not an int of at least 0.
        ShapeMismatch: an observation keeps more tokens than there are before it, or a sequence is longer than a row.
    """

    def __init__(
        self,
        pack: EpisodePack,
        *,
        with_last_observation: bool = False,
        row_length: int | Literal["longest"] | None = None,
    ) -> None:
        check_pack(pack, "TokenSequences")
        for name in ("observations", "actions"):
            track = getattr(pack, name)
            if type(track) is not Ragged or track.ndim != 2:
                raise TrackMismatch(
                    f"TokenSequences: {name} are not ragged tokens; record them with a Conversation, or with "
                    f"SingleAgentEpisode(ragged={{{name!r}: 'i4', ...}})"
                )
        dtypes = pack.observations.dtype, pack.actions.dtype
        if {dtype.kind for dtype in dtypes} - {"i", "u"} or np.result_type(*dtypes).kind == "f":
            raise TrackMismatch(
                f"TokenSequences: observations of {dtypes[0]} and actions of {dtypes[1]}; token ids are integers of "
                "one dtype, such as int32"
            )
        lacks_past = pack.t_started > pack.lookbacks
        if lacks_past.any():
            i = int(lacks_past.argmax())
            raise InvalidArgument(
                f"TokenSequences: the chunk of episode {pack.ids[i]} starts at t={pack.t_started[i]} and has a "
                f"lookback of {pack.lookbacks[i]}, so earlier tokens are missing; cut with "
                "len_lookback_buffer=episode.t, or join the chunks with concat_episode"
            )
        _check_copies(pack)
        self.pack = pack
        self._stream = stream_of(pack.offsets, pack.lookbacks, pack.observations.lengths, pack.actions.lengths)
        self._segments = self._find_segments(with_last_observation)
        self.lengths = self._count_tokens()
        self._check_first_tokens()
        self.row_length = None if row_length is None else self._checked_row_length(row_length)
        self._spans, self._is_learned = self._padded_segments()

    def _find_segments(self, with_last: bool) -> Segments:
        """Return the segments of the sequences: one sequence per episode, or several if infos record that a context was
        cut.

        Args:
            with_last: whether tokens after the last turn are included.

        Raises:
            ShapeMismatch: an info is to keep more tokens than there were.
        """
        kept = self._kept_tokens()
        if kept is None:
            return whole_episodes(self._stream, self.pack.lengths, with_last)

        def error(index: int, num_tokens: int) -> Exception:
            """Return the error for an info of segment `index` that declares more kept tokens than the `num_tokens`
            tokens before it.
            """
            i = int(self._stream.first.searchsorted(index, "right")) - 1
            t = (index - int(self._stream.first[i])) // 2
            return ShapeMismatch(
                f"episode {self.pack.ids[i]}: infos[{KEPT_TOKENS!r}] at t={t + self.pack.t_started[i]} is larger than "
                f"the {num_tokens} tokens before the observation"
            )

        return with_branches(self._stream, kept, with_last, error)

    def _kept_tokens(self) -> np.ndarray | None:
        """Return for each observation and action the number of earlier tokens that it keeps as context (-1: all), int64
        [M], or None if all keep all."""
        rows, values = info_values(self.pack, KEPT_TOKENS)
        if not len(rows):
            return None
        kept = np.full(len(self._stream.lengths), -1)
        kept[np.flatnonzero(~self._stream.is_action)[rows]] = values
        return kept

    def _count_tokens(self) -> np.ndarray:
        """Return the number of tokens of each sequence, int64 [S]."""
        counts, lengths = self._segments.counts, self._segments.lengths
        totals, ends = offsets_of(lengths), counts.cumsum()
        return totals[ends] - totals[ends - counts]

    def _check_first_tokens(self) -> None:
        """Raise `InvalidArgument` if the first token of a sequence is a sampled one, which no token predicts."""
        segments = self._segments
        starts = segments.lengths.cumsum() - segments.lengths
        is_first = starts == (self.lengths.cumsum() - self.lengths).repeat(segments.counts)
        is_wrong = is_first & segments.is_learned & (segments.lengths > 0)
        if is_wrong.any():
            sequence = int(np.arange(len(self)).repeat(segments.counts)[is_wrong.argmax()])
            raise InvalidArgument(
                f"episode {self.pack.ids[self.episodes[sequence]]}: a sequence begins with a sampled token, which "
                "nothing predicts; the first prompt needs at least one token"
            )

    def _checked_row_length(self, row_length: int | str) -> int:
        """Return the length of padded rows: for "longest" the length of the longest sequence, else the given number.

        Raises:
            ShapeMismatch: the number is smaller than a sequence.
        """
        longest = int(self.lengths.max(initial=0))
        if row_length == "longest":
            return longest
        if checked_count("TokenSequences: row_length", row_length) < longest:
            raise ShapeMismatch(
                f"TokenSequences: row_length={row_length} (pad_to of token_batch), and a sequence has {longest} tokens"
            )
        return int(row_length)

    def _padded_segments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of tokens of each segment, padding included, and whether to learn from the segment.

        Padding is the last segment of each sequence.

        The very last segment has one position too many. So values that are repeated per segment can be shifted left
        by one, by reading from position 1 on.
        """
        segments = self._segments
        if self.row_length is None:
            return np.append(segments.lengths, 1), np.append(segments.is_learned, False)
        ends = (segments.counts + 1).cumsum() - 1
        is_padding = np.zeros(len(segments.lengths) + len(ends) + 1, bool)
        is_padding[ends] = is_padding[-1] = True
        spans, is_learned = np.ones(len(is_padding), np.int64), np.zeros(len(is_padding), bool)
        spans[ends] = self.row_length - self.lengths
        spans[~is_padding], is_learned[~is_padding] = segments.lengths, segments.is_learned
        return spans, is_learned

    # --- sequences [S] -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._segments.counts)

    @property
    def episodes(self) -> np.ndarray:
        """For each sequence, the index in the pack of the episode that the sequence comes from, int64 [S]."""
        return self._segments.episodes

    @property
    def cu_seqlens(self) -> np.ndarray:
        """Cumulative sequence lengths, int32 [S + 1], as used by variable-length attention kernels.
        Padding does not count."""
        return offsets_of(self.lengths).astype(np.int32)

    @cached_property
    def attention_mask(self) -> np.ndarray:
        """Attention mask of the padded sequences, bool [S, L]: True at tokens, False at padding."""
        return np.arange(self.row_length or 0) < self.lengths[:, None]

    # --- positions [N] -----------------------------------------------------------------------------------------------

    @property
    def num_positions(self) -> int:
        """Number N of token positions in all sequences, padding included."""
        return int(self.lengths.sum()) if self.row_length is None else self.row_length * len(self)

    def tokens(self, pad_id: int = 0) -> np.ndarray:
        """Return the token ids of all sequences, concatenated, [N]. Padded positions contain `pad_id`.

        Raises:
            InvalidArgument: `pad_id` is not an int that the tokens' dtype can hold.
        """
        stream, segments = self._stream, self._segments
        observed, action_tokens = self.pack.observations.flat, self.pack.actions.flat
        is_action = stream.is_action.repeat(stream.lengths)
        tokens = np.empty(len(is_action), np.result_type(observed, action_tokens))
        tokens[is_action] = action_tokens
        tokens[np.logical_not(is_action, out=is_action)] = observed
        if segments.indices is not None:
            starts = stream.lengths.cumsum() - stream.lengths
            tokens = tokens[ranges(starts[segments.indices], segments.lengths)]
        if self.row_length is None:
            return tokens
        rows = np.full(self.num_positions, _checked_pad_id(pad_id, tokens.dtype), tokens.dtype)
        rows[self.attention_mask.reshape(-1)] = tokens
        return rows

    @cached_property
    def learned(self) -> np.ndarray:
        """Mask of the tokens to learn from, bool [N]: the tokens that the model sampled,
        without lookback steps and repeated context."""
        return self._is_learned.repeat(self._spans)[:-1]

    @cached_property
    def predicts(self) -> np.ndarray:
        """Mask of predicting positions, bool [N]: True at the position before each token to learn from,
        where the model predicts that token."""
        return self._is_learned.repeat(self._spans)[1:]

    @property
    def position_ids(self) -> np.ndarray:
        """Position of each token in its sequence, int32 [N], and 0 in padding."""
        if self.row_length is not None:
            return np.multiply(self.attention_mask, np.arange(self.row_length, dtype=np.int32)).reshape(-1)
        positions = np.arange(int(self.lengths.max(initial=0)), dtype=np.int32)
        return np.concatenate([positions[:0], *[positions[:length] for length in self.lengths.tolist()]])

    # --- infos of sequences [S] --------------------------------------------------------------------------------------

    def info_values(self, key: str) -> list[list[Any]]:
        """Return for each sequence the values that the infos of its observations have for `key`, in order. Values that
        are lists or tuples are joined.

        Raises:
            InvalidArgument: a sequence has only a part of the tokens of an observation with a value, since a later
                prompt changed the others.
        """
        infos, counts = self.pack.infos, self._segments.counts
        if not any(key in (*parents, last) for parents, last in infos.keys):
            return [[] for _ in counts]
        dicts, stream = infos.dicts(), self._stream
        rows = np.cumsum(~stream.is_action) - 1  # of the observation at each segment of the stream
        indices = np.arange(len(stream.lengths)) if self._segments.indices is None else self._segments.indices
        is_whole = self._segments.lengths == stream.lengths[indices]
        found: list[list[Any]] = []
        bounds = offsets_of(counts).tolist()
        for k, (start, stop) in enumerate(pairwise(bounds)):
            values: list[Any] = []
            for j in range(start, stop):
                index = int(indices[j])
                if stream.is_action[index] or key not in dicts[rows[index]]:
                    continue
                value = dicts[rows[index]][key]
                if not is_whole[j]:
                    raise InvalidArgument(
                        f"episode {self.pack.ids[self.episodes[k]]}: a later prompt repeats only a part of an "
                        f"observation with infos[{key!r}], so it is unknown which values its sequence has; record the "
                        "later prompt as an episode of its own, or leave the key out of infos=[...]"
                    )
                values += value if isinstance(value, (list, tuple)) else [value]
            found.append(values)
        return found

    # --- values of sampled tokens [A], turns and episodes ------------------------------------------------------------

    @cached_property
    def _step_rows(self) -> Any:
        return self.pack.step_rows()

    @cached_property
    def sampled_tokens(self) -> np.ndarray:
        """Token ids that the model sampled in all steps of the pack (without lookbacks), concatenated, [A]."""
        return self.of_sampled(self.pack.actions)

    def of_sampled(self, track: object) -> np.ndarray:
        """Return the values that a ragged model output, such as log-probabilities, has for the tokens
        in `sampled_tokens`, [A].

        Raises:
            TrackMismatch: the track is not ragged, or has values for other tokens.
        """
        if type(track) is not Ragged or not track.has_lengths_of(self.pack.actions):
            raise TrackMismatch("TokenSequences.of_sampled: give a Ragged track with one value per sampled token")
        rows = self._step_rows
        return track.flat if type(rows) is slice else track.take(rows).flat

    def log_probs(self) -> np.ndarray:
        """Return the recorded log-probabilities of `sampled_tokens`, [A].

        Raises:
            TrackMismatch: the output "logp" does not have one value per sampled token.
            InvalidArgument: a value is NaN, above 0 by more than rounding, or no log-probability of a sampled token.
                The error names the episode, the turn and the index.
        """
        values = self.of_sampled(self.pack.extra_model_outputs[LOGP])
        try:
            check_logp(values, str)
        except InvalidArgument:
            self._check_logp_of_turns(values)
        return values

    def _check_logp_of_turns(self, values: np.ndarray) -> None:
        """Raise `InvalidArgument` for the first turn that has a wrong log-probability."""
        pack = self.pack
        ends = pack.actions.lengths[self._step_rows].cumsum()
        for i, last in enumerate(pack.lengths.cumsum().tolist()):
            first = last - int(pack.lengths[i])
            for row in range(first, last):
                t = row - first + int(pack.t_started[i])
                turn = values[ends[row - 1] if row else 0 : ends[row]]
                check_logp(turn, lambda i=i, t=t: f"episode {pack.ids[i]}: {LOGP} at t={t}")

    def place(self, values: np.ndarray) -> np.ndarray:
        """Spread `values` [A], one per sampled token, over all positions [N]: each at the position that predicts the
        token, and 0 elsewhere.
        """
        placed = np.zeros(self.num_positions, values.dtype)
        placed[self.predicts] = values
        return placed

    def place_per_turn(self, values: np.ndarray) -> np.ndarray:
        """Spread `values` [num_steps], one per turn, over all positions [N]: at each position that predicts a token of
        the turn, and 0 elsewhere.
        """
        segments = self._segments
        if segments.indices is not None:
            turns = self._stream.is_learned.cumsum() - 1  # of each learned segment of the stream
            values = values[turns[segments.indices[segments.is_learned]]]
        of_segments = np.zeros(len(self._spans), values.dtype)
        of_segments[self._is_learned] = values
        return of_segments.repeat(self._spans)[1:]

    def place_per_episode(self, values: np.ndarray) -> np.ndarray:
        """Spread `values` [n], one per episode, over all positions [N]: at each position that predicts a sampled token
        of the episode, and 0 elsewhere.
        """
        return self.place_per_turn(values.repeat(self.pack.lengths))


def _check_copies(pack: EpisodePack) -> None:
    """Raise `InvalidArgument` if two chunks of one id and start differ. Their common turns would be learned from twice.

    Equal chunks, such as those of a sample with replacement, are accepted.
    """
    ids = pack.ids.tolist()
    if len(set(ids)) == len(ids):
        return
    agents = [None] * len(pack) if pack.agent_ids is None else pack.agent_ids
    first: dict[Any, int] = {}
    for i, key in enumerate(zip(ids, agents, pack.t_started.tolist(), strict=True)):
        before = first.setdefault(key, i)
        if before != i and not pack[before].equals(pack[i]):
            raise InvalidArgument(
                f"episode {key[0]} is twice in the pack, with different turns from t={key[2]}: copies of one "
                "conversation continued separately, or an id was given twice; use Conversation.fork, which gives a new "
                "id, instead of copy.deepcopy"
            )


def _checked_pad_id(pad_id: object, dtype: np.dtype) -> int:
    """Return the padding token as an int. Raise `InvalidArgument` if it is not one, or the tokens' dtype cannot hold
    it.
    """
    number, limits = checked_count("pad_id", pad_id, at_least=-math.inf), np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise InvalidArgument(f"pad_id={pad_id!r}: tokens are {dtype}; give an int from {limits.min} to {limits.max}")
    return number


def info_values(pack: EpisodePack, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Find the observations whose info dict has `key`. Return their row indices in the pack and
    the values, int64 [k] each.

    Raises:
        InvalidArgument: a value is not an int of at least 0.
    """
    infos = pack.infos
    column = infos.whole().columns.get(key)
    rows = np.zeros(0, np.int64) if column is None else np.flatnonzero(column.present)
    values = np.asarray([] if column is None else column.list(rows))
    if values.size and (values.dtype.kind not in "iu" or values.ndim != 1 or values.min() < 0):
        raise InvalidArgument(f"infos[{key!r}]: {values[:3].tolist()}; give ints of at least 0")
    return rows, values.astype(np.int64)

"""`TokenSample`: a token sequence as prompt, completion and mask, the form that language-model trainers read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.errors import TrackMismatch, UnknownKey
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.names import GROUP, GROUP_ID, GROUP_KEYS, KEPT_TOKENS, LEARNED, LOGP
from episodes.tokens.sequences import TokenSequences
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["TokenSample", "episodes_of_samples", "samples_of"]

_MOST_GROUPS = 5  # groups that a text lists
_REPORTED_HERE = ("id_", "custom_data", "extra_model_outputs", "infos", "lookback")


@dataclass(slots=True)
class TokenSample:
    """Token sequence of an episode, divided into a prompt and a completion before the first sampled token.

    Attributes:
        prompt_ids: tokens before the first sampled one, [P].
        completion_ids: sampled tokens and the replies between them, [C].
        mask: whether each token of the completion is learned from, bool [C].
        logps: log-probabilities, float32 [C], 0 for tokens that were not sampled.
        rewards: reward of each turn at its last sampled token, float64 [C], else 0.
        episode_return: undiscounted return of the episode.
        id_: id of the episode.
        groups: the episode's custom data about its group: the key, the id and the size, as far as they are known.
        is_truncated: whether the episode was ended from outside.
        is_last: whether it is the last sequence of its episode.
        episode: index of the episode.
    """

    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    mask: np.ndarray
    logps: np.ndarray
    rewards: np.ndarray
    episode_return: float
    id_: Any
    groups: dict[str, Any] = field(default_factory=dict)
    is_truncated: bool = False
    is_last: bool = True
    episode: int = 0

    @property
    def group(self) -> Any:
        """Value that is equal for the episodes of one group only: the id of the group, or else its key, or None."""
        return self.groups.get(GROUP_ID, self.groups.get(GROUP))


def samples_of(
    episodes: Iterable[SingleAgentEpisode], name: str, report: LossReport, *, one_each: bool = False
) -> list[TokenSample]:
    """Convert token episodes to `TokenSample` objects, one per token sequence.

    Args:
        episodes: episodes of turns of tokens, or a pack.
        name: the format, for the report.
        report: gets what samples cannot hold.
        one_each: return one sample for each episode: its last sequence, or its prompt if it has no turn.

    Raises:
        TrackMismatch: observations or actions are not ragged tokens.
        UnknownKey: the episodes have no output "logp".
    """
    episodes = episodes if isinstance(episodes, EpisodePack) else list(episodes)
    if not len(episodes):
        return []
    pack = EpisodePack.from_episodes(episodes)
    sequences = TokenSequences(pack)
    extra = pack.extra_model_outputs
    if LOGP not in extra:
        raise UnknownKey(f"{name}: the episodes have no output {LOGP!r}, only {list(extra)}")
    _report_losses(pack, sequences, name, report, one_each)
    tokens, learned = sequences.tokens(), sequences.learned
    sampled = learned.copy()
    logps = np.zeros(len(tokens), np.float32)
    logps[sampled] = sequences.log_probs()
    if LEARNED in extra:
        learned[sampled] = sequences.of_sampled(extra[LEARNED]) != 0
    rewards = _rewards_at_last_tokens(pack, sampled)
    groups = [_groups_of(data or {}) for data in pack.custom_data or [{}] * len(pack)]
    returns, bounds = pack.returns().tolist(), sequences.cu_seqlens.tolist()
    ids, owners = pack.ids.tolist(), sequences.episodes.tolist()
    last = {owner: k for k, owner in enumerate(owners)}
    samples = []
    for k, owner in enumerate(owners):
        start, stop = bounds[k], bounds[k + 1]
        is_sampled = sampled[start:stop]
        first = start + int(is_sampled.argmax()) if is_sampled.any() else stop
        samples.append(
            TokenSample(
                tokens[start:first],
                tokens[first:stop],
                learned[first:stop],
                logps[first:stop],
                rewards[first:stop],
                returns[owner],
                ids[owner],
                groups[owner],
                bool(pack.truncated[owner] and not pack.terminated[owner]),
                last[owner] == k,
                owner,
            )
        )
    if not one_each:
        return samples
    last_of = {sample.episode: sample for sample in samples if sample.is_last}
    return [last_of.get(i) or _prompt_only(pack, i, groups[i]) for i in range(len(pack))]


def _prompt_only(pack: EpisodePack, i: int, groups: dict[str, Any]) -> TokenSample:
    """Return the sample of an episode without turns: its prompt, and no completion."""
    episode, none = pack[i], np.zeros(0)
    prompt = np.asarray(episode.get_observations(0), np.int32)
    is_truncated = bool(pack.truncated[i] and not pack.terminated[i])
    empty = none.astype(np.int32), none.astype(bool), none.astype(np.float32), none
    return TokenSample(prompt, *empty, 0.0, episode.id_, groups, is_truncated, True, i)


def _groups_of(custom_data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what custom data has about the group of an episode."""
    return {name: custom_data[name] for name in GROUP_KEYS if custom_data.get(name) is not None}


def _rewards_at_last_tokens(pack: EpisodePack, sampled: np.ndarray) -> np.ndarray:
    """Return an array [N] with each turn's reward at its last sampled token and zeros elsewhere, float64."""
    rows = pack.step_rows()
    lengths = pack.actions.lengths[rows]
    places = np.flatnonzero(sampled)[lengths.cumsum()[lengths > 0] - 1]
    rewards = np.zeros(len(sampled))
    rewards[places] = pack.rewards[rows][lengths > 0]
    return rewards


def _report_losses(pack: EpisodePack, sequences: TokenSequences, name: str, report: LossReport, one_each: bool) -> None:
    """Note in `report` what token samples of the pack do not contain.

    Args:
        name: the target in the report's texts.
        one_each: whether each episode is one sample.
    """
    counts = np.bincount(sequences.episodes, minlength=len(pack)).tolist()
    no_place = f"{name} has no place for it"
    rows = _row_counts(pack, counts, name)
    for count, episode in zip(counts, pack, strict=True):
        id_, outputs = episode.id_, episode.extra_model_outputs
        report_dropped_facts(report, episode, name, keeps=_REPORTED_HERE)
        replies = episode.get_observations().lengths[1:]
        if count > 1:
            repeats = f"{name} repeats the tokens that sequences of an episode share"
            left_out = f"{name} gets one row per episode, the last sequence; samples of the others are left out"
            report.add("branches", left_out if one_each else repeats, id_)
        if count == 0:
            no_turn = (
                "it has no turn, so nothing is learned from its row"
                if one_each
                else f"{name} has no rows without a turn"
            )
            report.add("the episode", no_turn, id_)
        if count != 1 and not one_each:
            report.add("number of rows", rows, id_)
        if (episode.get_actions().lengths == 0).any():
            report.add("turns without a sampled token", "their rewards have no place", id_)
        if (replies[:-1] == 0).any():
            report.add("turn edges", "turns without a reply between them become one", id_)
        if len(replies) and replies[-1]:
            report.add("last observations", "tokens after the last turn are left out", id_)
        if LEARNED in outputs and not episode.get_extra_model_outputs(LEARNED).flat.all():
            report.add("sampled tokens that are not learned from", "the mask has no other value for replies", id_)
        if pack.extra_model_outputs[LOGP].dtype.itemsize > 4:
            report.add("precision of log-probabilities", f"{name} has float32", id_)
        for key in (key for key in outputs if key not in (LOGP, LEARNED)):
            report.add(f"extra_model_outputs[{key!r}]", no_place, id_)
        if set(episode.custom_data) - set(GROUP_KEYS):
            report.add("custom_data", no_place, id_)
        if episode.lookback:
            report.add("lookback", "earlier turns become part of the prompt", id_)
        if not episode.is_done:
            report.add("cut", f"{name} has whole episodes only", id_)
        if any(set(info) - {KEPT_TOKENS} for info in episode.get_infos()):
            report.add("infos", f"{name} has no place for them", id_)


def _row_counts(pack: EpisodePack, counts: Sequence[int], name: str) -> str:
    """Describe how many rows and episodes a pack and its groups have.

    Args:
        pack: the episodes.
        counts: number of rows of each episode.
        name: the target in the text.
    """
    totals: dict[Any, list[Any]] = {}  # by group: the key, the number of rows and the number of episodes
    for count, data in zip(counts, pack.custom_data or (), strict=False):
        key = (data or {}).get(GROUP)
        total = totals.setdefault(repr((data or {}).get(GROUP_ID, key)), [key, 0, 0])
        total[1], total[2] = total[1] + count, total[2] + 1
    uneven = [f"group {key!r}: {rows} rows for {num}" for key, rows, num in totals.values() if rows != num]
    more = f" and {len(uneven) - _MOST_GROUPS} more groups" if len(uneven) > _MOST_GROUPS else ""
    return (
        f"{name} gets {sum(counts)} rows for {len(counts)} episodes, so groups of rows with a fixed size, such as "
        f"num_generations, are not the groups of episodes ({'; '.join(uneven[:_MOST_GROUPS]) or 'no groups'}{more})"
    )


def report_turn_rewards(samples: Sequence[TokenSample], name: str, report: LossReport) -> None:
    """Report that the rewards of single turns are lost in a format with one reward per sample."""
    for sample in samples:
        if np.count_nonzero(sample.rewards[: _last_sampled(sample)]):
            report.add("rewards of turns", f"{name} has their sum", sample.id_)


def _last_sampled(sample: TokenSample) -> int:
    """Return the index of the last sampled token in the completion, or its length if no token was sampled."""
    places = np.flatnonzero(sample.mask)
    return int(places[-1]) if len(places) else len(sample.mask)


def episodes_of_samples(samples: Iterable[TokenSample], report: LossReport) -> list[SingleAgentEpisode]:
    """Convert `TokenSample` objects to episodes, in which each run of sampled tokens is an action.

    Rewards of replies belong to the turn before them, and rewards before the first turn to the first turn. A sample
    without sampled tokens is an episode without turns, whose rewards are lost and added to `report`.

    Raises:
        TrackMismatch: mask, rewards or log-probabilities have another length than the completion.
    """
    episodes = []
    for sample in samples:
        num = len(sample.completion_ids)
        if len(sample.mask) != num or len(sample.logps) != num or len(sample.rewards) != num:
            raise TrackMismatch(
                f"sample {sample.id_}: {num} completion tokens, {len(sample.mask)} of the mask, {len(sample.logps)} "
                "log-probabilities; give one for each token"
            )
        mask = np.asarray(sample.mask, bool)
        bounds = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), num] if num else [0]
        runs = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        prompt = np.asarray(sample.prompt_ids, np.int32)
        if runs and not mask[0]:
            prompt = np.append(prompt, np.asarray(sample.completion_ids[runs.pop(0)], np.int32))
        turns, replied = runs[::2], [*runs[1::2], slice(num, num)][: len(runs[::2])]
        observations = [prompt, *(sample.completion_ids[run] for run in replied)]
        rewards = [float(np.sum(sample.rewards[a.start : b.stop])) for a, b in zip(turns, replied, strict=True)]
        if not turns and (sample.episode_return or np.any(sample.rewards)):
            report.add("rewards", "there is no turn that they could belong to", sample.id_)
        if turns:
            rewards[0] += float(np.sum(sample.rewards[: turns[0].start]))
        episodes.append(
            SingleAgentEpisode.from_arrays(
                _ragged(observations, np.int32),
                _ragged([sample.completion_ids[run] for run in turns], np.int32),
                np.array(rewards),
                extra_model_outputs={LOGP: _ragged([sample.logps[run] for run in turns], np.float32)},
                id_=sample.id_,
                custom_data=dict(sample.groups),
                terminated=not sample.is_truncated,
                truncated=sample.is_truncated,
            )
        )
    return episodes


def _ragged(items: Sequence[Any], dtype: DTypeLike) -> Ragged:
    """Return lists of different lengths as a ragged array."""
    arrays = [np.asarray(item, dtype) for item in items]
    values = np.concatenate([np.zeros(0, dtype), *arrays])
    return Ragged.from_lengths(values, np.array([len(array) for array in arrays], np.int64))

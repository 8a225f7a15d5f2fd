"""Conversion between token episodes and the training data of TRL, SkyRL, prime-rl and verl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.accounting import Account
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import own_or_made_ids
from episodes.converters.token_samples import TokenSample, episodes_of_samples, report_turn_rewards, samples_of
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.arguments import as_token_ids, token_kind
from episodes.tokens.names import GROUP, GROUP_ID, GROUP_KEYS, GROUP_SIZE
from episodes.tracks.stacking import object_array
from episodes.tracks.validation import checked_flag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = [
    "from_prime_rl",
    "from_skyrl",
    "from_trl",
    "from_verl",
    "to_prime_rl",
    "to_skyrl",
    "to_trl",
    "to_verl",
]

Episodes = Iterable[SingleAgentEpisode]
_KIND = token_kind(np.int32, "token ids of rows")


def to_trl(
    episodes: Episodes, *, one_per_episode: bool = False, strict: bool = False
) -> tuple[dict[str, list[Any]], LossReport]:
    """Convert episodes to the result of a TRL `rollout_func`, with each episode's return as its reward.

    Returns it with a report of what was lost.

    Each column has one entry per token sequence: an episode, or a branch of one. "prompt_ids", "completion_ids" and
    "logprobs" are lists of lists. "env_mask" is 1 for sampled tokens that are learned from, else 0. Reward functions of
    the trainer get "reward", the return of the episode, as a keyword argument. "episode_id" names the episode, and
    "group", "group_id" and "group_size" its group. TRL itself groups rows by their position, so an episode with
    branches has more rows than it expects, which is reported. A `rollout_func` returns one row for each prompt that it
    gets: with `one_per_episode`, the row of an episode is its last sequence, and the others are left out. TRL needs
    completions: if nothing was sampled, the completion is the last token of the prompt, with an "env_mask" of 0.

    Args:
        episodes: episodes of turns of tokens, or a pack.
        one_per_episode: return one row for each episode, in order, also for episodes without a turn.
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: the episodes are not made of ragged tokens.
        UnknownKey: the episodes have no output "logp".
        InvalidArgument: a sequence has a prompt of one token, and no completion.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    samples = samples_of(episodes, "TRL", report, one_each=checked_flag("to_trl: one_per_episode", one_per_episode))
    report_turn_rewards(samples, "TRL", report)
    samples = [sample if len(sample.completion_ids) else _with_completion(sample) for sample in samples]
    columns = {
        "prompt_ids": [sample.prompt_ids.tolist() for sample in samples],
        "completion_ids": [sample.completion_ids.tolist() for sample in samples],
        "logprobs": [sample.logps.tolist() for sample in samples],
        "env_mask": [sample.mask.astype(int).tolist() for sample in samples],
        "reward": [sample.episode_return for sample in samples],
        "episode_id": [sample.id_ for sample in samples],
        **_group_columns(samples),
    }
    _report_truncation(samples, "TRL", report)
    return columns, report.check(strict)


def _with_completion(sample: TokenSample) -> TokenSample:
    """Return a sample without a completion whose completion is the last token of its prompt, which is not learned from.

    Raises:
        InvalidArgument: the prompt has only one token.
    """
    if len(sample.prompt_ids) < 2:
        raise InvalidArgument(
            f"to_trl: nothing was sampled in episode {sample.id_}, and its prompt has {len(sample.prompt_ids)} tokens; "
            "TRL needs a prompt and a completion, so leave the episode out"
        )
    prompt, completion = sample.prompt_ids[:-1], sample.prompt_ids[-1:]
    zeros = np.zeros(1, bool), np.zeros(1, np.float32), np.zeros(1)
    return replace(
        sample, prompt_ids=prompt, completion_ids=completion, mask=zeros[0], logps=zeros[1], rewards=zeros[2]
    )


def from_trl(
    columns: Mapping[str, Sequence[Any]], *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert the columns of a TRL `rollout_func` to episodes, in which each run of sampled tokens is an action.

    Returns these with a report of what was lost, such as other columns.

    Without "env_mask", all completion tokens are sampled. The last turn has the whole reward. Without "episode_id", the
    ids are "trl-DIGEST/INDEX", with a digest of the columns.

    Args:
        columns: the columns, each with one value per token sequence.
        prefix: first part of the ids, "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: a mask or log-probabilities have another length than the completion, or columns have different
            numbers of rows.
        LostInConversion: with `strict`, something would be lost.
    """
    report, stored = LossReport(), Account(columns)
    completions = stored["completion_ids"]
    num = len(completions)
    masks = next((stored[name] for name in ("env_mask", "tool_mask") if columns.get(name) is not None), None)
    ids = _ids("trl", stored.get("episode_id"), num, columns, prefix, report)
    if num and "reward" not in stored:
        report.add("rewards", "the columns have none; they are 0", ids[0])
    rows = {
        "prompt_ids": stored["prompt_ids"],
        "completion_ids": completions,
        "env_mask": [[1] * len(row) for row in completions] if masks is None else masks,
        "logprobs": stored["logprobs"],
        "reward": stored.get("reward", [0.0] * num),
        "episode_id": ids,
        "group": _groups(stored, [None] * num),
    }
    _check_lengths("from_trl", rows, num)
    episodes = episodes_of_samples((_sample(*row) for row in zip(*rows.values(), strict=True)), report)
    stored.report_rest(report, ids[0] if ids else None)
    return episodes, report.check(strict)


def to_skyrl(episodes: Episodes, *, strict: bool = False) -> tuple[dict[str, list[Any]], LossReport]:
    """Convert episodes to SkyRL's `GeneratorOutput`, with the reward of each turn at its last token.

    Returns it with a report of what was lost.

    Each list has one entry per token sequence. "rewards" are lists with a number per response token: the reward of a
    turn is at its last sampled token, all others are 0. "loss_masks" are 1 for sampled tokens that are learned from.
    "stop_reasons" are "length" for truncated episodes, else "stop". "trajectory_ids" are the ids of the episodes, and
    "instance_ids" their groups: the id of a recorder's group, or else its key. SkyRL's step-wise training reads both
    from `TrajectoryID(instance_id, repetition_id)`. "group", "group_id" and "group_size" are read by `from_skyrl`.

    Args:
        episodes: episodes of turns of tokens, or a pack.
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: the episodes are not made of ragged tokens.
        UnknownKey: the episodes have no output "logp".
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    samples = samples_of(episodes, "SkyRL", report)
    return {
        "prompt_token_ids": [sample.prompt_ids.tolist() for sample in samples],
        "response_ids": [sample.completion_ids.tolist() for sample in samples],
        "rewards": [sample.rewards.tolist() for sample in samples],
        "loss_masks": [sample.mask.astype(int).tolist() for sample in samples],
        "stop_reasons": ["length" if sample.is_truncated else "stop" for sample in samples],
        "rollout_logprobs": [sample.logps.tolist() for sample in samples],
        "trajectory_ids": [sample.id_ for sample in samples],
        "instance_ids": [sample.group for sample in samples],
        **_group_columns(samples),
        "is_last_step": [sample.is_last for sample in samples],
    }, report.check(strict)


def from_skyrl(
    output: Mapping[str, Any], *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert SkyRL's `GeneratorOutput` to one episode per entry. A single reward is given to the last turn.

    Returns these with a report of what was lost.

    "trajectory_ids" are texts, or `TrajectoryID` objects, whose instance becomes the group. Without them, the ids are
    "skyrl-DIGEST/INDEX", with a digest of the output.

    Args:
        output: the lists by name, each with one value per entry.
        prefix: first part of the ids, "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: masks, rewards or log-probabilities have another length than the response, or lists have
            different numbers of entries.
        UnknownKey: there are no log-probabilities.
        LostInConversion: with `strict`, something would be lost.
    """
    report, stored = LossReport(), Account(output)
    num = len(stored["response_ids"])
    if num and not stored.get("rollout_logprobs"):
        raise UnknownKey("from_skyrl: the output has no 'rollout_logprobs'; let the inference engine return them")
    objects = stored.get("trajectory_ids") or [None] * num
    texts = [None if id_ is None else str(getattr(id_, "to_string", id_.__str__)()) for id_ in objects]
    ids = _ids("skyrl", texts, num, output, prefix, report)
    if num and not stored.get("stop_reasons"):
        report.add("truncation", "the output has no 'stop_reasons'; all endings count as terminations", ids[0])
    rows = {
        "prompt_token_ids": stored["prompt_token_ids"],
        "response_ids": stored["response_ids"],
        "loss_masks": stored["loss_masks"],
        "rollout_logprobs": stored.get("rollout_logprobs") or (),
        "rewards": stored["rewards"],
        "trajectory_ids": ids,
        "instance_ids": _groups(
            stored, stored.get("instance_ids") or [getattr(id_, "instance_id", None) for id_ in objects]
        ),
        "stop_reasons": [stop == "length" for stop in stored.get("stop_reasons") or ["stop"] * num],
    }
    _check_lengths("from_skyrl", rows, num)
    for stop in {*(stored.get("stop_reasons") or ())} - {"stop", "length"}:
        report.add(f"stop reason {stop!r}", "it counts as a termination", ids[0])
    stored.skip("is_last_step")
    episodes = episodes_of_samples((_sample(*row) for row in zip(*rows.values(), strict=True)), report)
    stored.report_rest(report, ids[0] if ids else None)
    return episodes, report.check(strict)


def to_prime_rl(
    episodes: Episodes, *, episode_advantages: Sequence[float] | np.ndarray | None = None, strict: bool = False
) -> tuple[list[dict[str, Any]], LossReport]:
    """Convert episodes to training samples of prime-rl, one dict per token sequence. Return these with a report.

    Args:
        episodes: episodes of turns of tokens, or a pack.
        episode_advantages: advantage of each episode, [n]. None: samples have the advantage None.
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: the episodes are not made of ragged tokens.
        UnknownKey: the episodes have no output "logp".
        ShapeMismatch: there is another number of advantages than of episodes.
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    episodes = list(episodes)
    if episode_advantages is not None and len(episode_advantages) != len(episodes):
        raise ShapeMismatch(f"to_prime_rl: {len(episode_advantages)} advantages for {len(episodes)} episodes")
    samples = samples_of(episodes, "prime-rl", report)
    report_turn_rewards(samples, "prime-rl", report)
    _report_truncation(samples, "prime-rl", report)
    return [
        {
            "prompt_ids": sample.prompt_ids.tolist(),
            "prompt_mask": [False] * len(sample.prompt_ids),
            "completion_ids": sample.completion_ids.tolist(),
            "completion_mask": sample.mask.tolist(),
            "completion_logprobs": sample.logps.tolist(),
            "reward": sample.episode_return,
            "advantage": None if episode_advantages is None else float(episode_advantages[sample.episode]),
            "example_id": sample.groups.get(GROUP),
            GROUP_ID: sample.groups.get(GROUP_ID),
            GROUP_SIZE: sample.groups.get(GROUP_SIZE),
            "episode_id": sample.id_,
        }
        for sample in samples
    ], report.check(strict)


def from_prime_rl(
    rows: Iterable[Mapping[str, Any]], *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert training samples of prime-rl to one episode per sample, with the reward at the last turn.

    Returns these with a report of what was lost, such as advantages. Samples without "episode_id" have the ids
    "prime-rl-DIGEST/INDEX", with a digest of all samples.

    Args:
        rows: the samples.
        prefix: first part of the ids, "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: a mask or log-probabilities have another length than the completion.
        LostInConversion: with `strict`, something would be lost.
    """
    report, rows = LossReport(), list(rows)
    ids = own_or_made_ids("prime-rl", [row.get("episode_id") for row in rows], rows, prefix, report)
    samples = []
    for id_, row in zip(ids, rows, strict=True):
        stored = Account(row)
        stored.skip("episode_id")
        if stored.get("reward") is None:
            report.add("rewards", "the sample has none; it is 0", id_)
        if any(stored.get("prompt_mask") or ()):
            report.add("prompt_mask", "tokens of the prompt are no actions", id_)
        parts = (stored[name] for name in ("prompt_ids", "completion_ids", "completion_mask", "completion_logprobs"))
        groups = {GROUP: stored.get("example_id"), GROUP_ID: stored.get(GROUP_ID), GROUP_SIZE: stored.get(GROUP_SIZE)}
        samples.append(_sample(*parts, reward=stored.get("reward") or 0.0, id_=id_, groups=_known(groups)))
        stored.report_rest(report, id_)
    return episodes_of_samples(samples, report), report.check(strict)


def to_verl(
    episodes: Episodes, *, pad_id: int = 0, strict: bool = False
) -> tuple[dict[str, dict[str, np.ndarray]], LossReport]:
    """Convert episodes to the arrays of verl's `DataProto`. Return these with a report of what was lost.

    With torch, `DataProto.from_dict(tensors={k: torch.from_numpy(v) ...}, non_tensors=...)` takes "batch" and
    "non_tensor_batch". Prompts [S, P] are padded on the left and responses [S, R] on the right. "response_mask" is 1
    for sampled tokens that are learned from, "rollout_log_probs" and "rm_scores" (rewards of turns at their last
    token) are [S, R]. "input_ids", "attention_mask" and "position_ids" are [S, P + R]. "uid", by which verl
    groups rows, is the id of a recorder's group, or else its key. `from_verl` reads "group", "group_id", "group_size".

    Args:
        episodes: episodes of turns of tokens, or a pack.
        pad_id: token of the padding.
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: the episodes are not made of ragged tokens.
        UnknownKey: the episodes have no output "logp".
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    samples = samples_of(episodes, "verl", report)
    _report_truncation(samples, "verl", report)
    num_prompt = max((len(sample.prompt_ids) for sample in samples), default=0)
    num_response = max((len(sample.completion_ids) for sample in samples), default=0)

    def rows(width: int, dtype: DTypeLike, fill: int = 0) -> np.ndarray:
        return np.full((len(samples), width), fill, dtype)

    prompts, responses = rows(num_prompt, np.int64, pad_id), rows(num_response, np.int64, pad_id)
    mask, attention = rows(num_response, np.int64), rows(num_prompt + num_response, np.int64)
    logps, scores = rows(num_response, np.float32), rows(num_response, np.float32)
    for k, sample in enumerate(samples):
        start, length = num_prompt - len(sample.prompt_ids), len(sample.completion_ids)
        prompts[k, start:], responses[k, :length] = sample.prompt_ids, sample.completion_ids
        mask[k, :length], logps[k, :length] = sample.mask, sample.logps
        scores[k, :length] = sample.rewards
        attention[k, start : num_prompt + length] = 1
    batch = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0) * attention,
        "rollout_log_probs": logps,
        "rm_scores": scores,
    }
    names = {
        "uid": [sample.group for sample in samples],
        "episode_id": [sample.id_ for sample in samples],
        **_group_columns(samples),
    }
    return {"batch": batch, "non_tensor_batch": {key: object_array(v) for key, v in names.items()}}, report.check(
        strict
    )


def from_verl(
    data: Any, *, prefix: str | None = None, strict: bool = False
) -> tuple[list[SingleAgentEpisode], LossReport]:
    """Convert verl's `DataProto`, or the result of `to_verl`, to one episode per row, and a report of what was lost.

    Rewards are "token_level_scores" or "rm_scores", and log-probabilities "rollout_log_probs" or "old_log_probs"; both
    are 0 if missing, which the report names. Without "episode_id", the ids are "verl-DIGEST/INDEX", with a digest of
    the tokens, masks and rewards.

    Args:
        data: the `DataProto`, or a dict with "batch" and "non_tensor_batch".
        prefix: first part of the ids, "PREFIX/ID".
        strict: raise if something would be lost.

    Raises:
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    is_dict = isinstance(data, Mapping)
    batch, others = (data["batch"], data["non_tensor_batch"]) if is_dict else (data.batch, data.non_tensor_batch)
    arrays = Account({key: np.asarray(batch[key]) for key in batch.keys()})  # noqa: SIM118 - a TensorDict iterates rows
    names = Account(others)
    arrays.skip("input_ids", "position_ids")
    prompts, responses, mask = arrays["prompts"], arrays["responses"], arrays["response_mask"]
    attention, num, width = arrays["attention_mask"].astype(bool), len(responses), prompts.shape[1]
    read = {
        kind: next((arrays[name] for name in given if name in arrays), None)
        for kind, given in {
            "rewards": ("token_level_scores", "rm_scores"),
            "log-probabilities": ("rollout_log_probs", "old_log_probs"),
        }.items()
    }
    content = [prompts, responses, mask, read["rewards"]]
    ids = _ids("verl", names.get("episode_id"), num, content, prefix, report)
    for kind, array in read.items():
        if array is None and num:
            report.add(kind, "the data have none; they are 0", ids[0])
    rewards, logps = (np.zeros(mask.shape) if array is None else array for array in read.values())
    groups = _groups(names, names.get("uid", [None] * num))
    episodes = episodes_of_samples(
        (
            _sample(
                prompts[k][attention[k, :width]],
                *(array[k][attention[k, width:]] for array in (responses, mask, logps, rewards)),
                id_=ids[k],
                groups=groups[k],
            )
            for k in range(num)
        ),
        report,
    )
    for account in (arrays, names):
        account.report_rest(report, ids[0] if ids else None)
    return episodes, report.check(strict)


def _ids(
    kind: str,
    ids: np.ndarray | Sequence[object] | None,
    num: int,
    content: object,
    prefix: str | None,
    report: LossReport,
) -> list[Any]:
    """Return the id of each row: the stored one, or a made one. `ids` is None if the source stores none."""
    stored = [None] * num if ids is None else ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return own_or_made_ids(kind, stored, content, prefix, report)


def _check_lengths(where: str, rows: Mapping[str, Sequence[Any]], num: int) -> None:
    """Raise `TrackMismatch` unless all columns have `num` rows."""
    for name, column in rows.items():
        if len(column) != num:
            raise TrackMismatch(f"{where}: {name!r} has {len(column)} rows, and there are {num} completions")


def _sample(
    prompt: ArrayLike,
    completion: ArrayLike,
    mask: ArrayLike,
    logps: ArrayLike,
    reward: ArrayLike,
    id_: object,
    groups: dict[str, Any],
    is_truncated: bool = False,
) -> TokenSample:
    """Create a `TokenSample` from lists. If `reward` is one number, it is placed at the last sampled token."""
    mask = np.asarray(mask, bool)
    rewards = np.asarray(reward, np.float64)
    total = float(rewards.sum())
    if not rewards.ndim:
        rewards = np.zeros(len(mask))
        if mask.any():
            rewards[np.flatnonzero(mask)[-1]] = total
    prompt_ids = as_token_ids(prompt, _KIND, lambda: f"row {id_}: prompt")
    completion_ids = as_token_ids(completion, _KIND, lambda: f"row {id_}: completion")
    arrays = prompt_ids, completion_ids, mask, np.asarray(logps, np.float32)
    return TokenSample(*arrays, rewards, total, id_, groups, is_truncated)


def _group_columns(samples: Sequence[TokenSample]) -> dict[str, list[Any]]:
    """Return a column for each value that is known about the group of a sample, with None if it is not."""
    return {name: [sample.groups.get(name) for sample in samples] for name in GROUP_KEYS}


def _groups(columns: Account, keys: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what the columns of `_group_columns` have about the group of each row, as custom data.

    Args:
        columns: the columns, if there are any.
        keys: key of the group of each row, for rows without these columns.
    """
    stored = {name: values for name in GROUP_KEYS if (values := columns.get(name)) is not None}
    _check_lengths("groups", stored, len(keys))
    return [
        _known({name: values[k] for name, values in stored.items()}) or _known({GROUP: key})
        for k, key in enumerate(keys)
    ]


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _report_truncation(samples: Sequence[TokenSample], name: str, report: LossReport) -> None:
    """Note in `report` each truncated episode, for a format that has only one kind of ending."""
    for sample in samples:
        if sample.is_truncated:
            report.add("truncation", f"{name} does not tell truncated episodes from terminated ones", sample.id_)

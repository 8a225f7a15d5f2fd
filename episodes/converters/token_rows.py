"""Conversion between token episodes and the training data of TRL, SkyRL, prime-rl and verl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from episodes.converters.loss_report import LossReport
from episodes.converters.token_samples import TokenSample, episodes_of_samples, report_turn_rewards, samples_of
from episodes.errors import ShapeMismatch, UnknownKey
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.arguments import as_token_ids, token_kind
from episodes.tokens.names import GROUP, GROUP_ID, GROUP_KEYS, GROUP_SIZE
from episodes.tracks.stacking import object_array

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


def to_trl(episodes: Episodes, *, strict: bool = False) -> tuple[dict[str, list[Any]], LossReport]:
    """Convert episodes to the result of a TRL `rollout_func`, with each episode's return as its reward.

    Returns it with a report of what was lost.

    Each column has one entry per token sequence: an episode, or a branch of one. "prompt_ids", "completion_ids" and
    "logprobs" are lists of lists. "env_mask" is 1 for sampled tokens that are learned from, else 0. Reward functions of
    the trainer get "reward", the return of the episode, as a keyword argument. "episode_id" names the episode, and
    "group", "group_id" and "group_size" its group. TRL itself groups rows by their position, so an episode with
    branches has more rows than it expects, which is reported.

    Args:
        episodes: episodes of turns of tokens, or a pack.
        strict: raise if something would be lost.

    Raises:
        TrackMismatch: the episodes are not made of ragged tokens.
        UnknownKey: the episodes have no output "logp".
        LostInConversion: with `strict`, something would be lost.
    """
    report = LossReport()
    samples = samples_of(episodes, "TRL", report)
    report_turn_rewards(samples, "TRL", report)
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


def from_trl(columns: Mapping[str, Sequence[Any]]) -> list[SingleAgentEpisode]:
    """Convert the columns of a TRL `rollout_func` to episodes, in which each run of sampled tokens is an action.

    Without "env_mask", all completion tokens are sampled. The last turn has the whole reward.

    Raises:
        TrackMismatch: a mask or log-probabilities have another length than the completion.
    """
    ids = columns["completion_ids"]
    masks = next((columns[name] for name in ("env_mask", "tool_mask") if columns.get(name) is not None), None)
    masks = [[1] * len(row) for row in ids] if masks is None else masks
    return episodes_of_samples(
        _sample(prompt, completion, mask, logps, reward, id_, groups)
        for prompt, completion, mask, logps, reward, id_, groups in zip(
            columns["prompt_ids"],
            ids,
            masks,
            columns["logprobs"],
            columns.get("reward", [0.0] * len(ids)),
            columns.get("episode_id", [f"trl/{k}" for k in range(len(ids))]),
            _groups(columns, [None] * len(ids)),
            strict=True,
        )
    )


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


def from_skyrl(output: Mapping[str, Any]) -> list[SingleAgentEpisode]:
    """Convert SkyRL's `GeneratorOutput` to one episode per entry. A single reward is given to the last turn.

    "trajectory_ids" are texts, or `TrajectoryID` objects, whose instance becomes the group.

    Raises:
        TrackMismatch: masks, rewards or log-probabilities have another length than the response.
        UnknownKey: there are no log-probabilities.
    """
    num = len(output["response_ids"])
    if num and not output.get("rollout_logprobs"):
        raise UnknownKey("from_skyrl: the output has no 'rollout_logprobs'; let the inference engine return them")
    ids = output.get("trajectory_ids") or [f"skyrl/{k}" for k in range(num)]
    instances = output.get("instance_ids") or [getattr(id_, "instance_id", None) for id_ in ids]
    ids = [str(getattr(id_, "to_string", id_.__str__)()) for id_ in ids]
    stops = output.get("stop_reasons") or ["stop"] * num
    return episodes_of_samples(
        _sample(prompt, response, mask, logps, rewards, id_, groups, stop == "length")
        for prompt, response, mask, logps, rewards, id_, groups, stop in zip(
            output["prompt_token_ids"],
            output["response_ids"],
            output["loss_masks"],
            output["rollout_logprobs"] or (),
            output["rewards"],
            ids,
            _groups(output, instances),
            stops,
            strict=True,
        )
    )


def to_prime_rl(
    episodes: Episodes, *, episode_advantages: Any = None, strict: bool = False
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


def from_prime_rl(rows: Iterable[Mapping[str, Any]]) -> list[SingleAgentEpisode]:
    """Convert training samples of prime-rl to one episode per sample, with the reward at the last turn.

    Raises:
        TrackMismatch: a mask or log-probabilities have another length than the completion.
    """
    return episodes_of_samples(
        _sample(
            row["prompt_ids"],
            row["completion_ids"],
            row["completion_mask"],
            row["completion_logprobs"],
            row.get("reward") or 0.0,
            row.get("episode_id", f"prime-rl/{k}"),
            _known({GROUP: row.get("example_id"), GROUP_ID: row.get(GROUP_ID), GROUP_SIZE: row.get(GROUP_SIZE)}),
        )
        for k, row in enumerate(rows)
    )


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

    def rows(width: int, dtype: Any, fill: int = 0) -> np.ndarray:
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


def from_verl(data: Any) -> list[SingleAgentEpisode]:
    """Convert verl's `DataProto`, or the result of `to_verl`, to one episode per row.

    Rewards are "token_level_scores" or "rm_scores", and log-probabilities "rollout_log_probs" or "old_log_probs"; both
    are 0 if missing.
    """
    is_dict = isinstance(data, Mapping)
    batch, names = (data["batch"], data["non_tensor_batch"]) if is_dict else (data.batch, data.non_tensor_batch)
    columns = {key: np.asarray(batch[key]) for key in batch.keys()}  # noqa: SIM118 - a TensorDict iterates over rows
    logps = columns.get("rollout_log_probs", columns.get("old_log_probs"))
    prompts, responses, mask = columns["prompts"], columns["responses"], columns["response_mask"]
    rewards = columns.get("token_level_scores", columns.get("rm_scores", np.zeros(mask.shape)))
    attention, num = columns["attention_mask"].astype(bool), len(responses)
    ids, groups = (
        names.get("episode_id", [f"verl/{k}" for k in range(num)]),
        _groups(names, names.get("uid", [None] * num)),
    )
    width = prompts.shape[1]
    return episodes_of_samples(
        _sample(
            prompts[k][attention[k, :width]],
            responses[k][attention[k, width:]],
            mask[k][attention[k, width:]],
            np.zeros(int(attention[k, width:].sum())) if logps is None else logps[k][attention[k, width:]],
            rewards[k][attention[k, width:]],
            ids[k],
            groups[k],
        )
        for k in range(num)
    )


def _sample(
    prompt: Any,
    completion: Any,
    mask: Any,
    logps: Any,
    reward: Any,
    id_: Any,
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


def _groups(columns: Mapping[str, Any], keys: Any) -> list[dict[str, Any]]:
    """Return what the columns of `_group_columns` have about the group of each row, as custom data.

    Args:
        columns: the columns, if there are any.
        keys: key of the group of each row, for rows without these columns.
    """
    stored = {name: columns[name] for name in GROUP_KEYS if columns.get(name) is not None}
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

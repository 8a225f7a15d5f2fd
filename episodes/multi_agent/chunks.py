"""Cutting, slicing and joining multi-agent episodes. O(agents), whatever the number of steps.

One law defines all three: a chunk holds the steps that *complete* in it. So a waiting agent's step, with its reward,
belongs to the chunk in which its next observation arrives, and neither slices nor cuts count anything twice.
"""

from __future__ import annotations

from typing import Any

from episodes.errors import ChunkMismatch
from episodes.multi_agent.growing import refusal
from episodes.multi_agent.state import MultiAgentState
from episodes.multi_agent.timeline import ENDED, Chunk


def chunk_attributes(episode: MultiAgentState, chunk: Chunk) -> dict[str, Any]:
    """The attributes, as `_set` takes them, of the part of an episode that a chunk names."""
    begin, end, lookback, _ = chunk
    lines, departed, loose, apart = {}, episode._departed, episode._loose_infos, episode._apart
    departed = {a: ending for a, ending in departed.items() if ending[2] <= end} if departed else {}
    for agent_id, line in episode._lines.items():
        part = line.chunk(chunk)
        if part is not None:
            lines[agent_id] = part
        elif line.is_gone(chunk):
            own = line.episode
            departed[agent_id] = (own.is_terminated, own.is_truncated, line.ended_at)
    reaches_end = end == episode.env_t
    return {
        **episode._same_episode(),
        "env_t_started": begin,
        "env_t": end,
        "lookback": lookback,
        "lines": lines,
        "departed": departed,
        "loose_infos": {t: infos for t, infos in loose.items() if begin - lookback <= t <= end} if loose else None,
        "apart": [entry for entry in apart if begin < entry[0] <= end] if apart else None,
        "terminated": reaches_end and episode.is_terminated,
        "truncated": reaches_end and episode.is_truncated,
        "is_numpy": episode.is_numpy,
    }


def cut(episode: MultiAgentState, lookback: int) -> dict[str, Any]:
    """The attributes of the successor, which takes over what is pending."""
    if episode.is_done or not episode.is_reset or episode._is_cut:
        raise refusal(episode, "cut")
    now = episode.env_t
    chunk = Chunk(now, now, min(lookback, episode.lookback + len(episode)), True)
    attributes = chunk_attributes(episode, chunk)
    attributes["lines"] = {agent_id: line.thawed() for agent_id, line in attributes["lines"].items()}
    for line in episode._lines.values():
        if line.phase != ENDED:
            line.drop_pending()
    episode._is_cut = True
    episode._stop_clock()
    return attributes | {"is_numpy": False}


def join(episode: MultiAgentState, other: MultiAgentState) -> None:
    """Append the chunk that follows, in place; its lookback is dropped."""
    _check_follows(episode, other)
    rest = Chunk(other.env_t_started, other.env_t, 0, True)
    for agent_id, later in other._lines.items():
        line = episode._lines.get(agent_id)
        if line is None:
            entered = later.chunk(rest)
            if entered is not None:
                episode._lines[agent_id] = entered if episode.is_numpy else entered.thawed()
        elif line.phase != ENDED:
            line.append(later)
    if episode.is_numpy:
        episode.to_numpy()
    episode._apart += other._apart
    episode._loose_infos |= other._loose_infos
    episode._departed |= {a: ending for a, ending in other._departed.items() if a not in episode._lines}
    episode._modules |= other._modules
    episode.custom_data.update(other.custom_data)
    episode.env_t = other.env_t
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._is_cut = other._is_cut
    episode._duration, episode._began = episode.get_duration_s() + other.get_duration_s(), None


def _check_follows(episode: MultiAgentState, other: MultiAgentState) -> None:
    if episode.is_done or not episode.is_reset:
        raise refusal(episode, "concat_episode")
    if other.id_ != episode.id_:
        raise ChunkMismatch(
            f"episode {episode.id_}: a chunk of episode {other.id_} does not follow it; join chunks of one id"
        )
    if other.env_t_started != episode.env_t:
        raise ChunkMismatch(
            f"episode {episode.id_}: a chunk that begins at env step {other.env_t_started} does not follow one that "
            f"stops at {episode.env_t}; join chunks in order, none left out"
        )
    for agent_id, line in episode._lines.items():
        later = other._lines.get(agent_id)
        if line.phase == ENDED:
            continue
        if later is None:
            raise ChunkMismatch(
                f"episode {episode.id_}: agent {agent_id!r} goes on at env step {episode.env_t}, and the chunk that "
                "begins there does not know it"
            )
        line.episode._check_follows(later.episode)
        line.episode._joined_extra(later.episode.extra_model_outputs, len(later.episode))
    for agent_id, later in other._lines.items():
        if agent_id not in episode._lines and agent_id not in episode._departed and later.seen[0] <= episode.env_t:
            raise ChunkMismatch(
                f"episode {episode.id_}: agent {agent_id!r} of the chunk was there at env step {episode.env_t}, and "
                "this chunk does not know it"
            )

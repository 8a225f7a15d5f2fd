"""Conversion of actions between the ranges of a policy and of the environment, on export and import."""

from __future__ import annotations

from typing import Any, TypeVar

from episodes.columns import Columns
from episodes.converters.loss_report import LossReport
from episodes.data_types import Space
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.action_units import dropped_outputs
from episodes.tracks.policy_box import has_policy_actions, policy_space_of

Converted = TypeVar("Converted", SingleAgentEpisode, MultiAgentEpisode, EpisodePack)


def export_actions(episodes: Converted, report: LossReport, mapping: str | None = None) -> Converted:
    """Return episodes that hold the environment's actions, or with `mapping` the actions in a policy's range.

    Args:
        episodes: an episode or a pack.
        report: gets a line for the actions, and one for each output that belongs to other actions.
        mapping: None for the environment's actions, else the mapping of the policy whose actions are exported. Then
            multi-agent episodes are returned unchanged.
    """
    if isinstance(episodes, MultiAgentEpisode):
        for agent_episode in episodes.agent_episodes.values():
            export_actions(agent_episode, report, mapping)
        return episodes.with_env_actions() if mapping is None else episodes
    changed = episodes.with_env_actions() if mapping is None else episodes.with_policy_actions(mapping)
    if changed is not episodes:
        space, outputs = episodes.action_space, episodes.extra_model_outputs
        ids = episodes.ids if isinstance(episodes, EpisodePack) else [episodes.id_]
        is_policys = has_policy_actions(space) or Columns.ACTIONS_FOR_ENV in outputs
        owner = "the policy's own" if is_policys else "the environment's"
        units = "the environment's actions are" if mapping is None else f"actions of a policy ({mapping}) are"
        for id_ in ids:
            report.add(f"{owner} actions", f"{units} written in their place", id_)
            for name in dropped_outputs(space, outputs):
                report.add(f"extra_model_outputs[{name!r}]", "it belongs to the policy's own actions", id_)
    return changed


def imported_space(space: Space | None, mapping: str | None) -> Any:
    """Return the action space of imported actions: `space`, or with `mapping` the policy's rescaled version of it."""
    return space if mapping is None or space is None else policy_space_of(space, mapping)

"""Facts, endings and tracks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import EpisodeStateError, StepOutOfRange
from episodes.facts import Ending, EpisodeFacts, PackFacts, VersionRuns
from episodes.facts.ending import codes_of
from episodes.facts.facts import FACTS
from episodes.tracks import ArrayTrack, InfoTrack, ListTrack, Tracks


def grown(num_steps: int, **arguments: Any) -> SingleAgentEpisode:
    """Return an episode of `num_steps` steps with an extra model output."""
    episode = SingleAgentEpisode(**arguments)
    episode.add_env_reset(np.zeros(2))
    for t in range(num_steps):
        episode.add_env_step(np.full(2, t + 1.0), t, float(t), extra_model_outputs={"logp": -float(t)})
    return episode


# --- endings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_ending_of_flags_is_equal_for_scalars_and_arrays(flags: tuple[bool, bool]) -> None:
    ending = Ending.of(*flags)
    assert (ending.is_terminated, ending.is_truncated) == flags
    assert ending.is_done == any(flags)
    assert codes_of(*np.array(flags)[:, None]).tolist() == [ending.code]
    for reaches_end in (False, True):
        window = ending.in_window(reaches_end)
        assert window.code == (ending.code if reaches_end else 0)


@pytest.mark.parametrize("name", ["is_terminated", "is_truncated"])
def test_episode_with_ending_set_rejects_steps(name: str) -> None:
    episode = grown(2)
    setattr(episode, name, True)
    with pytest.raises(EpisodeStateError, match=r"add_env_step after the end"):
        episode.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"logp": 0.0})
    assert len(episode) == 2
    setattr(episode, name, False)
    episode.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"logp": 0.0})
    assert len(episode) == 3


# --- facts --------------------------------------------------------------------------------------------------------


def test_pack_keeps_every_fact() -> None:
    columns = {"id_": "ids", "t_started": "t_started", "observation_space": "observation_space"}
    columns |= {"action_space": "action_space", "policy_versions": "policy_versions"}
    assert [columns.get(name, name + "s") for name in EpisodeFacts._fields] == list(PackFacts._fields[:-1])
    assert list(FACTS) == [name for name in EpisodeFacts._fields if not name.endswith("space")]


def test_pack_facts_equal_facts_of_each_episode() -> None:
    facts = [
        EpisodeFacts("a", 3, Ending.TRUNCATED, agent_id=("t", 1), module_id="m"),
        EpisodeFacts("b", 0, Ending.OPEN, multi_agent_episode_id="whole"),
        EpisodeFacts(7, 5, Ending.BOTH),
    ]
    many = PackFacts.of(facts, [{}, {"k": 1}, {}])
    assert [many.at(i) for i in range(3)] == facts
    assert [many.take(np.array([2, 0])).at(i) for i in range(2)] == [facts[2], facts[0]]
    assert [PackFacts.concat([many.take(slice(2, 3)), many]).at(i) for i in range(4)] == [facts[2], *facts]
    assert [pickle.loads(pickle.dumps(many)).at(i) for i in range(3)] == facts


def test_facts_of_older_pickle_load_with_defaults() -> None:
    facts = EpisodeFacts("a", 3, Ending.BOTH, "x", policy_versions=VersionRuns((1, 2), (4,)), acting_pipeline="{}")
    facts = facts._replace(action_space=spaces.Discrete(2))
    newer = {"policy_versions": None, "acting_pipeline": None}
    for whole, stored in ((facts, facts), (PackFacts.of([facts], [{}]), None)):
        restore, (known, *remaining) = whole.__reduce__()
        older = restore(known[: -len(newer)], *remaining)
        older = older if stored else older.at(0)
        assert older == facts._replace(**newer)
    state = grown(2, id_="a").get_state()
    for name in newer:
        del state[name]
    assert SingleAgentEpisode.from_state(state).equals(grown(2, id_="a"))


# --- tracks -------------------------------------------------------------------------------------------------------


def test_growing_and_finished_tracks_share_interface() -> None:
    growing = {"items", "kinds", "uniform", "stored", "encoding", "encode", "num_decoded", "drop_after"}
    names = [
        {name for name in dir(kind) if not name.startswith("_")} - growing - {"of", "get_at"}
        for kind in (ListTrack, ArrayTrack, InfoTrack)
    ]
    assert names[0] == names[1] == names[2]


@pytest.mark.parametrize("finished", [False, True])
def test_tracks_compare_by_items(finished: bool) -> None:
    item, second, longer = (grown(n, id_="a") for n in (3, 3, 4))
    if finished:
        item, second, longer = item.to_numpy(), second.to_numpy(), longer.to_numpy()
    assert item.tracks == second.tracks
    assert [a == b for a, b in zip(item.tracks.all(), second.tracks.all(), strict=True)] == [True] * 5
    assert [a != b for a, b in zip(item.tracks.all(), longer.tracks.all(), strict=True)] == [True] * 5
    assert item.rewards != item.actions
    assert np.asarray(item.rewards).tolist() == list(item.rewards) == [0.0, 1.0, 2.0]


def test_track_error_names_track() -> None:
    for episode in (grown(2), grown(2).to_numpy()):
        with pytest.raises(StepOutOfRange, match=r"^rewards\[9\]: there are items 0\.\.1"):
            episode.rewards[9]
        with pytest.raises(StepOutOfRange, match=r"extra_model_outputs\['logp'\]\[\[5\]\]|\['logp'\]\[5\]"):
            episode.get_extra_model_outputs("logp", [5])


def test_concat_finishes_extra_output_of_later_chunk() -> None:
    whole = grown(3)
    first = SingleAgentEpisode(whole.id_, observations=[np.zeros(2)]).to_numpy()
    first.concat_episode(whole)
    assert isinstance(first.extra_model_outputs["logp"], ArrayTrack)
    assert EpisodePack.from_episodes([first]).extra_model_outputs["logp"].tolist() == [0.0, -1.0, -2.0]


def test_tracks_pickle_without_names_and_restore_them() -> None:
    for tracks in (grown(3).tracks, grown(3).to_numpy().tracks):
        back = pickle.loads(pickle.dumps(tracks))
        assert isinstance(back, Tracks)
        assert back == tracks
        assert [track.field for track in back.all()] == [track.field for track in tracks.all()]


def test_finalize_accepts_strided_items() -> None:
    frames = np.arange(2 * 4 * 3 * 2, dtype=np.uint8).reshape(2, 4, 3, 2)
    for items in (frames.transpose(0, 3, 1, 2), frames[:, 1:3, 1:], frames[..., ::-1]):
        episode = SingleAgentEpisode()
        episode.add_env_reset(items[0])
        episode.add_env_step(items[1], 0, 0.0)
        assert np.array_equal(EpisodePack.from_episodes([episode]).observations, items)
        assert np.array_equal(episode.to_numpy().get_observations(), items)

"""Conversions to and from Minari data sets: restored episodes are equal or losses are reported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any

import law
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from samples import BOX, some

from episodes import SingleAgentEpisode
from episodes.converters import from_minari, to_minari
from episodes.errors import InvalidArgument, LostInConversion
from episodes.testing.strategies import spaces as drawn_spaces

minari = pytest.importorskip("minari")
numbers = count()


@pytest.fixture(scope="module", autouse=True)
def _temporary_minari_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("minari")
        patch.setenv("MINARI_DATASETS_PATH", str(path))
        yield


def name() -> str:
    return f"some/test-v{next(numbers)}"


@settings(max_examples=6, phases=[Phase.generate])
@given(data=st.data())
def test_minari_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    without_slashes = drawn_spaces(text=True).filter(lambda space: "a/b" not in str(space))
    observations, actions = data.draw(without_slashes), data.draw(without_slashes)
    original_episodes = data.draw(
        law.episode_lists(observations, actions).filter(lambda episodes: any(map(len, episodes)))
    )
    known = {"observation_space": observations, "action_space": actions}
    dataset, lost = to_minari(original_episodes, name(), **known)
    back, second_report = from_minari(dataset)
    lost.join(second_report)
    law.check_round_trip(original_episodes, back, lost, given=known)


def supported() -> dict[str, list[SingleAgentEpisode]]:
    frames = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)
    infos = {"a": 1, "s": "ä", "ok": True, "f": np.float32(2), "d": {"x": np.arange(3, dtype=np.int16), "v": 0.5}}
    pixels, custom = spaces.Box(0, 255, frames.shape[1:], np.uint8), {"seed": 2**40, "options": {"level": [1, 2]}}
    return {
        "images": [SingleAgentEpisode.from_arrays(frames, np.arange(3), np.zeros(3), **space_of(pixels), id_="a")],
        "infos": [some(infos=[infos] * 4, custom_data=custom, t_started=5), some(2, "b", custom_data={"seed": 3})],
        "many": [some(1, f"e{i}", terminated=i % 2 == 0) for i in range(5)],
    }


def space_of(observations: spaces.Space) -> dict[str, Any]:
    return {"observation_space": observations, "action_space": spaces.Discrete(3)}


@pytest.mark.parametrize("case", supported())
def test_minari_round_trip_of_supported_episodes_is_equal(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("episodes.converters.bounded_packs.MOST_EPISODES", 2)
    originals = supported()[case]
    dataset, lost = to_minari(iter(originals), name(), strict=True)
    back, second_report = from_minari(dataset.id)
    assert not lost
    assert not second_report
    assert all(original.equals(restored) for original, restored in zip(originals, back, strict=True))


def test_to_minari_reports_every_loss_with_first_episode() -> None:
    lossy = some(
        id_="b",
        infos=[{"late": 1, "none": None}, {}, {"t": (1,), "a/b": 0}, {"empty": {}}],
        extra_model_outputs={"action_logp": np.zeros(3)},
        custom_data={"note": np.zeros(1), "seed": 1},
        agent_id=("a", 0),
    )
    longer = some(5, id_="c", truncated=True)
    _, report = to_minari([some(), lossy, longer.slice(slice(2, 5), len_lookback_buffer=1), some(0, id_="d")], name())
    losses = {loss.what: (loss.num_episodes, loss.first) for loss in report}
    infos = {f"infos[{key!r}]" for key in ("late", "none", "t", "a/b", "empty")}
    assert losses.keys() == infos | {
        "extra_model_outputs['action_logp']",
        "custom_data['note']",
        "agent_id",
        "lookback",
        "the episode",
    }
    assert (losses["lookback"], losses["the episode"], losses["agent_id"]) == ((1, "c"), (1, "d"), (1, "b"))


def test_to_minari_leaves_out_values_that_minari_would_change() -> None:
    infos = [{"n": 2**63 + i, "m": i, "t": (i,)} for i in range(4)]
    dataset, lost = to_minari([some(infos=infos, custom_data={"pair": (1, 2), "list": [1, {"a": None}]})], name())
    (back,), _ = from_minari(dataset)
    assert back.custom_data == {"list": [1, {"a": None}]}
    assert [*back.get_infos()] == [{"m": i} for i in range(4)]
    assert {loss.what for loss in lost} == {"custom_data['pair']", "infos['n']", "infos['t']"}


def test_to_minari_rejects_wrong_arguments_and_losses_and_leaves_no_data_set() -> None:
    columns = {"a/b": np.zeros((4, 2), np.float32)}, np.arange(3), np.zeros(3)
    spaces_of_keyed = {"observation_space": spaces.Dict({"a/b": BOX}), "action_space": spaces.Discrete(9)}
    keyed = SingleAgentEpisode.from_arrays(*columns, **spaces_of_keyed)
    for episodes, options, error, text in (
        ([], {}, InvalidArgument, "no episodes with a step"),
        ([some(observation_space=None)], {}, InvalidArgument, "give observation_space="),
        ([keyed], {}, InvalidArgument, "'a/b'"),
        ([some(extra_model_outputs={"vf": np.zeros(3)})], {"strict": True}, LostInConversion, "'vf'.*first is a"),
        ([some(agent_id=("a", 1))], {"strict": True}, LostInConversion, "agent_id"),
    ):
        dataset_id = name()
        with pytest.raises(error, match=text):
            to_minari(episodes, dataset_id, **options)
        assert dataset_id not in minari.list_local_datasets()
    with pytest.raises(InvalidArgument, match="Malformed dataset ID: no id"):
        to_minari([], "no id")


def foreign(flags: list[bool], **arguments: Any) -> Any:
    """Return a data set of Minari with two episodes whose steps are truncated by these flags."""
    num = len(flags)
    arrays = {"observations": np.zeros((num + 1, 2), np.float32), "actions": np.zeros(num, int)}
    ends = {"terminations": np.zeros(num, bool), "truncations": np.array(flags)}
    buffers = [
        minari.data_collector.EpisodeBuffer(seed=seed, **arrays, rewards=np.zeros(num), **ends, **arguments)
        for seed in (3, 4)
    ]
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return minari.create_dataset_from_buffers(name(), buffers, **space_of(BOX))


def test_from_minari_of_foreign_data_keeps_seeds_and_infos() -> None:
    infos = {"text": list("abcd"), "deep": {"x": np.arange(4)}}
    dataset = foreign([False, False, True], options={"level": [1, 2]}, infos=infos)
    back, _ = from_minari(dataset, strict=True)
    assert [e.custom_data["seed"] for e in back] == [3, 4]
    assert all(e.is_truncated and not e.is_terminated for e in back)
    assert back[1].id_ == back[0].id_[:-1] + "1"
    assert back[1].get_infos(-1) == {"text": "d", "deep": {"x": 3}}


def test_from_minari_reports_episode_with_two_endings() -> None:
    back, report = from_minari(foreign([False, True, False, True], infos={"t": np.arange(4)}))
    assert [loss.what for loss in report] == ["endings"]
    assert back[0].get_infos() == [{}, {"t": 0}, {"t": 1}, {"t": 2}, {"t": 3}]

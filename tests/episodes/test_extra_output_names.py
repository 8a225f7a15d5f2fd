"""Extra model outputs cannot have the name of a column that the library writes itself."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.columns import MODEL_OUTPUTS, RESERVED_COLUMNS, check_extra_output_names
from episodes.errors import TrackMismatch
from episodes.replay import EpisodeReplayBuffer
from episodes.tracks import Tracks
from tests.moving.environments import Meeting


@pytest.mark.parametrize("name", ["loss_mask", "seq_lens", "terminateds", "obs", "actions", "rewards", "weights", "t"])
def test_extra_output_named_like_a_column_raises_everywhere(name: str) -> None:
    arrays: Any = {"observations": np.zeros(2), "actions": np.zeros(1), "rewards": np.zeros(1)}
    outputs = {name: np.zeros(1)}
    single, several = SingleAgentEpisode(), MultiAgentEpisode()
    single.add_env_reset(np.zeros(1))
    several.add_env_reset(observations={"a": 0})
    pack = EpisodePack(**arrays, lengths=[1])
    step = ({"a": 1}, {"a": 0}, {"a": 0.5})
    for subject, call in [
        (pack, lambda: EpisodePack(**arrays, lengths=[1], extra_model_outputs=outputs)),
        (pack, lambda: pack.replace(extra_model_outputs=outputs)),
        (pack, lambda: SingleAgentEpisode.from_arrays(**arrays, extra_model_outputs=outputs)),
        (pack, lambda: SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1], extra_model_outputs=outputs)),
        (single, lambda: single.add_env_step(np.ones(1), 0, 1.0, extra_model_outputs={name: 1.0})),
        (single, lambda: single.set_extra_model_outputs(key=name, new_data=[])),
        (single, lambda: setattr(single, "extra_model_outputs", {name: single.rewards})),
        (several, lambda: several.add_env_step(*step, extra_model_outputs={"a": {name: 1.0}})),
        (several, lambda: several.set_extra_model_outputs(key=name, new_data={"a": []})),
    ]:
        before = copy.deepcopy(subject)
        with pytest.raises(TrackMismatch, match=f"'{name}'"):
            call()
        assert subject.equals(before) if hasattr(subject, "equals") else subject == before


@pytest.mark.parametrize("name", ["loss_mask", "obs", "rewards", "weights"])
@pytest.mark.parametrize("into_buffer", [False, True])
def test_runner_rejects_policy_output_named_like_a_column(name: str, into_buffer: bool) -> None:
    class Named:
        name = "my_output"

        def __call__(self, batch: Any, explore: bool | None = None) -> Any:
            zeros = torch.zeros(len(batch["obs"]))
            return {"actions": zeros.long(), self.name: zeros}

    policy, buffer = Named(), EpisodeReplayBuffer(50)
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0)
    several = MultiAgentEnvRunner(Meeting, policy, seed=0)

    def sample() -> Any:
        if into_buffer:
            return runner.sample_into(buffer, num_timesteps=4, extra_model_outputs=[policy.name])
        return runner.sample(num_timesteps=4)

    sample()
    policy.name, num_steps = name, len(buffer)
    with pytest.raises(TrackMismatch, match=f"'{name}'"):
        sample()
    assert len(buffer) == num_steps
    with pytest.raises(TrackMismatch, match=f"'{name}'"):
        several.sample(num_timesteps=4)
    policy.name = "my_output"
    sample()


def test_get_data_dict_of_reserved_output_raises() -> None:
    stored = SingleAgentEpisode.from_arrays(np.zeros(2), np.zeros(1), np.zeros(1))
    extra = Tracks.finished(np.zeros(2), stored.infos, np.zeros(1), np.zeros(1), {"rewards": np.ones(1)}).extra
    stored.tracks = stored.tracks.with_extra(extra)  # as a file of an older version may have it
    with pytest.raises(TrackMismatch, match="'rewards'"):
        stored.get_data_dict()


def test_check_extra_output_names_allows_model_outputs() -> None:
    check_extra_output_names([*MODEL_OUTPUTS, "mine"], "policy")
    assert not MODEL_OUTPUTS & RESERVED_COLUMNS

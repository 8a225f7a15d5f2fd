"""What is kept: state, failed adds, the boundaries of episodes, whole episodes."""

from __future__ import annotations

import pickle

import numpy as np

from benchmarks.replay_checks.data import (
    episode,
    rllib_episode,
    sb3_add,
    sb3_buffer,
    tianshou_row,
    tianshou_vector_row,
    torchrl_rows,
)
from benchmarks.replay_checks.registry import check

RESTORED = "restored, it goes on exactly: draws, and episodes that go on"


@check(RESTORED, "ours")
def ours_restored() -> bool:
    from episodes.replay import EpisodeReplayBuffer

    buffer, restored = EpisodeReplayBuffer(100, seed=0), EpisodeReplayBuffer(100, seed=1)
    begun = episode(5, truncated=False)
    buffer.add([begun])
    restored.set_state(pickle.loads(pickle.dumps(buffer.get_state())))
    goes_on = episode(5, start=5.0, id_="a")
    goes_on.t_started = 5
    for one in (buffer, restored):
        one.add([goes_on])
    first, second = buffer.sample(100, n_step=3), restored.sample(100, n_step=3)
    crossed = bool((first.new_obs[first.obs == 4] == 7).all())
    return crossed and all(np.array_equal(values, second[key]) for key, values in first.items())


@check(RESTORED, "Tianshou")
def tianshou_restored() -> bool:
    from tianshou.data import VectorReplayBuffer

    buffer = VectorReplayBuffer(200, 2)
    for t in range(5):
        buffer.add(tianshou_vector_row(t, 2))
    restored = pickle.loads(pickle.dumps(buffer))
    for t in range(5, 10):
        for one in (buffer, restored):
            one.add(tianshou_vector_row(t, 2))
    indices = np.arange(9)
    same_ends = np.array_equal(buffer.next(indices), restored.next(indices))
    return same_ends and np.array_equal(buffer.sample(100)[1], restored.sample(100)[1])


@check(RESTORED, "RLlib")
def rllib_restored() -> bool:
    from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

    buffer, restored = EpisodeReplayBuffer(capacity=100), EpisodeReplayBuffer(capacity=100)
    buffer.add([rllib_episode(20)])
    restored.set_state(pickle.loads(pickle.dumps(buffer.get_state())))
    first, second = (one.sample(batch_size_B=50, batch_length_T=1)["obs"] for one in (buffer, restored))
    return bool(np.array_equal(first, second))


FAILED_ADD = "an add that fails changes nothing"


@check(FAILED_ADD, "ours")
def ours_failed_add() -> bool:
    from episodes import SingleAgentEpisode
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([episode(5)])
    try:
        buffer.add([SingleAgentEpisode.from_arrays(np.zeros((3, 2)), np.zeros(2, int), np.zeros(2))])
    except ValueError:
        return len(buffer) == buffer.num_added == 5
    return False


@check(FAILED_ADD, "Tianshou")
def tianshou_failed_add() -> bool:
    from tianshou.data import Batch, ReplayBuffer

    buffer = ReplayBuffer(100)
    for t in range(5):
        buffer.add(tianshou_row(t, t + 1))
    try:
        buffer.add(Batch(obs=np.zeros(7), act=0, rew=1.0, terminated=False, truncated=False, obs_next=np.zeros(7)))
    except Exception:
        return len(buffer) == 5
    return False


@check(FAILED_ADD, "SB3")
def sb3_failed_add() -> bool:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = sb3_buffer(ReplayBuffer, 100)
    sb3_add(buffer, 0, 1)
    try:
        buffer.add(np.zeros((1, 7)), np.zeros((1, 7)), np.zeros((1, 1)), np.ones(1), np.zeros(1, bool), [{}])
    except Exception:
        return buffer.size() == 1
    return False


WITHIN = "sequences never cross episodes"


@check(WITHIN, "ours")
def ours_within() -> bool:
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(60, seed=0)
    for number in range(20):
        buffer.add([episode(2 + number % 7, start=100.0 * number, id_=str(number))])
    batch = buffer.sample_sequences(200, 5)
    starts = batch.obs[:, :1, 0] // 100
    return bool(((batch.obs[:, :, 0] // 100 == starts) | ~batch.loss_mask).all())


@check(WITHIN, "RLlib")
def rllib_within() -> bool:
    from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(capacity=60)
    for number in range(20):
        buffer.add([rllib_episode(2 + number % 7, start=100.0 * number, id_=str(number))])
    observed = buffer.sample(batch_size_B=200, batch_length_T=5)["obs"][:, :, 0]
    return bool((observed // 100 == observed[:, :1] // 100).all())


@check(WITHIN, "TorchRL")
def torchrl_within() -> bool:
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

    sampler = SliceSampler(slice_len=5, end_key=("next", "done"), strict_length=False)
    buffer = ReplayBuffer(storage=LazyTensorStorage(60), sampler=sampler, batch_size=200)
    for number in range(20):
        buffer.extend(torchrl_rows(2 + number % 7, start=100.0 * number))
    drawn, info = buffer.sample(return_info=True)
    slice_ends = np.ravel(info["next", "truncated"])[:-1]
    return bool(((np.diff(drawn["observation"].numpy()) == 1) | slice_ends).all())


WHOLE = "whole episodes come back as they were added"


@check(WHOLE, "ours")
def ours_whole() -> bool:
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(100, seed=0)
    added = episode(7)
    buffer.add([added])
    return buffer.sample_episodes(1)[0].equals(added)


@check(WHOLE, "RLlib")
def rllib_whole() -> bool:
    from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(capacity=100)
    buffer.add([rllib_episode(7)])
    (back,) = buffer.episodes
    return len(back) == 7 and back.is_truncated and len(back.get_observations()) == 8

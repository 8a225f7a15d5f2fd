"""What is drawn, and how likely: n steps, endings, seeds, importance weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.replay_checks.data import (
    cpprb_columns,
    cpprb_fill,
    episode,
    rllib_episode,
    sb3_add,
    sb3_buffer,
    tianshou_row,
    tianshou_vector_row,
    torchrl_rows,
)
from benchmarks.replay_checks.registry import check

NUM_ENVS = 64

N_STEPS = "the last steps of an episode are drawn with n-step rewards too"


@check(N_STEPS, "ours")
def ours_n_steps() -> bool:
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([episode(10)])
    batch = buffer.sample(500, n_step=3)
    return set(batch.obs[:, 0].tolist()) == set(range(10))


@check(N_STEPS, "RLlib")
def rllib_n_steps() -> bool:
    from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

    buffer = PrioritizedEpisodeReplayBuffer(capacity=100)
    buffer.add([rllib_episode(10)])
    drawn = buffer.sample(num_items=500, n_step=3)
    return {float(np.asarray(one.get_observations(0))[0]) for one in drawn} == set(range(10))


@check(N_STEPS, "SB3")
def sb3_n_steps() -> bool:
    from stable_baselines3.common.buffers import NStepReplayBuffer

    buffer = sb3_buffer(NStepReplayBuffer, 100, n_steps=3, gamma=1.0)
    for t in range(10):
        sb3_add(buffer, t, t + 1, truncated=t == 9)
    return set(buffer.sample(500).observations[:, 0].tolist()) == set(range(10))


@check(N_STEPS, "cpprb")
def cpprb_n_steps() -> bool:
    import cpprb

    buffer = cpprb.ReplayBuffer(100, cpprb_columns(), Nstep={"size": 3, "gamma": 1.0, "rew": "rew", "next": "next_obs"})
    cpprb_fill(buffer, 10)
    return set(buffer.sample(500)["obs"][:, 0].tolist()) == set(range(10))


STORED_ONCE = "observations stored once, and the true last one after a time limit"


@check(STORED_ONCE, "ours")
def ours_stored_once() -> bool:
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([episode(5, id_="a"), episode(5, start=100.0, id_="b")])
    batch = buffer.sample(300)
    return bool((batch.new_obs == batch.obs + 1).all()) and set(batch.obs[:, 0].tolist()) >= {4, 104}


@check(STORED_ONCE, "RLlib")
def rllib_stored_once() -> bool:
    from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(capacity=100)
    buffer.add([rllib_episode(5), rllib_episode(5, start=100.0, id_="b")])
    drawn = buffer.sample(num_items=300, n_step=1, sample_episodes=True)
    pairs = {tuple(np.asarray(one.get_observations(slice(0, 2)))[:, 0].tolist()) for one in drawn}
    return all(after == before + 1 for before, after in pairs) and {(4, 5), (104, 105)} <= pairs


@check(STORED_ONCE, "Tianshou")
def tianshou_stored_once() -> bool:
    from tianshou.data import ReplayBuffer

    buffer = ReplayBuffer(100, ignore_obs_next=True)
    for start in (0, 100):
        for t in range(5):
            buffer.add(tianshou_row(start + t, start + t + 1, truncated=t == 4))
    batch, _ = buffer.sample(300)
    return bool((batch.obs_next == batch.obs + 1).all())


@check(STORED_ONCE, "SB3")
def sb3_stored_once() -> bool:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = sb3_buffer(ReplayBuffer, 100, optimize_memory_usage=True, handle_timeout_termination=False)
    for start in (0, 100):
        for t in range(5):
            sb3_add(buffer, start + t, start + t + 1, truncated=t == 4)
    batch = buffer.sample(300)
    return bool((batch.next_observations == batch.observations + 1).all())


@check(STORED_ONCE, "cpprb")
def cpprb_stored_once() -> bool:
    import cpprb

    buffer = cpprb.ReplayBuffer(100, cpprb_columns(), next_of="obs")
    for start in (0.0, 100.0):
        cpprb_fill(buffer, 5, start)
    batch = buffer.sample(300)
    return bool((batch["next_obs"] == batch["obs"] + 1).all())


SEED = "one seed fixes all draws, by priority too, whatever other code draws"


def same_after_other_draws(draw: Callable[[], Any]) -> bool:
    """`draw` makes a buffer anew and draws from it; the global generators are elsewhere each time."""
    import torch

    drawn = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        drawn.append(np.asarray(draw()))
    return bool(np.array_equal(*drawn))


@check(SEED, "ours")
def ours_seed() -> bool:
    from episodes.replay import PrioritizedEpisodeReplayBuffer

    def draw() -> Any:
        buffer = PrioritizedEpisodeReplayBuffer(1000, seed=3)
        buffer.add([episode(900)])
        return buffer.sample(50).indices

    return same_after_other_draws(draw)


@check(SEED, "Tianshou")
def tianshou_seed() -> bool:
    from tianshou.data import PrioritizedReplayBuffer

    def draw() -> Any:
        buffer: Any = PrioritizedReplayBuffer(1000, alpha=0.6, beta=0.4, random_seed=3)
        for t in range(900):
            buffer.add(tianshou_row(t, t + 1))
        return buffer.sample(50)[1]

    return same_after_other_draws(draw)


@check(SEED, "SB3")
def sb3_seed() -> bool:
    from stable_baselines3.common.buffers import ReplayBuffer

    def draw() -> Any:
        buffer = sb3_buffer(ReplayBuffer, 1000)
        for t in range(900):
            sb3_add(buffer, t, t + 1)
        return buffer.sample(50).observations

    return same_after_other_draws(draw)


@check(SEED, "TorchRL")
def torchrl_seed() -> bool:
    import torch
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    def draw() -> Any:
        try:
            sampler = PrioritizedSampler(1000, alpha=0.6, beta=0.4)
        except RuntimeError as error:
            raise ImportError("TorchRL was built without its trees") from error
        generator = torch.Generator().manual_seed(3)
        buffer = ReplayBuffer(storage=LazyTensorStorage(1000), sampler=sampler, batch_size=50, generator=generator)
        buffer.extend(torchrl_rows(900))
        return buffer.sample()["observation"]

    return same_after_other_draws(draw)


@check(SEED, "cpprb")
def cpprb_seed() -> bool:
    import cpprb

    def draw() -> Any:
        buffer = cpprb.PrioritizedReplayBuffer(1000, cpprb_columns())
        cpprb_fill(buffer, 900)
        return buffer.sample(50)["obs"]

    return same_after_other_draws(draw)


INDEPENDENT = "draws from 64 environments are independent"


def independent(times: np.ndarray) -> bool:
    """A batch of 256 of 100 times: independent draws hold 92 different ones on average, 29 when seeds are shared."""
    return len(np.unique(times)) > 80


@check(INDEPENDENT, "ours")
def ours_independent() -> bool:
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(NUM_ENVS * 100, seed=0)
    recorder = buffer.recorder(NUM_ENVS, autoreset_mode="NextStep")
    no, zero = np.zeros(NUM_ENVS, bool), np.zeros((NUM_ENVS, 1))
    recorder.reset(zero)
    for _ in range(100):
        recorder.step(zero, np.zeros(NUM_ENVS, int), np.zeros(NUM_ENVS), no, no)
    return independent(buffer.sample(256, keys=["t"]).t)


@check(INDEPENDENT, "Tianshou")
def tianshou_independent() -> bool:
    from tianshou.data import VectorReplayBuffer

    buffer = VectorReplayBuffer(NUM_ENVS * 100, NUM_ENVS)
    for t in range(100):
        buffer.add(tianshou_vector_row(t, NUM_ENVS))
    return independent(np.asarray(buffer.sample(256)[0].obs))


@check(INDEPENDENT, "SB3")
def sb3_independent() -> bool:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = sb3_buffer(ReplayBuffer, NUM_ENVS * 100, NUM_ENVS)
    no = np.zeros(NUM_ENVS, bool)
    for t in range(100):
        obs = np.full((NUM_ENVS, 1), t, np.float32)
        buffer.add(obs, obs + 1, np.zeros((NUM_ENVS, 1)), np.zeros(NUM_ENVS), no, [{}] * NUM_ENVS)
    return independent(buffer.sample(256).observations.numpy())


BETA = "a changed beta changes the weights, with several environments too"


@check(BETA, "ours")
def ours_beta() -> bool:
    from episodes.replay import PrioritizedEpisodeReplayBuffer

    buffer = PrioritizedEpisodeReplayBuffer(100, beta=0.0, seed=0)
    buffer.add([episode(10, id_="a"), episode(10, id_="b")])
    buffer.update_priorities(np.arange(5), np.full(5, 0.1))
    before = set(buffer.sample(100).weights.tolist())
    buffer.set_beta(1.0)
    return before == {1.0} and len(set(buffer.sample(100).weights.tolist())) == 2


@check(BETA, "Tianshou")
def tianshou_beta() -> bool:
    from tianshou.data import PrioritizedVectorReplayBuffer

    buffer: Any = PrioritizedVectorReplayBuffer(100, 2, alpha=1.0, beta=0.0)
    for t in range(10):
        buffer.add(tianshou_vector_row(t, 2))
    _, indices = buffer.sample(0)
    buffer.update_weight(indices[:5], np.full(5, 0.1))
    buffer.set_beta(1.0)
    return len(np.unique(buffer.sample(100)[0].weight)) > 1


@check(BETA, "RLlib")
def rllib_beta() -> bool:
    from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0)
    buffer.add([rllib_episode(10), rllib_episode(10, id_="b")])
    buffer.sample(num_items=5, n_step=1, beta=0.0)
    buffer.update_priorities(np.full(5, 0.1))
    weights = lambda beta: np.concatenate(  # noqa: E731
        [np.ravel(one.get_extra_model_outputs("weights")) for one in buffer.sample(num_items=100, n_step=1, beta=beta)]
    )
    return len(np.unique(weights(0.0))) == 1 < len(np.unique(weights(1.0)))


@check(BETA, "cpprb")
def cpprb_beta() -> bool:
    import cpprb

    buffer = cpprb.PrioritizedReplayBuffer(100, cpprb_columns(), alpha=1.0)
    cpprb_fill(buffer, 10)
    buffer.update_priorities(np.arange(5), np.full(5, 0.1))
    different = [len(np.unique(buffer.sample(100, beta=beta)["weights"])) for beta in (0.0, 1.0)]
    return different[0] == 1 < different[1]

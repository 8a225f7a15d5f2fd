"""Gradients of every algorithm against a slow formula, on episodes with all endings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from episode_learners import (
    BC,
    CQL,
    DQN,
    GRPO,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    BCConfig,
    ContinuousCQL,
    ContinuousCQLConfig,
    CQLConfig,
    DQNConfig,
    EncoderPolicy,
    GRPOConfig,
    GRUPolicy,
    IMPALAConfig,
    LSTMPolicy,
    LSTMQPolicy,
    MLPPolicy,
    PPOConfig,
    QPolicy,
    R2D2Config,
    SACConfig,
    SACPolicy,
)
from episode_learners.algorithms.r2d2 import rescaled, unscaled
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.nested import map_leaves
from episodes.tracks.policy_box import policy_space_of

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,))
THREE = spaces.Discrete(3, start=2)
BOX = spaces.Box(-2.0, 2.0, (2,))
GAMMA = 0.9


def episodes(action_space: spaces.Space) -> list[SingleAgentEpisode]:
    """Return episodes that are terminated, truncated, cut, and both terminated and truncated."""
    rng = np.random.default_rng(3)
    made = []
    for length, ending in ((4, {"terminated": True}), (3, {"truncated": True}), (5, {}), (2, {"terminated": True})):
        if isinstance(action_space, spaces.Discrete):
            actions = rng.integers(2, 5, length)
        else:
            actions = rng.uniform(-0.99, 0.99, (length, 2)).astype(np.float32)
        made.append(
            SingleAgentEpisode.from_arrays(
                rng.uniform(-1, 1, (length + 1, 3)).astype(np.float32),
                actions,
                rng.normal(size=length).astype(np.float32),
                action_space=policy_space_of(action_space, "normalize"),
                extra_model_outputs={"action_logp": np.full(length, math.log(1 / 3), np.float32)},
                **ending,
            )
        )
    return made


def doubles(batch: dict[str, Any]) -> dict[str, Any]:
    """Convert a batch to float64, with exact discounts."""
    if "discounts" in batch:
        batch = {
            **batch,
            "discounts": torch.where(batch["discounts"] > 0, torch.tensor(GAMMA, dtype=torch.float64), 0.0),
        }
    return {name: map_leaves(_double, column) for name, column in batch.items()}


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def gradient_of(algorithm: Any, batch: dict[str, Any], optimizer: str) -> Tensor:
    algorithm.optimizers[optimizer].zero_grad()
    measured = algorithm.backward(batch, optimizer)
    assert all(math.isfinite(value) for value in measured.values()), measured
    return algorithm.optimizers[optimizer].gradient.clone()


def assert_gradient(algorithm: Any, batch: dict[str, Any], slow: Tensor, optimizer: str = "policy") -> None:
    ours = gradient_of(algorithm, batch, optimizer)
    expected = torch.autograd.grad(
        slow, algorithm.optimizers[optimizer].parameters, allow_unused=True, retain_graph=True
    )
    whole = torch.cat(
        [
            (torch.zeros_like(parameter) if part is None else part).reshape(-1)
            for part, parameter in zip(expected, algorithm.optimizers[optimizer].parameters, strict=True)
        ]
    )
    assert float(whole.abs().max()) > 1e-3
    torch.testing.assert_close(ours, whole, rtol=0, atol=1e-10)


def transitions(action_space: spaces.Space) -> list[tuple[Tensor, Any, float, Tensor, bool]]:
    """Return (observation, action, reward, next observation, is terminal) of every step."""
    result = []
    for episode in episodes(action_space):
        obs = torch.tensor(episode.get_observations(), dtype=torch.float64)
        for t in range(len(episode)):
            ends = t == len(episode) - 1 and episode.is_terminated
            action = episode.get_actions(t)
            result.append((obs[t], action, float(episode.get_rewards(t)), obs[t + 1], ends))
    return result


def q_policy() -> QPolicy:
    return QPolicy(OBSERVATIONS, THREE, hidden_sizes=(8,), generator=torch.Generator().manual_seed(0)).double()


def blurred(module: torch.nn.Module) -> None:
    """Change the weights, so that a target network differs from its source."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("conservatism", [None, 0.7])
def test_dqn_gradient_equals_slow_formula(double, conservatism):
    policy = q_policy()
    if conservatism is None:
        algorithm: DQN = DQN(policy, DQNConfig(gamma=GAMMA, double=double))
    else:
        algorithm = CQL(policy, CQLConfig(gamma=GAMMA, double=double, conservatism=conservatism))
    target = algorithm.targets["policy"].module
    blurred(target)
    losses = []
    for obs, action, reward, new_obs, ends in transitions(THREE):
        values = policy.q_values({"obs": obs[None]})[0]
        with torch.no_grad():
            worth = target.q_values({"obs": new_obs[None]})[0]
            best = policy.q_values({"obs": new_obs[None]})[0].argmax() if double else worth.argmax()
            wanted = reward + (0.0 if ends else GAMMA * worth[best])
        error = values[int(action) - 2] - wanted
        losses.append(torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5))
        if conservatism is not None:
            losses[-1] = losses[-1] + conservatism * (values.exp().sum().log() - values[int(action) - 2])
    batch = doubles(algorithm.preprocess(episodes(THREE)))
    assert_gradient(algorithm, batch, torch.stack(losses).mean())
    batch["weights"] = importance_weights(len(losses))
    assert_gradient(algorithm, batch, (batch["weights"] * torch.stack(losses)).mean())


def importance_weights(count: int) -> Tensor:
    """Return weights as those of prioritized replay."""
    return torch.rand(count, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def test_gradient_of_replay_equals_gradient_of_episodes():
    algorithm = DQN(q_policy(), DQNConfig(gamma=GAMMA))
    blurred(algorithm.targets["policy"].module)
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(episodes(THREE))
    drawn = buffer.at(np.arange(len(buffer)), gamma=GAMMA).to_dict()
    columns = {**drawn, "discounts": GAMMA * ~drawn["terminateds"]}
    batch = doubles({name: torch.from_numpy(column) for name, column in columns.items()})
    from_replay = gradient_of(algorithm, batch, "policy")
    from_episodes = gradient_of(algorithm, doubles(algorithm.preprocess(episodes(THREE))), "policy")
    torch.testing.assert_close(from_replay, from_episodes, rtol=0, atol=1e-7)


@pytest.mark.parametrize("conservatism", [None, 0.7])
def test_sac_gradients_equal_slow_formulas(conservatism):
    policy = SACPolicy(OBSERVATIONS, BOX, hidden_sizes=(8,), generator=torch.Generator().manual_seed(0)).double()
    algorithm: SAC = SAC(policy, SACConfig(gamma=GAMMA, temperature=None))
    if conservatism is not None:
        algorithm = ContinuousCQL(policy, ContinuousCQLConfig(gamma=GAMMA, conservatism=conservatism, num_drawn=3))
    algorithm.log_temperature.data = algorithm.log_temperature.data.double() - 0.5
    algorithm.optimizers["temperature"].collect_gradient()
    blurred(algorithm.targets["critics"].module)
    batch = doubles(algorithm.preprocess(episodes(BOX)))
    steps = transitions(BOX)
    temperature = math.exp(-0.5)

    def drawn(observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample actions and log-densities with torch's distributions, from the same noise."""
        mean, log_std = policy.actor(observations).chunk(2, -1)
        noise = torch.empty_like(mean).normal_(generator=generator)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = mean + log_std.exp() * noise
        return raw.tanh(), (normal.log_prob(raw) - torch.log(1 - raw.tanh() ** 2)).sum(-1)

    def worth(critics: Any, obs: Tensor, action: Tensor) -> Tensor:
        return torch.stack([critic(torch.cat([obs, action], -1)).squeeze(-1) for critic in critics])

    state = algorithm._action_generator().get_state()
    noise = generator_at(state)
    now, later = (torch.stack([step[place] for step in steps]) for place in (0, 3))
    with torch.no_grad():
        actions, density = drawn(later, noise)
        value = worth(algorithm.targets["critics"].module, later, actions).min(0).values - temperature * density
    losses = []
    for (obs, action, reward, _, ends), after in zip(steps, value, strict=True):
        target = reward + (0.0 if ends else GAMMA * after)
        losses.append(((worth(policy.critics, obs, torch.tensor(action, dtype=torch.float64)) - target) ** 2).sum())
    if conservatism is not None:
        with torch.no_grad():
            sampled, density = drawn(now[:, None].expand(-1, 3, -1), noise)
            evenly = torch.empty_like(sampled).uniform_(-1, 1, generator=noise)
        for i, (obs, action, *_) in enumerate(steps):
            promised = torch.zeros(2, dtype=torch.float64)
            for k in range(3):
                promised = promised + worth(policy.critics, obs, evenly[i, k]).exp() * 4 / 6  # a density of 1 in 4
                promised = promised + worth(policy.critics, obs, sampled[i, k]).exp() / density[i, k].exp() / 6
            gap = promised.log() - worth(policy.critics, obs, torch.tensor(action, dtype=torch.float64))
            losses[i] = losses[i] + conservatism * gap.sum()
    assert_gradient(algorithm, batch, torch.stack(losses).mean(), "critic")
    weights = importance_weights(len(losses))
    algorithm._action_generator().set_state(state)
    assert_gradient(algorithm, {**batch, "weights": weights}, (weights * torch.stack(losses)).mean(), "critic")

    actions, density = drawn(now, generator_at(algorithm._action_generator().get_state()))
    slow = (temperature * density - worth(policy.critics, now, actions).min(0).values).mean()
    assert_gradient(algorithm, batch, slow, "actor")
    log_temperature = algorithm.log_temperature
    assert_gradient(algorithm, batch, -(log_temperature * (density.detach() - 2)).mean(), "temperature")


def generator_at(state: Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def lstm_steps(memory: Any, obs: Tensor) -> list[Tensor]:
    """Compute the outputs of an LSTM after each observation [T, k] from the formula, starting with zeros."""
    cell = memory.cell
    h, c = torch.zeros(2, cell.hidden_size, dtype=torch.float64)
    outputs = []
    for observation in obs:
        features = torch.tanh(memory.encoder[0].weight @ observation + memory.encoder[0].bias)
        gates = cell.weight_ih_l0 @ features + cell.bias_ih_l0 + cell.weight_hh_l0 @ h + cell.bias_hh_l0
        into, forgets, new, out = gates.chunk(4)
        c = forgets.sigmoid() * c + into.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        outputs.append(h)
    return outputs


def test_recurrent_bc_gradient_equals_unrolled_sequences():
    policy = LSTMPolicy(OBSERVATIONS, THREE, hidden_sizes=(8,), state_size=6)
    blurred(policy)
    algorithm = BC(policy, BCConfig(max_seq_len=3, entropy_coefficient=0.1))
    arguments = []
    for episode in episodes(THREE):  # with the states of whoever acted, which are of no use
        pack = EpisodePack.from_episodes([episode])
        states = {"state_out": {"of": np.ones((pack.num_steps, 2), np.float32)}}
        arguments.append(pack.replace(extra_model_outputs=states)[0])
    batch = doubles(algorithm.preprocess(arguments))
    policy.double()
    losses = []
    for episode in arguments:
        obs = torch.tensor(episode.get_observations(), dtype=torch.float64)[:-1]
        for start in range(0, len(episode), 3):
            for t, outputs in enumerate(lstm_steps(policy.actor_memory, obs[start : start + 3]), start):
                categorical = torch.distributions.Categorical(logits=policy.actor.weight @ outputs + policy.actor.bias)
                action = torch.tensor(int(episode.get_actions(t)) - 2)
                losses.append(-categorical.log_prob(action) - 0.1 * categorical.entropy())
    assert_gradient(algorithm, batch, torch.stack(losses).mean())


@pytest.mark.parametrize("memory", [LSTMPolicy, GRUPolicy])
def test_recurrent_bc_samples_start_with_initial_state(memory):
    policy = memory(OBSERVATIONS, THREE, hidden_sizes=(8,), state_size=6)
    algorithm = BC(policy, BCConfig(max_seq_len=3, minibatch_size=5))
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(episodes(THREE))
    minibatches = []
    algorithm.witness = minibatches.append
    metrics = algorithm.update_from(buffer, 2)
    assert math.isfinite(metrics["loss"])
    (batch,) = minibatches
    assert batch["obs"].shape == (10, 3, 3)
    state = policy.get_initial_state()
    assert {name: part["h"].shape for name, part in batch["state_in"].items()} == dict.fromkeys(state, (10, 6))
    assert not any(leaf.any() for part in batch["state_in"].values() for leaf in part.values())


def test_ppo_gradient_equals_slow_formula():
    policy = MLPPolicy(OBSERVATIONS, THREE, hidden_sizes=(8,))
    blurred(policy)
    weights = {"entropy_coefficient": 0.01, "value_coefficient": 0.7}
    config = PPOConfig(gamma=GAMMA, lambda_=0.8, clip=0.05, standardize_advantages=False, **weights)
    algorithm = PPO(policy, config)
    batch = doubles(algorithm.preprocess(episodes(THREE)))
    policy.double()
    losses, row = [], 0
    for episode in episodes(THREE):
        obs = torch.tensor(episode.get_observations(), dtype=torch.float64)
        with torch.no_grad():
            values = policy.critic(obs).squeeze(-1)
            values[-1] *= not episode.is_terminated
        advantage, advantages = 0.0, []
        for t in reversed(range(len(episode))):
            delta = float(episode.get_rewards(t)) + GAMMA * values[t + 1] - values[t]
            advantage = delta + GAMMA * 0.8 * advantage
            advantages.insert(0, advantage)
        for t, gain in enumerate(advantages):
            torch.testing.assert_close(batch["advantages"][row], gain, rtol=0, atol=1e-6)
            gain = batch["advantages"][row]  # computed in float32 by the pipeline
            categorical = torch.distributions.Categorical(logits=policy.actor(obs[t]))
            logp = categorical.log_prob(torch.tensor(int(episode.get_actions(t)) - 2))
            ratio = (logp - batch["action_logp"][row]).exp()
            surrogate = torch.min(ratio * gain, ratio.clamp(0.95, 1.05) * gain)
            error = policy.critic(obs[t]).squeeze(-1) - batch["value_targets"][row]
            losses.append(-surrogate + 0.7 * error**2 - 0.01 * categorical.entropy())
            row += 1
    assert_gradient(algorithm, batch, torch.stack(losses).mean())


@pytest.mark.parametrize(
    ("scale", "mean", "beta"), [("group", "step", 0.0), ("batch", "episode", 0.0), (None, "episode", 0.3)]
)
def test_grpo_gradient_equals_slow_formula(scale, mean, beta):
    policy, reference = (MLPPolicy(OBSERVATIONS, THREE, hidden_sizes=(8,)).double() for _ in range(2))
    blurred(reference)
    config = GRPOConfig(group_size=2, scale=scale, clip=0.05, mean=mean, kl_coefficient=beta)
    algorithm = GRPO(policy, config, reference=reference)
    done = [*episodes(THREE)[:2], *episodes(THREE)[3:], episodes(THREE)[0]]
    batch = doubles(algorithm.preprocess(done))
    returns = [float(episode.get_rewards().sum()) for episode in done]
    gains = []
    for i, total in enumerate(returns):
        group = returns[i // 2 * 2 : i // 2 * 2 + 2]
        gains.append(total - np.mean(group))
    if scale == "group":
        gains = [gain / (np.std(returns[i // 2 * 2 : i // 2 * 2 + 2]) + 1e-8) for i, gain in enumerate(gains)]
    if scale == "batch":
        gains = [gain / (np.std(gains) + 1e-8) for gain in gains]
    if mean == "episode":
        num_steps = sum(map(len, done))
        shares = [num_steps / (len(done) * len(episode)) for episode in done for _ in range(len(episode))]
        torch.testing.assert_close(batch["step_weights"].tolist(), shares, rtol=1e-6, atol=0)
        batch["step_weights"] = torch.tensor(shares, dtype=torch.float64)
    losses, row = [], 0
    for episode, gain in zip(done, gains, strict=True):
        obs = torch.tensor(episode.get_observations(), dtype=torch.float64)
        for t in range(len(episode)):
            torch.testing.assert_close(float(batch["advantages"][row]), gain, rtol=1e-5, atol=1e-6)
            categorical = torch.distributions.Categorical(logits=policy.actor(obs[t]))
            logp = categorical.log_prob(torch.tensor(int(episode.get_actions(t)) - 2))
            ratio, exact = (logp - batch["action_logp"][row]).exp(), batch["advantages"][row]
            with torch.no_grad():
                fixed = torch.distributions.Categorical(logits=reference.actor(obs[t])).log_prob(
                    torch.tensor(int(episode.get_actions(t)) - 2)
                )
            loss = -torch.min(ratio * exact, ratio.clamp(0.95, 1.05) * exact)
            loss = loss + beta * ((fixed - logp).exp() - 1 - (fixed - logp))
            losses.append(loss if mean == "step" else loss / (len(episode) * len(done)))
            row += 1
    assert_gradient(algorithm, batch, torch.stack(losses).mean() if mean == "step" else torch.stack(losses).sum())


@pytest.mark.parametrize("length", [2, 3, 20])
def test_impala_gradient_equals_slow_recursion(length):
    policy = MLPPolicy(OBSERVATIONS, THREE, hidden_sizes=(8,))
    blurred(policy)
    config = IMPALAConfig(gamma=GAMMA, lambda_=0.9, clip_rho=1.1, clip_pg_rho=0.9, sequence_length=length)
    algorithm = IMPALA(policy, config)
    batch = doubles(algorithm.preprocess(episodes(THREE)))
    policy.double()
    losses = []
    for episode in episodes(THREE):
        obs = torch.tensor(episode.get_observations(), dtype=torch.float64)
        for start in range(0, len(episode), length):
            stop = min(start + length, len(episode))
            values, outs = policy.critic(obs).squeeze(-1), policy.actor(obs)
            v = values.detach().clone()
            if episode.is_terminated:
                v[-1] = 0.0
            following, after_value = 0.0, v[stop]
            for t in reversed(range(start, stop)):
                categorical = torch.distributions.Categorical(logits=outs[t])
                logp = categorical.log_prob(torch.tensor(int(episode.get_actions(t)) - 2))
                behaved = torch.tensor(episode.get_extra_model_outputs("action_logp", t), dtype=torch.float64)
                ratio = (logp - behaved).exp().detach()
                reward = torch.tensor(float(episode.get_rewards(t)), dtype=torch.float64)
                rho, trace = ratio.clamp(max=1.1), 0.9 * ratio.clamp(max=1.0)
                following = rho * (reward + GAMMA * v[t + 1] - v[t]) + GAMMA * trace * following
                target = v[t] + following
                gain = ratio.clamp(max=0.9) * (reward + GAMMA * after_value - v[t])
                losses.append(-gain * logp + 0.5 * (values[t] - target) ** 2 - 0.01 * categorical.entropy())
                after_value = target
    assert_gradient(algorithm, batch, torch.stack(losses).mean())


def masks_of(episode: SingleAgentEpisode) -> np.ndarray:
    """Return random masks of three actions, with the taken action legal."""
    legal = np.random.default_rng(len(episode)).random((len(episode) + 1, 3)) < 0.3
    legal[np.arange(len(episode)), episode.get_actions() - 2] = True
    return legal.astype(np.int8)  # at the last observation perhaps none, which means all


@pytest.mark.parametrize(
    ("burn_in", "double", "masked", "n_step", "rescale"),
    [
        (0, True, False, 1, False),
        (2, True, False, 1, True),
        (3, False, False, 1, False),
        (2, True, True, 1, False),
        (0, False, False, 3, False),
        (2, True, True, 2, True),
        (1, True, False, 3, False),
    ],
)
def test_r2d2_gradient_equals_unrolled_sequences(burn_in, double, masked, n_step, rescale):
    of_masks = spaces.Dict({"seen": OBSERVATIONS, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    policy = LSTMQPolicy(
        of_masks if masked else OBSERVATIONS,
        THREE,
        hidden_sizes=(6,),
        state_size=5,
        generator=torch.Generator().manual_seed(0),
    ).double()
    numbers = {"sequence_length": 3, "burn_in": burn_in, "double": double, "n_step": n_step}
    algorithm = R2D2(policy, R2D2Config(gamma=GAMMA, batch_size=64, rescale_values=rescale, **numbers))
    target = algorithm.targets["policy"].module
    blurred(target)
    buffer, rng = EpisodeReplayBuffer(100, seed=0), np.random.default_rng(1)
    for episode in episodes(THREE):
        states = {name: rng.normal(size=(len(episode), 5)).astype(np.float32) for name in ("h", "c")}
        observations = episode.get_observations()
        whole = SingleAgentEpisode.from_arrays(
            {"seen": observations, "action_mask": masks_of(episode)} if masked else observations,
            episode.get_actions(),
            episode.get_rewards(),
            terminated=episode.is_terminated,
            truncated=episode.is_truncated,
            extra_model_outputs={"state_out": states},
        )
        buffer.add([whole])
    drawn = algorithm.draw(buffer, 64)
    batch = doubles({name: map_leaves(torch.from_numpy, column) for name, column in drawn.items()})
    batch["weights"] = importance_weights(64)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for b in range(64):
        first = int(np.argmax(drawn["indices"][b] >= 0))
        stop = int(drawn["seq_lens"][b])
        assert first == 0 or drawn["is_first"][b, first]
        observations = map_leaves(
            lambda obs, new: torch.cat([obs[b, first:stop], new[b, stop - 1 : stop]])[None],  # noqa: B023
            batch["obs"],
            batch["new_obs"],
        )
        legal = observations["action_mask"][0] > 0 if masked else torch.ones(stop - first + 1, 3, dtype=torch.bool)
        state = {name: part[b : b + 1] for name, part in batch["state_in"].items()}

        def worth(module: Any) -> Tensor:
            return module.head(module.body(observations, state)[0])[0]  # noqa: B023

        values, later = worth(policy), worth(target).detach()
        chooser = (values if double else later).detach()

        def best(i: int) -> Tensor:
            allowed = [a for a in range(3) if legal[i][a] or not legal[i].any()]  # noqa: B023
            value = later[i][max(allowed, key=lambda action: float(chooser[i][action]))]  # noqa: B023
            return unscaled(value) if rescale else value

        for t in range(first, stop):
            if not drawn["loss_mask"][b, t]:
                continue
            i, wanted, discount = t - first, 0.0, 1.0
            for later_t in range(t, min(t + n_step, stop)):
                wanted = wanted + discount * float(drawn["rewards"][b, later_t])
                discount *= 0.0 if drawn["terminateds"][b, later_t] else GAMMA
            wanted = wanted + discount * best(later_t + 1 - first)
            wanted = rescaled(wanted) if rescale else wanted
            error = values[i][int(drawn["actions"][b, t]) - 2] - wanted
            loss = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5)
            total = total + batch["weights"][b] * loss
            count += 1
    assert_gradient(algorithm, batch, total / count)


def test_impala_gradient_of_dict_equals_that_of_box():
    parts = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (1,)), "b": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)),))})
    actions = spaces.Dict({"choice": THREE})
    flat = EncoderPolicy(OBSERVATIONS, THREE, hidden_sizes=())
    nested = EncoderPolicy(parts, actions, hidden_sizes=())  # without layers of its own it gives the numbers in a row
    nested.load_state_dict(flat.state_dict())
    whole = episodes(THREE)
    apart = [
        SingleAgentEpisode.from_arrays(
            {"a": (obs := episode.get_observations())[:, :1], "b": (obs[:, 1:],)},
            {"choice": episode.get_actions()},
            episode.get_rewards(),
            terminated=episode.is_terminated,
            truncated=episode.is_truncated,
            extra_model_outputs={"action_logp": episode.get_extra_model_outputs("action_logp")},
        )
        for episode in whole
    ]
    config = IMPALAConfig(sequence_length=3)
    flat_metrics, nested_metrics = IMPALA(flat, config).update(whole), IMPALA(nested, config).update(apart)
    assert flat_metrics == pytest.approx(nested_metrics)
    torch.testing.assert_close(flat.state_dict(), nested.state_dict())

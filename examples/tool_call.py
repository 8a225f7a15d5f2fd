"""A small language agent learns to call a tool and to answer with the tool's result: GRPO on tokens.

    python examples/tool_call.py --seed 0

Each question names a key. Its value is in a table that only the tool has and that differs from question to question,
so a guess is right once in four times. The agent has to write CALL, the key and END, read the tool's answer, and
write ANSWER, the value and END. The model is a transformer with two layers, which starts from random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from episode_learners import TokenGRPO, TokenGRPOConfig
from episodes import EpisodePack
from episodes.tokens import Conversation, TokenRecorder

QUESTION, CALL, TOOL, ANSWER, END = range(5)
NUM_KEYS = NUM_VALUES = 4
FIRST_KEY, FIRST_VALUE = END + 1, END + 1 + NUM_KEYS
VOCABULARY = FIRST_VALUE + NUM_VALUES
WORDS = ["question", "call", "tool", "answer", "end"]
WORDS += [f"key{k}" for k in range(NUM_KEYS)] + [f"value{k}" for k in range(NUM_VALUES)]
MAX_TOKENS = 3  # of a turn
GROUPS, GROUP_SIZE = 16, 8  # questions of an update, and conversations for each question


class Transformer(nn.Module):
    """Causal transformer without dropout: logits of padded or packed token batches."""

    def __init__(self, width: int = 48, heads: int = 4, layers: int = 2, max_length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(max_length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits [S, L, V] of a padded batch, or [N, V] of a packed batch."""
        ids, positions = batch["input_ids"], batch["position_ids"]
        is_packed = ids.ndim == 1
        if is_packed:
            sequence = torch.repeat_interleave(batch["cu_seqlens"].diff().long())
            mask = (sequence[:, None] == sequence).tril()
            ids, positions = ids[None], positions[None]
        else:
            mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        hidden = self.tokens(ids) + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        logits = self.head(self.norm(hidden))
        return logits[0] if is_packed else logits


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        rows, length, width = hidden.shape
        parts = self.project(self.norm(hidden)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.output(attended.transpose(1, 2).reshape(rows, length, width))
        return hidden + self.feed(self.feed_norm(hidden))


@torch.no_grad()
def sample(
    model: nn.Module, contexts: Sequence[np.ndarray], generator: torch.Generator, *, greedy: bool = False
) -> list[tuple[list[int], list[float]]]:
    """Return the sampled tokens of a turn, and their log-probabilities, for each context."""
    num = torch.tensor([len(context) for context in contexts])
    rows = torch.arange(len(contexts))
    ids = torch.zeros(len(contexts), int(num.max()) + MAX_TOKENS, dtype=torch.long)
    for row, context in zip(ids, contexts, strict=True):
        row[: len(context)] = torch.from_numpy(context)
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    log_probs = torch.zeros(len(contexts), MAX_TOKENS)
    for k in range(MAX_TOKENS):
        length = int(num.max()) + k
        logits = model({"input_ids": ids[:, :length], "position_ids": positions[:, :length]})
        dist = logits[rows, num + k - 1].log_softmax(-1)
        chosen = dist.argmax(-1) if greedy else torch.multinomial(dist.exp(), 1, generator=generator)[:, 0]
        ids[rows, num + k] = chosen
        log_probs[:, k] = dist[rows, chosen]
    turns = []
    for row, start, values in zip(ids, num.tolist(), log_probs.tolist(), strict=True):
        tokens = row[start : start + MAX_TOKENS].tolist()
        length = tokens.index(END) + 1 if END in tokens else MAX_TOKENS
        turns.append((tokens[:length], values[:length]))
    return turns


@dataclass
class Question:
    """Question about a key, with the value that the tool returns for this key."""

    key: int
    value: int

    def prompt(self) -> list[int]:
        return [QUESTION, FIRST_KEY + self.key]

    def call(self, tokens: list[int]) -> tuple[list[int], float]:
        """Return the tool's answer and the reward of a call."""
        is_right = tokens[1:2] == [FIRST_KEY + self.key]
        return [TOOL, FIRST_VALUE + self.value if is_right else END], 0.1 + 0.2 * is_right

    def answer(self, tokens: list[int]) -> float:
        """Return the reward of an answer."""
        return 0.1 * (tokens[0] == ANSWER) + 1.0 * (tokens[:2] == [ANSWER, FIRST_VALUE + self.value])


def play(
    model: nn.Module, questions: Sequence[tuple[int, Question]], generator: torch.Generator, version: int = 0
) -> tuple[EpisodePack, float]:
    """Play a conversation per (group, question) at once. Return complete groups, and the share of right answers."""
    recorder = TokenRecorder(group_size=GROUP_SIZE)
    talks = [(recorder.begin(question.prompt(), group=group), question) for group, question in questions]
    calling = []
    for (talk, question), (ids, logp) in zip(talks, turns_of(model, talks, generator), strict=True):
        if ids[0] == CALL:
            talk.turn(ids, *question.call(ids), logp=logp, policy_version=version)
            calling.append((talk, question))
        else:  # an answer without a call is worth nothing
            talk.turn(ids, terminated=True, logp=logp, policy_version=version)
            recorder.end(talk)
    num_right = 0
    for (talk, question), (ids, logp) in zip(calling, turns_of(model, calling, generator), strict=True):
        reward = question.answer(ids)
        num_right += reward > 1
        talk.turn(ids, (), reward, terminated=True, logp=logp, policy_version=version)
        recorder.end(talk)
    pack = recorder.take()
    if pack is None:
        raise ValueError("no complete group")
    return pack, num_right / len(talks)


def turns_of(
    model: nn.Module, talks: Sequence[tuple[Conversation, Question]], generator: torch.Generator
) -> list[tuple[list[int], list[float]]]:
    return sample(model, [talk.context for talk, _ in talks], generator) if talks else []


def train(seed: int, num_updates: int = 300) -> Iterator[tuple[TokenGRPO, EpisodePack, float]]:
    """Train, and yield for each update the algorithm, the sampled episodes, and the share of right answers in them."""
    torch.manual_seed(seed)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    config = TokenGRPOConfig(
        learning_rate=1e-3, num_epochs=2, num_minibatches=4, layout="padded", clip_high=0.28, kl_coefficient=0.03
    )
    model = Transformer()
    reference = deepcopy(model)  # the KL to the first, almost uniform policy keeps the exploration
    grpo = TokenGRPO(model, config, reference=reference, seed=seed)
    for update in range(num_updates):
        asked = [Question(*rng.integers(0, NUM_KEYS, 2).tolist()) for _ in range(GROUPS)]
        questions = [(group, question) for group, question in enumerate(asked) for _ in range(GROUP_SIZE)]
        pack, share = play(grpo.policy.model, questions, generator, version=update)
        grpo.update(pack)
        yield grpo, pack, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shares = []
    for update, (_, pack, share) in enumerate(train(args.seed, args.updates)):
        shares.append(share)
        if (update + 1) % 25 == 0:
            print(f"update {update + 1}: {np.mean(shares[-10:]):.3f} right, mean return {pack.returns().mean():.2f}")


if __name__ == "__main__":
    main()

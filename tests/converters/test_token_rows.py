"""Token episodes as rows of TRL, SkyRL, prime-rl and verl, and as messages: equal after a round trip, or reported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode, converters
from episodes.converters import (
    from_messages,
    from_skyrl,
    from_trl,
    from_verl,
    to_messages,
    to_prime_rl,
    to_skyrl,
    to_trl,
    to_verl,
)
from episodes.errors import InvalidArgument, LostInConversion, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.tokens import Conversation, SessionRecorder, token_batch
from episodes.tracks.ragged import Ragged

ROWS = ["trl", "skyrl", "prime_rl", "verl"]
FORMATS: dict[str, tuple[Callable, Callable]] = {
    name: (getattr(converters, f"to_{name}"), getattr(converters, f"from_{name}")) for name in [*ROWS, "messages"]
}
TOKENS = st.lists(st.integers(0, 99), min_size=1, max_size=4)


@st.composite
def flat_talks(draw: st.DrawFn) -> list[SingleAgentEpisode]:
    """Draw conversations that a row of any format can hold: no branch or empty turn, one reward at the end."""
    episodes = []
    for k in range(draw(st.integers(1, 4))):
        talk = Conversation(f"e{k}", group=draw(st.sampled_from(["g", 7])))
        talk.begin(draw(TOKENS))
        num_turns = draw(st.integers(1, 3))
        for t in range(num_turns):
            ids, is_last = draw(TOKENS), t == num_turns - 1
            logp = draw(st.lists(st.floats(-9, 0, width=32), min_size=len(ids), max_size=len(ids)))
            reward = float(draw(st.integers(-3, 3))) if is_last else 0.0
            talk.turn(ids, [] if is_last else draw(TOKENS), reward, terminated=is_last, logp=logp)
        episodes.append(talk.episode.to_numpy())
    return episodes


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=30)
@given(episodes=flat_talks())
def test_token_rows_without_losses_restore_the_episodes(name: str, episodes: list[SingleAgentEpisode]) -> None:
    write, read = FORMATS[name]
    rows, report = write(episodes)
    assert not report, str(report)
    back, report = read(rows, strict=True)
    assert not report
    assert all(episode.equals(restored) for episode, restored in zip(episodes, back, strict=True))


def wild() -> list[SingleAgentEpisode]:
    """Return conversations with all that rows lose."""
    talk = Conversation("wild", outputs={"logp": "f4", "learned": "?", "value": "f4"})
    talk.begin([1, 2, 3], {"source": "web"})
    talk.turn([4, 5], [6], 0.5, logp=[-1, -2], learned=[True, False], value=[0, 0], policy_version=3)
    talk.turn([7], [], 1.0, logp=[-3], learned=[True], value=[0])
    talk.turn([], [8], 2.0, logp=[], learned=[], value=[])
    talk.turn([9], prompt=[1, 2, 5, 5], reward=0.25, logp=[-4], learned=[True], value=[0])
    talk.turn([6], [4, 4], 0.0, truncated=True, logp=[-5], learned=[True], value=[0])
    talk.episode.custom_data["seed"] = 5
    return [talk.episode.to_numpy()]


LOSSES = {
    "number of rows",
    "branches",
    "turns without a sampled token",
    "turn edges",
    "last observations",
    "sampled tokens that are not learned from",
    "extra_model_outputs['value']",
    "custom_data",
    "infos",
    "policy_versions",
}


ONE_REWARD, ONE_ENDING = {"rewards of turns"}, {"truncation"}
MORE_LOSSES = {"trl": ONE_REWARD | ONE_ENDING, "skyrl": set(), "prime_rl": ONE_REWARD | ONE_ENDING, "verl": ONE_ENDING}


@pytest.mark.parametrize("name", ROWS)
def test_token_rows_report_every_loss(name: str) -> None:
    write, _ = FORMATS[name]
    assert {loss.what for loss in write(wild())[1]} == LOSSES | MORE_LOSSES[name]
    with pytest.raises(LostInConversion, match="branches"):
        write(wild(), strict=True)
    talk = Conversation("a", outputs={"logp": "f8"})
    talk.begin([1])
    talk.turn([2], [3], logp=[-0.1])
    talk.turn([4], logp=[-0.1], terminated=True, truncated=True)
    later = talk.episode.to_numpy().slice(slice(1, None), len_lookback_buffer=1)
    later.agent_id = "p"
    precision = "precision of log-probabilities"
    expected = {precision, "lookback", "t_started", "agent_id", "both_endings"}
    assert {loss.what for loss in write([later])[1]} == expected
    assert {loss.what for loss in write([talk.episode[:1]])[1]} == {precision, "cut", "last observations"}


@pytest.mark.parametrize("name", ROWS)
def test_token_rows_report_that_they_are_not_one_per_episode(name: str) -> None:
    """Two groups of two, of which an episode has three branches, and another no turn."""
    episodes = []
    for k in range(4):
        talk = Conversation(f"e{k}", group="even" if k < 2 else "odd")
        talk.begin([1, 2])
        for t in range(3 if k == 1 else 1 if k < 3 else 0):
            prompt = {"prompt": [1, 5 + t]} if k == 1 else {}
            talk.turn([3], terminated=k != 1 or t == 2, logp=[-1.0], **prompt)
        episodes.append(talk.episode)
    _, report = FORMATS[name][0](episodes)
    (loss,) = [loss for loss in report if loss.what == "number of rows"]
    assert "gets 5 rows for 4 episodes" in loss.why
    assert "(group 'even': 4 rows for 2; group 'odd': 1 rows for 2)" in loss.why
    assert (loss.num_episodes, loss.first) == (2, "e1")
    assert [loss.first for loss in report if loss.what == "the episode"] == ["e3"]
    assert "number of rows" not in str(FORMATS[name][0](episodes[:1])[1])


def test_token_rows_hold_the_tokens_of_the_batch() -> None:
    episodes = wild()
    batch = token_batch(EpisodePack.from_episodes(episodes))
    columns, _ = to_trl(episodes)
    assert [p + c for p, c in zip(columns["prompt_ids"], columns["completion_ids"], strict=True)] == [
        batch["input_ids"][a:b].tolist() for a, b in zip(batch["cu_seqlens"][:-1], batch["cu_seqlens"][1:], strict=True)
    ]
    assert sum(map(sum, columns["env_mask"])) == batch["loss_mask"].sum()
    scores = to_skyrl(episodes)[0]["rewards"]
    assert sum(map(sum, scores)) == pytest.approx(1.75)  # without the turn that has no token


def test_to_messages_keeps_branches_and_outputs() -> None:
    episodes = wild()
    conversations, report = to_messages(episodes, decode=lambda ids: " ".join(map(str, ids)))
    assert [loss.what for loss in report] == ["custom_data"]
    messages = conversations[0]["messages"]
    assert messages[0] == {"role": "user", "token_ids": [1, 2, 3], "info": {"source": "web"}, "content": "1 2 3"}
    assert [message["role"] for message in messages[:4]] == ["user", "assistant", "tool", "assistant"]
    restored, _ = from_messages(conversations, outputs={"logp": "f4", "learned": "?", "value": "f4"})
    del episodes[0].custom_data["seed"]
    assert episodes[0].equals(restored[0])


def test_from_messages_joins_messages_to_observations() -> None:
    messages = [
        {"role": "system", "token_ids": [1]},
        {"role": "user", "token_ids": [2, 3]},
        {"role": "assistant", "token_ids": [4], "logprobs": [-1.0], "reward": 1.0},
        {"role": "tool", "token_ids": [5]},
        {"role": "user", "token_ids": [6]},
        {"role": "assistant", "token_ids": [7], "logprobs": [-2.0], "reward": 0.0},
    ]
    (episode,), _ = from_messages([{"id": "a", "messages": messages, "ending": "terminated"}])
    assert [item.tolist() for item in episode.get_observations()] == [[1, 2, 3], [5, 6], []]
    assert episode.get_infos(0) == {"roles": [["system", 1], ["user", 2]]}
    (conversation,), report = to_messages([episode])
    assert (conversation["messages"], len(report)) == (messages, 0)
    messages[1] = {"role": "assistant", "token_ids": [2, 3], "sampled": False}  # an example in the prompt
    (episode,), _ = from_messages([{"id": "a", "messages": messages}])
    assert [item.tolist() for item in episode.get_observations()] == [[1, 2, 3], [5, 6], []]
    assert to_messages([episode], strict=True)[0][0]["messages"] == messages


ANSWER = {"role": "assistant", "token_ids": [2], "logprobs": [-1.0]}


@pytest.mark.parametrize(
    ("messages", "ending", "error", "text"),
    [
        ([{"role": "user", "content": "hello"}], None, InvalidArgument, "message 0 has no token_ids"),
        ([{"token_ids": [1]}], None, InvalidArgument, "message 0 has no role"),
        ([{"role": "user", "token_ids": [1.5]}], None, ShapeMismatch, "message 0: token_ids has dtype float64"),
        ([{"role": "user", "token_ids": [2**31]}], None, ShapeMismatch, "message 0: token_ids has dtype int64"),
        ([{"role": "user", "token_ids": [-1]}], None, InvalidArgument, "message 0: token_ids has -1"),
        ([{"role": "user", "token_ids": "ab"}], None, WrongType, "message 0: token_ids is a str"),
        ([ANSWER, {"role": "assistant", "token_ids": [1]}], None, InvalidArgument, "message 1 .* has no 'logprobs'"),
        ([ANSWER], "done", InvalidArgument, "ending='done'"),
    ],
)
def test_from_messages_rejects_wrong_messages_by_their_index(
    messages: list[dict[str, Any]], ending: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        from_messages([{"messages": messages, "ending": ending}])


@pytest.mark.parametrize(
    "roles", ["user", [["user", 2]], [["user", 4], ["user", -1]], [["user", 3.0]], [[3, "user"]], [3]]
)
def test_to_messages_rejects_roles_that_do_not_fit_the_tokens(roles: Any) -> None:
    talk = Conversation("a")
    talk.begin([1, 2, 3], {"roles": roles})
    with pytest.raises(InvalidArgument, match="infos\\['roles'\\]"):
        to_messages([talk.episode])


def test_rewards_before_the_first_learned_token_belong_to_the_first_turn() -> None:
    output = {
        "prompt_token_ids": [[1]],
        "response_ids": [[2, 3, 4, 5]],
        "loss_masks": [[0, 0, 1, 0]],
        "rewards": [[0.0, 1.0, 0.5, 2.0]],
        "rollout_logprobs": [[-1.0, -1.0, -1.0, 0.0]],
    }
    assert from_skyrl(output)[0][0].get_rewards().tolist() == [3.5]


def test_from_trl_reads_arrays_and_rejects_ids_that_are_no_integers() -> None:
    columns = {"prompt_ids": [[1]], "completion_ids": [[2, 3]], "logprobs": [[-1.0, -2.0]], "env_mask": [[1, 0]]}
    (expected,), _ = from_trl(columns, prefix="rows")
    assert isinstance(expected.get_actions(), Ragged)
    assert (expected.get_actions(0).tolist(), expected.get_observations(1).tolist()) == ([2], [3])
    assert from_trl({key: np.array(values) for key, values in columns.items()}, prefix="rows")[0][0].equals(expected)
    del columns["env_mask"]
    assert from_trl(columns)[0][0].get_actions(0).tolist() == [2, 3]
    with pytest.raises(ShapeMismatch, match=r"row trl-.*/0: completion has dtype float64"):
        from_trl({**columns, "completion_ids": [[2.5, 3]]})


def test_token_rows_reject_other_episodes() -> None:
    fixed = SingleAgentEpisode("f")
    fixed.add_env_reset(np.zeros(2))
    fixed.add_env_step(np.zeros(2), 0, 1.0, terminated=True)
    with pytest.raises(TrackMismatch, match="not ragged tokens"):
        to_trl([fixed])
    talk = Conversation("a", outputs={})
    talk.begin([1])
    talk.turn([2], terminated=True)
    with pytest.raises(UnknownKey, match="no output 'logp'"):
        to_trl([talk.episode])
    with pytest.raises(ShapeMismatch, match="2 advantages for 1 episodes"):
        to_prime_rl(wild(), episode_advantages=[1, 2])
    columns, _ = to_trl(wild())
    with pytest.raises(TrackMismatch, match="give one for each token"):
        from_trl({**columns, "logprobs": [row[1:] for row in columns["logprobs"]]})
    for name, (write, read) in FORMATS.items():
        assert read(write([])[0])[0] == [], name


def test_to_verl_fits_data_proto() -> None:
    verl = pytest.importorskip("verl")
    data, _ = to_verl(wild())
    tensors = {name: torch.from_numpy(array) for name, array in data["batch"].items()}
    proto = verl.DataProto.from_dict(tensors=tensors, non_tensors=data["non_tensor_batch"])
    assert all(a.equals(b) for a, b in zip(from_verl(proto)[0], from_verl(data)[0], strict=True))


class TrajectoryID(NamedTuple):
    """Id with the fields of SkyRL's class of this name."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


def test_from_skyrl_reads_trajectory_ids() -> None:
    output, _ = to_skyrl(wild())
    assert {type(id_) for id_ in output["trajectory_ids"]} == {str}
    del output["instance_ids"]
    output["trajectory_ids"] = [TrajectoryID("question", k) for k in range(len(output["response_ids"]))]
    episodes, _ = from_skyrl(output)
    assert [episode.id_ for episode in episodes] == [f"question_{k}" for k in range(len(episodes))]
    assert {episode.custom_data["group"] for episode in episodes} == {"question"}
    with pytest.raises(UnknownKey, match="no 'rollout_logprobs'"):
        from_skyrl({**output, "rollout_logprobs": None})


def test_to_skyrl_fits_functions_of_skyrl() -> None:
    if sys.version_info < (3, 12):
        pytest.skip("SkyRL 0.3 needs Python 3.12, although it installs on 3.11")
    pytest.importorskip("skyrl")
    from skyrl.train.generators.utils import concatenate_generator_outputs
    from skyrl.train.utils.trainer_utils import validate_generator_output

    output, _ = to_skyrl(wild())
    joined = concatenate_generator_outputs([output, output])
    validate_generator_output(2 * len(output["response_ids"]), joined)
    assert len(output["response_ids"]) == 2
    episodes, twice = from_skyrl(output)[0], from_skyrl(joined)[0]
    assert len({episode.id_ for episode in twice}) == len(twice)
    for joined_episode, episode in zip(twice, 2 * episodes, strict=True):
        joined_episode.id_ = episode.id_
        assert joined_episode.equals(episode)


def talks_of_prompts(prompts: list[list[int]]) -> list[SingleAgentEpisode]:
    """Play a conversation of two turns for each prompt."""
    episodes = []
    for k, prompt in enumerate(prompts):
        talk = Conversation(f"e{k}", group=prompt[0])
        talk.begin(prompt)
        talk.turn([5, 6 + k], [7, 8], 0.0, logp=[-4.6, -4.6])
        talk.turn([9], [], float(k), terminated=True, logp=[-4.6])
        episodes.append(talk.episode)
    return episodes


def sessions_of_prompts(prompts: list[list[int]]) -> list[SingleAgentEpisode]:
    """Play a session with a sub-agent for each prompt. The last one makes no call, and counts as an empty episode."""
    recorder, episodes = SessionRecorder(group_size=len(prompts) - 1), []
    for k, prompt in enumerate(prompts[:-1]):
        with recorder.begin(f"e{k}", group="question") as session:
            session.add(prompt, [5, 6 + k], logp=[-4.6, -4.6])
            session.add([30, 31], [9], logp=[-4.6])
            session.add([*prompt, 5, 6 + k, 9], [7], logp=[-4.6])
            session.reward(float(k))
    pack = recorder.take()
    assert pack is not None
    episodes = list(pack)
    talk = Conversation("failed", group="question")
    talk.begin(prompts[-1])
    talk.turn([], truncated=True, logp=[])
    return [*episodes, talk.episode]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # TRL uses old names of transformers
@pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning")
@pytest.mark.parametrize("play", [talks_of_prompts, sessions_of_prompts])
def test_to_trl_trains_a_model_of_trl(tmp_path: Any, play: Callable[..., list[SingleAgentEpisode]]) -> None:
    pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from trl import GRPOConfig, GRPOTrainer

    words = {f"t{k}": k for k in range(100)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    processor = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", eos_token="t1")
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model, recorded = transformers.LlamaForCausalLM(config), []

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        episodes = play([processor(prompt)["input_ids"] for prompt in prompts])
        columns, report = to_trl(episodes, one_per_episode=True)
        assert bool(report) == (play is sessions_of_prompts), str(report)
        if not report:
            assert from_trl(columns)[0][0].equals(episodes[0].to_numpy())
        assert {*map(len, columns.values())} == {len(prompts)}
        return columns

    def rewards(completions: list[Any], reward: list[float], group: list[Any], **columns: Any) -> list[float]:
        recorded.append((reward, len({*group})))
        return reward

    sizes = {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 1, "max_completion_length": 16}
    quiet = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=GRPOConfig(output_dir=str(tmp_path), **sizes, **quiet),
        train_dataset=Dataset.from_dict({"prompt": ["t2 t3"] * 4}),
        processing_class=processor,
        rollout_func=rollout,
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.train()
    returns = [float(np.sum(episode.get_rewards())) for episode in play([[2, 3]] * 4)]
    assert recorded == [(returns, 1)]
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ROWS)
def test_token_rows_carry_the_reward_and_group_of_sessions(name: str) -> None:
    episodes = sessions_of_prompts([[2, 3]] * 3)[:-1]
    rows, report = FORMATS[name][0](episodes)
    assert "number of rows" in str(report)  # each session has two lineages
    back = FORMATS[name][1](rows)[0]
    if name in ("skyrl", "verl"):  # a reward per token: that of the session is at its last token
        assert [float(np.sum(episode.get_rewards())) for episode in back] == [0.0, 0.0, 0.0, 1.0]
    else:
        assert [float(np.sum(episode.get_rewards())) for episode in back] == [0.0, 0.0, 1.0, 1.0]
    (group_id,) = {episode.custom_data["group_id"] for episode in episodes}
    expected = {"group": "question", "group_id": group_id, "group_size": 2}
    assert [episode.custom_data for episode in back] == [expected] * 4


def test_one_row_per_episode_is_its_last_sequence() -> None:
    episodes = sessions_of_prompts([[2, 3]] * 3)
    columns, report = to_trl(episodes, one_per_episode=True)
    assert columns["prompt_ids"] == [[2, 3], [2, 3], [2]]
    assert columns["completion_ids"] == [[5, 6, 9, 7], [5, 7, 9, 7], [3]]
    assert columns["env_mask"] == [[1, 1, 0, 1], [1, 1, 0, 1], [0]]
    assert columns["reward"] == [0.0, 1.0, 0.0]
    assert {loss.what for loss in report} >= {"branches", "turns without a sampled token"}
    assert "number of rows" not in str(report)
    with pytest.raises(LostInConversion, match="samples of the others are left out"):
        to_trl(episodes, one_per_episode=True, strict=True)
    talk = Conversation("begun")
    talk.begin([1, 2])
    columns, report = to_trl([talk.episode], one_per_episode=True)
    assert (columns["prompt_ids"], columns["completion_ids"], columns["env_mask"]) == ([[1]], [[2]], [[0]])
    assert "it has no turn" in str(report)
    talk = Conversation("short")
    talk.begin([1])
    with pytest.raises(InvalidArgument, match="its prompt has 1 tokens"):
        to_trl([talk.episode], one_per_episode=True)
    with pytest.raises(WrongType, match="one_per_episode"):
        to_trl(episodes, one_per_episode=1)  # type: ignore[arg-type]

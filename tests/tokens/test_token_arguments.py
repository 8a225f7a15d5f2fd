"""A wrong argument of the token API raises an error that names it and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conversations import OUTPUTS, Plain, conversations
from hypothesis import given, settings

from episode_learners import TokenGRPO
from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import EpisodeError, EpisodeStateError, InvalidArgument
from episodes.tokens import (
    Conversation,
    TokenRecorder,
    check_token_batch,
    group_numbers,
    token_batch,
    token_minibatches,
)
from episodes.tokens.minibatches import select_sequences, sequence_lengths
from episodes.tokens.sequences import TokenSequences

NAN, INF = float("nan"), float("inf")
ABSENT = object()  # the argument is left out
NO_LIST = ["abc", b"abc", {"input_ids": [1]}, {1}, (number for number in [1]), object(), 5]
NO_LIST += [[[1]], [1, [2]], ["a"], [None]]
NO_LIST += [np.ma.masked_array([1], [True]), torch.tensor([[1]]), torch.tensor([1.0], requires_grad=True)]
NO_IDS = [*NO_LIST, [1.5], [2**40], [-1], [True], torch.tensor([1.5], dtype=torch.bfloat16), np.array([NAN])]
NO_LOGP = [*NO_LIST, ABSENT, None, [], [-1.0, -1.0], [0.5], [NAN], [-1e300], torch.tensor([-1.0], dtype=torch.bfloat16)]
NO_LOGP += [[-INF], [INF], [-9999.0], np.array([-9999], "f2"), torch.tensor([-9984.0]), [-1e9], [-1001]]
NO_GROUP = [[1], {}, np.ones(2), NAN]
NO_COUNT = [0, -1, 1.5, "2", True, [1]]
NO_DICT = [[], "a", 5]
NO_FLAG = [None, "no", 2, [True], np.array([True, False])]
NO_PACK = [None, "pack", [], [1], {}, Conversation("a"), SingleAgentEpisode("a")]
NO_BATCH = [None, [1], 5, "batch", NO_PACK[-1]]
NO_ADVANTAGES = ["a", [[1.0]], 1.0, [NAN], [INF], [None], {"a": 1}, [1.0] * 99, torch.ones(1, requires_grad=True)]
NO_OUTPUTS = [["logp"], "logp", {"logp": None}, {"logp": "no"}, {"logp": "i4"}, {"learned": "f4"}, {"version": "f4"}]
NO_OUTPUTS += [{1: "f4"}, {"ids": "f4"}, {"reward": "f4"}, {"a": {"b": "f4"}}, {"a": "U3"}]

WRONG: dict[str, dict[str, list[Any]]] = {
    "Conversation": {"dtype": [float, None, "x", bool, object], "outputs": NO_OUTPUTS, "group": NO_GROUP},
    "fork": {"id_": ["a"], "group": NO_GROUP},
    "begin": {"prompt": [*NO_IDS, None, []], "infos": [*NO_DICT, {"kept_tokens": 1}]},
    "turn": {
        "ids": [*NO_IDS, None],
        "reply_ids": [*NO_IDS, None],
        "prompt": [*NO_IDS, []],
        "logp": NO_LOGP,
        "entropy": [[0.5], [], None],
        "reward": [None, "1", [1.0], NAN, INF, -INF, 1j, np.array([1.0]), np.float32(NAN), torch.tensor(NAN)],
        "terminated": NO_FLAG,
        "truncated": NO_FLAG,
        "policy_version": [-1, 1.5, "1", True, 2**63],
        "infos": [*NO_DICT, {"kept_tokens": 1}],
    },
    "TokenRecorder": {"group_size": [*NO_COUNT, None], "dtype": [float, None], "outputs": NO_OUTPUTS},
    "TokenRecorder.begin": {"prompt": [*NO_IDS, None, []], "group": NO_GROUP, "infos": [*NO_DICT, {"kept_tokens": 1}]},
    "TokenRecorder.end": {"talk": [None, 5, "a", Conversation("b")]},
    "TokenRecorder.drop": {"talk": [None, 5, "a", Conversation("b")]},
    "TokenRecorder.take": {"num_groups": NO_COUNT},
    "TokenRecorder.wait_for": {"num_groups": NO_COUNT},
    "TokenRecorder.drop_group": {"group": NO_GROUP},
    "group_numbers": {"pack": NO_PACK, "group_size": [*NO_COUNT, 2]},
    "TokenSequences": {"pack": NO_PACK, "row_length": [*NO_COUNT, 1, "row"]},
    "token_batch": {
        "pack": NO_PACK,
        "layout": ["flat", None, 5, ["packed"]],
        "advantages": NO_ADVANTAGES,
        "episode_advantages": NO_ADVANTAGES,
        "outputs": ["logp", 5, ["entropy"], [["logp"]]],
        "pad_to": [*NO_COUNT, 1],
        "pad_id": ["a", None, 2**40, 1.5, True],
    },
    "sequence_lengths": {"batch": [*NO_BATCH, {}]},
    "select_sequences": {"batch": [*NO_BATCH, {}], "indices": ["a", None, 0, 1.5, [0.5], [True], [[0]], [99], [-1]]},
    "token_minibatches": {"batch": [*NO_BATCH, {}], "max_tokens": [*NO_COUNT, None, 1], "rng": [5, "a"]},
    "check_token_batch": {
        "model": [None, 5, "a"],
        "batch": [*NO_BATCH, {}],
        "tolerance": [-1, NAN, "a", None, [1.0]],
    },
    "view_conversation": {
        "episode": [None, [], "a", Conversation("a"), SingleAgentEpisode("a"), EpisodePack.from_episodes],
        "decode": [5, "a", lambda ids: 5, lambda: "a"],
        "advantages": ["a", [[1.0]], [None], [1.0] * 99],
        "max_tokens": [-1, 1.5, "a", None],
    },
}


class State:
    """A conversation, a recorder, a pack and a batch, and the calls with right arguments."""

    def __init__(self, plain: Plain) -> None:
        self.fresh = Conversation("a")
        self.talk = Conversation("a")
        self.talk.begin(plain.prompt)
        for turn in plain.turns:
            context = [*self.talk.context.tolist(), *turn.ids][: turn.keep]
            self.talk.turn(turn.ids, prompt=[*context, *turn.reply], logp=turn.values["logp"])
        self.recorder = TokenRecorder(group_size=2, outputs=OUTPUTS)
        self.open = self.recorder.begin([1], group="open")
        ended = self.recorder.begin([1], group="ended")
        ended.turn([2], terminated=True, logp=[-1.0], learned=[True], version=[1], value=[0.0])
        self.recorder.end(ended)
        one = Conversation("a")
        one.begin([1, 2])
        one.turn([3], [4], 1.0, logp=[-1.0])
        one.turn([5], terminated=True, logp=[-1.0])
        self.pack = EpisodePack.from_episodes([one.episode])
        self.batch = token_batch(self.pack)

    def calls(self) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
        """Return the functions, and right arguments of each."""
        from episodes.inspect import view_conversation

        logits = np.zeros((5, 9))
        recorder = self.recorder
        return {
            "Conversation": (Conversation, {}),
            "fork": (self.talk.fork, {}),
            "begin": (self.fresh.begin, {"prompt": [1]}),
            "turn": (self.talk.turn, {"ids": [1], "logp": [-1.0]}),
            "TokenRecorder": (TokenRecorder, {}),
            "TokenRecorder.begin": (recorder.begin, {"prompt": [1]}),
            "TokenRecorder.end": (recorder.end, {}),
            "TokenRecorder.drop": (recorder.drop, {"talk": self.open}),
            "TokenRecorder.take": (recorder.take, {}),
            "TokenRecorder.wait_for": (lambda num_groups: asyncio.run(recorder.wait_for(num_groups)), {}),
            "TokenRecorder.drop_group": (recorder.drop_group, {"group": "ended"}),
            "group_numbers": (group_numbers, {"pack": self.pack, "group_size": 1}),
            "TokenSequences": (TokenSequences, {"pack": self.pack}),
            "token_batch": (token_batch, {"pack": self.pack, "layout": "padded"}),
            "sequence_lengths": (sequence_lengths, {"batch": self.batch}),
            "select_sequences": (select_sequences, {"batch": self.batch, "indices": [0]}),
            "token_minibatches": (lambda **a: list(token_minibatches(**a)), {"batch": self.batch, "max_tokens": 9}),
            "check_token_batch": (check_token_batch, {"model": lambda batch: logits, "batch": self.batch}),
            "view_conversation": (view_conversation, {"episode": self.pack[0]}),
        }

    def summary(self) -> str:
        """Return everything that a call could change, as text."""
        recorder = self.recorder
        episodes = [self.fresh.episode, self.talk.episode, self.open.episode, *self.pack]
        counts = (recorder.num_open, recorder.num_complete, recorder.num_dropped, recorder.missing())
        columns = {name: column.tolist() for name, column in self.batch.items()}
        return str((self.talk.context.tolist(), [*map(items_of, episodes)], repr(recorder), counts, columns))


def items_of(episode: SingleAgentEpisode) -> list[Any]:
    """Return all recorded values of an episode as lists."""
    tracks = [episode.observations, episode.actions, episode.rewards, *episode.extra_model_outputs.values()]
    items = [[np.asarray(item).tolist() for item in track] for track in tracks] if episode.is_reset else []
    return [episode.id_, items, [*episode.infos], episode.facts.ending, [*episode.get_policy_versions()]]


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, table in WRONG.items() for name in table])
@settings(max_examples=5)
@given(plain=conversations())
def test_wrong_argument_raises_an_error_that_names_it_and_changes_nothing(call: str, name: str, plain: Plain) -> None:
    state = State(plain)
    before = state.summary()
    function, right = state.calls()[call]
    for value in WRONG[call][name]:
        with pytest.raises(EpisodeError) as caught:
            function(**{key: argument for key, argument in {**right, name: value}.items() if argument is not ABSENT})
        message = str(caught.value)
        assert name in message, value
        assert call in message or "episode " in message or message.startswith(name), value
        is_unchanged = state.summary() == before
        assert is_unchanged, value
    if call not in ("TokenRecorder.end", "TokenRecorder.wait_for"):
        function(**right)


@given(conversations())
def test_calls_out_of_order_raise_an_error_that_names_them_and_change_nothing(plain: Plain) -> None:
    state = State(plain)
    talk, right = state.talk, {"ids": [1], "logp": [-1.0]}
    before = state.summary()

    def rejects(name: str, *calls: Callable[[], Any]) -> None:
        for call in calls:
            with pytest.raises(EpisodeStateError, match=name):
                call()
        assert state.summary() == before

    rejects("a: turn before begin", lambda: state.fresh.turn(**right))
    rejects("a: context before begin", lambda: state.fresh.context)
    rejects("a: cut before begin", state.fresh.cut)
    rejects("a: fork before begin", state.fresh.fork)
    rejects("a: begin was called before", lambda: talk.begin([1]))
    rejects("TokenRecorder.end: episode .* has not ended", lambda: state.recorder.end(state.open))
    talk.turn(**right, terminated=True, truncated=True)
    before = state.summary()
    rejects("a: turn after the end", lambda: talk.turn(**right), lambda: talk.turn(**right, terminated=True))
    rejects("a: cut after the end", talk.cut)
    rejects("a: fork after the end", talk.fork)
    state.open.turn([2], truncated=True, logp=[-1.0], learned=[True], version=[1], value=[0.0])
    state.recorder.end(state.open)
    before = state.summary()
    rejects("is not open", lambda: state.recorder.end(state.open), lambda: state.recorder.drop(state.open))


def test_arguments_that_exclude_each_other_raise_an_error() -> None:
    state = State(Plain([1], []))
    with pytest.raises(InvalidArgument, match="give reply_ids or prompt, not both"):
        state.talk.turn([1], [2], prompt=[1, 1, 2], logp=[-1.0])
    with pytest.raises(InvalidArgument, match="only one of advantages"):
        token_batch(state.pack, advantages=[1, 2], episode_advantages=[1])
    with pytest.raises(InvalidArgument, match="pad_to needs layout='padded'"):
        token_batch(state.pack, pad_to=5)


def recorded_later(value: float) -> EpisodePack:
    """Return two episodes, with `value` as a log-probability that was set after recording."""
    episodes = []
    for id_ in ("a", "b"):
        talk = Conversation(id_, group=1)
        talk.begin([1])
        for k in range(3):
            talk.turn([2, 3], [4], logp=[-1.0, -0.5], terminated=k == 2)
        episodes.append(talk.episode)
    episodes[1].set_extra_model_outputs(key="logp", new_data=[np.array([-1.0, value], "f4")], at_indices=[2])
    return EpisodePack.from_episodes(episodes)


def converted(name: str) -> Callable[[EpisodePack], Any]:
    def read(pack: EpisodePack) -> Any:
        from episodes import converters

        return getattr(converters, name)(pack)

    return read


READERS: dict[str, Callable[[EpisodePack], Any]] = {
    "token_batch": token_batch,
    "padded": lambda pack: token_batch(pack, layout="padded"),
    "TokenGRPO": lambda pack: TokenGRPO(torch.nn.Embedding(9, 9)).update(pack),
    **{name: converted(name) for name in ("to_trl", "to_skyrl", "to_prime_rl", "to_verl")},
}


@pytest.mark.parametrize("value", [NAN, INF, -INF, -9999.0, -9984.0, 0.5])
@pytest.mark.parametrize("reader", READERS)
def test_wrong_log_probability_is_named_by_episode_turn_and_index(reader: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"episode b: logp at t=2 has {value:.6g} at index 1"):
        READERS[reader](recorded_later(value))
    later = recorded_later(value)[1].slice(slice(1, None), len_lookback_buffer=1)
    with pytest.raises(InvalidArgument, match=r"episode b: logp at t=2 has .* at index 1"):
        token_batch(EpisodePack.from_episodes([recorded_later(-1.0)[0], later]))


def test_turn_accepts_log_probabilities_of_unlikely_tokens() -> None:
    talk = Conversation("a")
    talk.begin([1])
    talk.turn([2, 3, 4], logp=[-999.0, 0.009, -0.0])
    with pytest.raises(InvalidArgument, match=r"a: turn: logp has -9999 at index 1.*-inf or -9999"):
        talk.turn([2, 3], logp=[-1.0, -9999.0])

"""What stands out in a training run: each planted fault by name, and nothing in runs without faults."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import Actor
from connectors.env_to_module import FlattenObservations, FrameStackingEnvToModule, MeanStdFilter
from episode_learners import PPO, MLPPolicy, PPOConfig, TokenGRPO, TokenGRPOConfig
from episode_learners.run import Run
from episode_runners import SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import InvalidArgument
from episodes.inspect import examine_run, explain_update
from episodes.inspect.formatting import number
from episodes.inspect.run_findings import RunFinding
from episodes.inspect.run_findings_page import LiveFindings, run_report
from episodes.inspect.update_measures import text_of
from episodes.inspect.update_page import update_page
from episodes.pack import EpisodePack
from episodes.storage.ledger import Ledger, LedgerReader
from episodes.storage.runs import write_status
from episodes.tokens import Conversation
from tests.inspection.data import write
from tests.learners.test_planted_faults import WrongSign, policy_of, rewarded, sampled
from tests.learners.test_token_grpo import Recurrent

CONFIG = PPOConfig(num_epochs=2, minibatch_size=128, standardize_advantages=True)


def trained(folder: Path, *updates: Callable[[Any], Any], kind: type[PPO] = PPO, config: PPOConfig = CONFIG) -> Path:
    """Train with one update of PPO for each item, and return the folder of the run.

    Items are functions that sample episodes with the policy.
    """
    policy = policy_of()
    algorithm = kind(policy, config)
    algorithm.measures_rows = True
    with Ledger(folder / "ledger", measures_rows=True) as ledger:
        algorithm.witness = lambda batch: ledger.note(algorithm.num_updates, batch, measured=algorithm.row_measurements)
        for sample in updates:
            algorithm.update(sample(policy))
    return folder


def made(policy: Any, id_: str, rewards: np.ndarray, **facts: Any) -> SingleAgentEpisode:
    """Return an episode with these rewards, whose actions have the policy's log-probabilities."""
    blank = rewarded(id_, rewards, **facts)
    observations, actions = blank.get_observations(), blank.get_actions()
    with torch.no_grad():
        inputs = policy({"obs": torch.tensor(observations[:-1])})["action_dist_inputs"]
    logp = inputs.log_softmax(-1)[torch.arange(len(rewards)), torch.tensor(actions)].numpy()
    facts = {"terminated": True} | facts
    outputs = {"action_logp": logp}
    return SingleAgentEpisode.from_arrays(
        observations, actions, blank.get_rewards(), extra_model_outputs=outputs, id_=id_, **facts
    )


def with_logp_of(episode: SingleAgentEpisode, scale: float) -> SingleAgentEpisode:
    """Return the episode with other observations than those that its actions were chosen at."""
    arrays = episode.get_observations() * np.float32(scale), episode.get_actions(), episode.get_rewards()
    outputs = {"action_logp": episode.get_extra_model_outputs("action_logp")}
    facts = {"id_": episode.id_, "terminated": episode.is_terminated, "truncated": episode.is_truncated}
    return SingleAgentEpisode.from_arrays(*arrays, extra_model_outputs=outputs, **facts)


def acting(folder: Path, is_wrong: bool) -> Path:
    """A filter that scales observations is forgotten at acting."""
    scale = 5.0 if is_wrong else 1.0
    return trained(
        folder, *[lambda policy, n=n: [with_logp_of(e, scale) for e in sampled(policy, n)] for n in range(3)]
    )


def workers(folder: Path, is_wrong: bool) -> Path:
    """One of four workers acts with an old policy."""

    def sample(policy: Any) -> list[SingleAgentEpisode]:
        acted = [policy_of(1) if is_wrong and i == 2 else policy for i in range(4)]
        return [episode for i in range(4) for episode in sampled(acted[i], seed=i, num_episodes=3)]

    return trained(folder, sample, sample)


def signs(folder: Path, is_wrong: bool) -> Path:
    """Advantages of agent "b" have the wrong sign."""
    rng = np.random.default_rng(0)

    def sample(policy: Any, n: int) -> EpisodePack:
        return EpisodePack.from_episodes(
            [made(policy, f"game{n}", rng.normal(size=30), agent_id=agent) for agent in ("a", "b", "c")]
        )

    return trained(folder, *[partial(sample, n=n) for n in range(2)], kind=WrongSign if is_wrong else PPO)


def limits(folder: Path, is_wrong: bool) -> Path:
    """A time limit of 40 steps is stored as a termination. Values are learned in 30 updates."""
    facts = {"terminated": is_wrong, "truncated": not is_wrong}

    def sample(policy: Any, n: int) -> EpisodePack:
        return EpisodePack.from_episodes([made(policy, f"e{n}.{i}", np.ones(40), **facts) for i in range(8)])

    config = replace(CONFIG, gamma=0.9, learning_rate=0.01, num_epochs=4)
    return trained(folder, *[partial(sample, n=n) for n in range(30)], config=config)


def shifted(folder: Path, is_wrong: bool) -> Path:
    """The reward of the last step arrives at the first step of the next episode."""
    rewards = np.zeros((12, 12))
    rewards[:, 0 if is_wrong else -1] = 50.0
    return trained(
        folder,
        lambda policy: EpisodePack.from_episodes([made(policy, f"e{i}", row) for i, row in enumerate(rewards)]),
    )


def numbered_workers(folder: Path, is_wrong: bool) -> Path:
    """As `workers`, in a run that records which worker sampled each episode."""
    policy = policy_of()
    algorithm = PPO(policy, CONFIG)
    algorithm.measures_rows = True
    with Ledger(folder / "ledger", measures_rows=True) as ledger:
        acted = [policy_of(1) if is_wrong and i == 2 else policy for i in range(4)]
        parts = [sampled(acted[i], seed=i, num_episodes=3) for i in range(4)]
        numbers = {episode.id_: i for i, part in enumerate(parts) for episode in part}
        algorithm.witness = lambda batch: ledger.note(1, batch, measured=algorithm.row_measurements, workers=numbers)
        algorithm.update([episode for part in parts for episode in part])
    return folder


def learned_tokens(
    folder: Path, is_wrong: bool, options: dict[str, Any] | None = None, noise: float = 0.0, is_stored: bool = False
) -> Path:
    """The sampler saw another token between two turns than the recorded one.

    Args:
        folder: folder of the run.
        is_wrong: whether it is so.
        options: settings of `TokenGRPO`.
        noise: scale of the difference of all log-probabilities.
        is_stored: whether the conversations are stored in the folder.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        algorithm, rng = (
            TokenGRPO(Recurrent(), TokenGRPOConfig(group_size=4, **(options or {}))),
            np.random.default_rng(0),
        )
        model: Any = algorithm.policy.model
        algorithm.measures_rows = True
        with Ledger(folder / "ledger", measures_rows=True) as ledger:
            algorithm.witness = lambda batch: ledger.note(
                algorithm.num_updates, batch, measured=algorithm.row_measurements
            )
            for update in range(2):
                talks = []
                for k in range(8):
                    talk = Conversation(f"e{update}.{k}", outputs={"logp": "f4"}, group=k // 4)
                    context = [1, 2]
                    talk.begin(context)
                    for turn in range(3):
                        ids: list[int] = []
                        logp: list[float] = []
                        for _ in range(4):
                            with torch.no_grad():
                                log_probs = model.logits(torch.tensor(context + ids))[-1].log_softmax(-1)
                            ids.append(int(torch.multinomial(log_probs.exp(), 1)))
                            logp.append(float(log_probs[ids[-1]]) - noise * abs(float(rng.normal())))
                        reply = [4 if is_wrong else 3, 2] if turn < 2 else []
                        talk.turn(ids, reply, float(rng.normal()), terminated=turn == 2, logp=np.array(logp, "f4"))
                        context += [*ids, 3, 2]
                    talks.append(talk.episode)
                algorithm.update(EpisodePack.from_episodes(talks))
                if is_stored:
                    write(folder / "training", talks)
    return folder


def tokens(folder: Path, is_wrong: bool) -> Path:
    """The second turn was sampled after another token than the recorded one."""
    talks = []
    for k in range(3):
        talk = Conversation(f"e{k}", outputs={"logp": "f4", "trainer_logp": "f4"})
        talk.begin([1, 2])
        for turn in range(2):
            logp = np.array([-0.5, -1.0, -2.0], "f4")
            other = logp - np.float32(1.5 if is_wrong and turn else 0.01)
            talk.turn([5, 6, 7], [8], 1.0, terminated=turn == 1, logp=logp, trainer_logp=other)
        talks.append(talk.episode)
    write(folder / "training", talks)
    return folder


FAULTS: list[tuple[str, Callable[[Path, bool], Path]]] = [
    ("acting_differs", acting),
    ("old_policy", workers),
    ("old_policy", numbered_workers),
    ("advantage_sign", signs),
    ("value_at_limit", limits),
    ("loss_at_start", shifted),
    ("token_logp", tokens),
    ("token_logp", learned_tokens),
    ("token_logp", partial(learned_tokens, is_stored=True)),
    ("token_logp", partial(learned_tokens, options={"layout": "padded", "max_correction": 2.0})),
]


@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize(("kind", "run"), FAULTS)
def test_fault_stands_out_by_name_and_its_healthy_twin_does_not(
    kind: str, run: Callable[[Path, bool], Path], is_wrong: bool, tmp_path: Path
) -> None:
    folder = run(tmp_path, is_wrong)
    findings = examine_run(folder)
    assert [finding.kind for finding in findings] == [kind] * is_wrong, str(findings)
    page = LiveFindings([folder]).html()
    assert (RunFinding(kind, "", "").title in page) == is_wrong
    assert ("Nothing: no sign of a defect" in page) == (not is_wrong)
    for finding in findings:
        assert finding.advice in str(findings)
        assert finding.update is not None or finding.data
        has_others = any(np.isfinite(row.others) for row in finding.course)
        assert has_others == bool(finding.others)
        are_named = "hollow: " in page or "too small to draw: " in page
        assert are_named == (has_others and len(finding.course) > 1)
        row = finding.row_in(finding.update)
        if row is not None:  # what others have is not what is wrong
            assert abs(row.value - row.others) > 0.3 * abs(row.value)
        if finding.update is not None:
            assert f"updates/0/{finding.update}#{finding.table}" in page
            assert f'id="update-{finding.update}--{finding.table}"' in run_report(folder)
        if finding.data:
            assert f"episodes/0/training/#id={finding.episode}" in page


def number_in(row: Any, measure: str) -> float:
    """Return a number of a row of `by`: a column, or the difference of two."""
    first, *others = measure.split(" - ")
    return row[first] - sum(row[name] for name in others)


SIGNS = {"advantage_sign": -1}  # of the numbers that show a finding; 1 of the others


@pytest.mark.parametrize(("kind", "run"), FAULTS)
def test_finding_links_to_the_strongest_rows_and_states_their_numbers(
    kind: str, run: Callable[[Path, bool], Path], tmp_path: Path
) -> None:
    folder = run(tmp_path, True)
    if not (folder / "ledger").is_dir():
        return  # it has an episode, and no update
    (finding,) = examine_run(folder)
    group, sign = finding.table.removeprefix("by-"), SIGNS.get(kind, 1)
    for one in finding.course:
        table = explain_update(folder, one.update, episodes=()).by(group)
        (row,) = [row for row in table if all(str(row[name]) == cell for name, cell in one.row.items())]
        assert one.value == pytest.approx(number_in(row, finding.measure), rel=1e-9, abs=1e-12)
    assert finding.update is not None
    strongest = max(finding.course, key=lambda one: sign * one.value)
    assert next(one.value for one in finding.course if one.update == finding.update) == strongest.value
    shown = finding.shown_in(finding.update)
    numbers = strongest.parts or {finding.measure: strongest.value}
    assert all(text_of(name, value) in shown for name, value in numbers.items())
    assert strongest.value == pytest.approx(number_in(numbers, finding.measure))
    page = LiveFindings([folder]).html()
    assert f">Update {finding.update}: {shown}</a>" in page
    at = f"turn {finding.t}" if finding.table == "by-turn" else f"t={finding.t}"
    words = f">Episode {finding.episode}, {at}, learned in update {finding.learned_in}: {finding.step}</a>"
    assert words in page or not finding.data
    rows = explain_update(folder, finding.update, episodes=())
    steps = [row for row in rows if (row.id_, row.t) == (finding.episode, finding.t)]
    values = {number(abs(value)) for step in steps for value in step.measurements.values()}
    values |= {number(abs(np.log(step.measurements["first_ratio"]))) for step in steps}
    numbers = re.findall(r"[-+.e0-9]*[0-9]", finding.step)
    is_mean = kind == "token_logp"  # of the tokens of a turn
    assert numbers
    assert is_mean or not steps or {text.lstrip("-") for text in numbers} & values


def test_time_limit_stored_as_an_end_is_one_finding_with_its_step(tmp_path: Path) -> None:
    folder = limits(tmp_path, True)
    facts = {"terminated": True, "truncated": False}
    write(folder / "training", [made(policy_of(), f"e29.{i}", np.ones(40) + i / 100, **facts) for i in range(8)])
    (finding,) = examine_run(folder)
    assert (finding.kind, finding.t, finding.data) == ("value_at_limit", 39, "training")
    assert "training: 8 of 8 episodes end by termination after exactly 40 steps" in finding.text
    (alone,) = examine_run(
        write(
            tmp_path / "alone" / "training",
            [made(policy_of(), f"e{i}", np.ones(40) + i / 100, **facts) for i in range(8)],
        ).parent
    )
    assert (alone.kind, alone.t) == ("time_limit_terminates", 39)


def test_texts_name_the_episodes_agents_and_turns(tmp_path: Path) -> None:
    old = examine_run(workers(tmp_path / "old", True))[0]
    assert old.text.startswith("6 of 24 episodes")
    reader = LedgerReader(tmp_path / "old")
    assert len(list(reader)) == 2
    assert old.episode in reader.ids
    sign = examine_run(signs(tmp_path / "sign", True))[0]
    assert "of agent b have the wrong sign" in sign.text
    assert "of a, c it is" in sign.text
    token = examine_run(tokens(tmp_path / "token", True))[0]
    assert token.text == (
        "from turn 1 on the sampler's log-probability of a token differs from the trainer's by 1.5 on average; before "
        "it differs by 0.01; the recorded tokens right before it are 8 (episode e0)"
    )
    learned = examine_run(learned_tokens(tmp_path / "learned", True, is_stored=True))[0]
    assert learned.text.startswith("from turn 1 on")
    assert "the recorded tokens right before it are 4 2" in learned.text
    assert (learned.update, learned.table, learned.data, learned.t) == (1, "by-turn", "training", 1)
    numbered = examine_run(numbered_workers(tmp_path / "numbered", True))[0]
    assert "(28% of the steps), all of worker 2, come from" in re.sub(r"\(\d+%", "(28%", numbered.text)
    assert numbered.advice == "check whether new weights reach worker 2"
    assert explain_update(tmp_path / "numbered", 1).by("worker")[0].keys() > {"worker", "ratio_distance"}
    distances = {row["worker"]: row["ratio_distance"] for row in explain_update(tmp_path / "numbered", 1).by("worker")}
    assert max(distances, key=lambda worker: distances[worker]) == 2


@pytest.mark.parametrize(("noise", "options"), [(0.02, {}), (0.2, {"max_correction": 2.0})])
def test_rounding_and_corrected_older_weights_are_no_defects_of_tokens(
    noise: float, options: dict[str, Any], tmp_path: Path
) -> None:
    assert list(examine_run(learned_tokens(tmp_path / "near", False, options, noise))) == []
    far = examine_run(learned_tokens(tmp_path / "far", False, options, 10 * noise))
    assert ["from turn 0 on" in one.text for one in far] == [True]


def test_worker_is_named_if_episodes_have_it(tmp_path: Path) -> None:
    folder = workers(tmp_path, True)
    assert any("which worker" in text for text in examine_run(folder).missing)
    reader = LedgerReader(folder)
    assert len(reader)
    _ = list(reader)
    stale = examine_run(folder)[0]
    talks = [rewarded("x", np.ones(5)) for _ in reader.ids]
    named = [
        SingleAgentEpisode.from_arrays(
            each.get_observations(),
            each.get_actions(),
            each.get_rewards(),
            id_=id_,
            terminated=True,
            custom_data={"worker": "seven" if id_ == stale.episode else "other"},
        )
        for each, id_ in zip(talks, reader.ids, strict=True)
    ]
    write(folder / "training", named)
    findings = examine_run(folder)
    assert "worker" in next(one for one in findings if one.kind == "old_policy").text
    assert "seven" in next(one for one in findings if one.kind == "old_policy").text
    assert not any("which worker" in text for text in findings.missing)


def test_finding_names_the_module_that_shows_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Ledger(tmp_path / "ledger", measures_rows=True) as ledger:
        for module, kind in (("left", PPO), ("right", WrongSign)):
            policy = policy_of()
            algorithm = kind(policy, CONFIG)
            algorithm.measures_rows = True
            algorithm.witness = lambda batch, algorithm=algorithm, module=module: ledger.note(
                1, batch, measured=algorithm.row_measurements, module=module
            )
            games = [made(policy, "game", rng.normal(size=30), agent_id=agent) for agent in ("a", "b")]
            algorithm.update(EpisodePack.from_episodes(games))
    findings = examine_run(tmp_path)
    assert [(one.kind, one.module, one.table) for one in findings] == [("advantage_sign", "right", "by-agent")]
    assert findings.updates == [(1, "left"), (1, "right")]
    page = LiveFindings([tmp_path]).html()
    assert "updates/0/1?module=right#by-agent" in page
    pages = [update_page(tmp_path, 1, module, str, "", findings) for module in ("left", "right")]
    assert ["have the wrong sign" in page for page in pages] == [False, True]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_rewards_one_step_late_are_found_in_stored_episodes_of_equal_rewards(is_wrong: bool, tmp_path: Path) -> None:
    rewards = np.ones(40)
    rewards[0] = 0.0 if is_wrong else 1.0
    write(tmp_path / "training", [made(policy_of(), f"e{i}", rewards) for i in range(8)])
    kinds = [one.kind for one in examine_run(tmp_path)]
    assert ("reward_shift" in kinds) == is_wrong


def test_killed_run_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    write_status(tmp_path, settings={}, stopped_by=None)
    (tmp_path / "ledger").mkdir()
    assert examine_run(tmp_path).missing[0] == "any update: the killed run had not written the first 16 of them"
    policy = policy_of()
    algorithm = PPO(policy, CONFIG)
    algorithm.measures_rows = True
    ledger = Ledger(tmp_path / "ledger", measures_rows=True, every=2)
    for n in range(1, 4):
        algorithm.update(sampled(policy, n))
        ledger.note(n, algorithm.preprocess(sampled(policy, n)), measured=algorithm.row_measurements)
    findings = examine_run(tmp_path)
    assert (findings.updates, list(findings)) == ([(1, ""), (2, "")], [])
    assert findings.missing[0].startswith("updates after 2, which the killed run had not written")
    ledger.close()
    write_status(tmp_path, settings={}, stopped_by="max_epochs")
    assert findings.missing[0] not in examine_run(tmp_path).missing


@pytest.mark.parametrize(("offset", "is_small"), [(0.01, True), (0.2, False)])
def test_small_difference_is_described_as_of_lower_precision_or_older_weights(
    offset: float, is_small: bool, tmp_path: Path
) -> None:
    def sample(policy: Any, seed: int) -> list[SingleAgentEpisode]:
        return [
            SingleAgentEpisode.from_arrays(
                each.get_observations(),
                each.get_actions(),
                each.get_rewards(),
                extra_model_outputs={"action_logp": each.get_extra_model_outputs("action_logp") - np.float32(offset)},
                id_=each.id_,
                terminated=True,
            )
            for each in sampled(policy, seed)
        ]

    (finding,) = examine_run(trained(tmp_path, partial(sample, seed=0), partial(sample, seed=1)))
    assert finding.kind == "acting_differs"
    assert ("as of lower precision at acting" in finding.text) == is_small
    assert ("this is expected" in finding.advice) == is_small
    assert ", from update 1 on; the mean |log ratio|" in finding.text
    assert "weights are sent" not in finding.advice


@pytest.mark.parametrize(
    ("algorithm", "env", "num_steps"),
    [
        ("ppo", "CartPole-v1", 2048),
        ("grpo", "CartPole-v1", 1024),
        ("dqn", "CartPole-v1", 512),
        ("sac", "Pendulum-v1", 600),
        ("impala", "CartPole-v1", 1024),
        ("recurrent-ppo", "CartPole-v1", 512),
    ],
)
def test_nothing_stands_out_in_a_healthy_run(algorithm: str, env: str, num_steps: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = Run.of_preset(algorithm, env)
    run.explain = True
    run.trainer |= {"max_epochs": 1, "steps_per_epoch": num_steps, "num_test_episodes": 1, "shows_progress": False}
    run.make(folder=folder).run()
    findings = examine_run(folder)
    assert findings.updates
    assert list(findings) == []


@pytest.mark.parametrize("shift", [1.0, 80.0, 200.0])  # e^-200 is 0 as float32
def test_policy_that_is_far_from_the_one_that_learns_stands_out(shift: float, tmp_path: Path) -> None:
    def sample(policy: Any) -> list[SingleAgentEpisode]:
        episodes = [made(policy, f"e{i}", np.ones(20)) for i in range(4)]
        for episode in episodes[:2]:
            episode.set_extra_model_outputs(
                key="action_logp", new_data=episode.get_extra_model_outputs("action_logp") + np.float32(shift)
            )
        return episodes

    folder = trained(tmp_path, sample)
    (finding,) = [finding for finding in examine_run(folder) if finding.kind == "old_policy"]
    assert finding.text.startswith("2 of 4 episodes")
    distances = {row["episode"]: row["ratio_distance"] for row in explain_update(folder, 1).by("episode")}
    limit = -np.log(np.finfo(np.float32).tiny)  # of ratios
    assert [distances[f"e{i}"] for i in range(4)] == pytest.approx([min(shift, limit)] * 2 + [0.0] * 2, abs=1e-4)


@pytest.mark.parametrize("name", ["absent", "file"])
def test_path_without_a_folder_is_no_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=f"{name} is not a folder; give the folder of a run"):
        examine_run(tmp_path / name)


@settings(max_examples=5, deadline=None)
@given(
    st.integers(0, 9), st.sampled_from([1, 4]), st.sampled_from([64, 1000]), st.booleans(), st.booleans(), st.booleans()
)
def test_nothing_stands_out_with_any_settings_of_ppo(
    seed: int, num_epochs: int, size: int, standardizes: bool, filters: bool, stacks: bool
) -> None:
    pieces: list[Any] = [MeanStdFilter()] * filters
    pieces += [FrameStackingEnvToModule(num_frames=3), FlattenObservations()] if stacks else []
    config = PPOConfig(num_epochs=num_epochs, minibatch_size=size, standardize_advantages=standardizes)
    env = gym.make("CartPole-v1")
    actor = Actor(MLPPolicy, env.observation_space, env.action_space, pieces=pieces)
    algorithm = PPO(actor, config, seed=seed)
    algorithm.measures_rows = True
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger(f"{folder}/ledger", measures_rows=True) as ledger,
        SingleAgentEnvRunner("CartPole-v1", actor, num_envs=4, seed=seed) as runner,
    ):
        algorithm.witness = lambda batch: ledger.note(algorithm.num_updates, batch, measured=algorithm.row_measurements)
        for _ in range(3):
            algorithm.update(runner.sample(num_timesteps=256))
        ledger.flush()
        findings = examine_run(folder)
        assert (len(findings.updates), list(findings)) == (3, [])


def test_a_run_without_records_says_what_to_record(tmp_path: Path) -> None:
    findings = examine_run(tmp_path)
    assert (list(findings), findings.extent, findings.updates) == ([], "nothing", [])
    assert [text.split(";")[0] for text in findings.missing] == [
        "what each update learned from",
        "episodes, for checks of rewards and endings",
    ]


def test_report_of_a_run_has_what_stands_out_and_the_update(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    from episodes.command.app import app

    folder = shifted(tmp_path / "run", True)
    (folder / "run.json").write_text("{}")
    page = tmp_path / "page.html"
    result = testing.CliRunner().invoke(app, ["report", str(folder), "--html", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert 'href="#update-1--by-time"' in text
    assert 'id="update-1--by-time"' in text
    assert "First steps have a large loss" in text

"""Every page's examples and every documented command run in processes of their own, as a user runs them.

The processes start in another folder, with the environment of this machine without the settings of the tests. Blocks of
one page share a process, in the order of the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_readme import ALL_PAGES, EXAMPLE, PAGES, ROOT

pytestmark = pytest.mark.slow

PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_TESTS = (
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "PYTEST_CURRENT_TEST",
    "HYPOTHESIS_PROFILE",
    "PYTHONPATH",
    "MPLBACKEND",
)
SESSION = """
import doctest, sys
source, name = open(sys.argv[1]).read(), sys.argv[2]
runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False)
runner.run(doctest.DocTestParser().get_doctest(source, {}, name, name, 0))
result = runner.summarize(verbose=False)
sys.exit(0 if result.attempted and not result.failed else 1)
"""
# Pages whose examples define functions and leave the calls to the reader
CALLS = {
    "docs/how_to/sample_with_ray.md": """
>>> env = gym.make("CartPole-v1")
>>> train(MLPPolicy(env.observation_space, env.action_space), num_updates=1)
""",
}


def run(command: list[str], folder: Path, *, status: int = 0) -> str:
    """Run a command in a folder with a user's environment. Return what it prints.

    Raises:
        AssertionError: its exit status is not `status`.
    """
    env = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert process.returncode == status, f"{shlex.join(command)}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.mark.parametrize("name", PAGES)
def test_examples_of_a_page_run_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    session, page = tmp_path / "session.py", tmp_path / "page.txt"
    session.write_text(SESSION)
    page.write_text("\n".join([*EXAMPLE.findall((ROOT / name).read_text()), CALLS.get(name, "")]))
    (tmp_path / "folder").mkdir()
    run([sys.executable, str(session), str(page), name], tmp_path / "folder")


# --- programs on pages ------------------------------------------------------------------------------------------------

TORCHRUN = ("python", "-m", "torch.distributed.run")  # the same as torchrun, which may be in another folder
PROGRAMS = {
    ("docs/how_to/rllib.md", 0): ["python", "program.py"],
    ("docs/how_to/data_parallel.md", 0): [*TORCHRUN, "--standalone", "--nproc_per_node", "2", "program.py"],
}
OTHER_PROGRAMS = {
    ("docs/format.md", 0): "one line, with a name to fill in",
    ("docs/how_to/data_set.md", 0): "needs a download",
    ("docs/how_to/publish.md", 0): "needs a hub",
    ("docs/how_to/export.md", 0): "tests/connectors/test_export.py runs it without this library",
    ("docs/moving_from_rllib.md", 0): "part of tests/runners/rllib_learner.py, which a test runs",
    ("docs/how_to/token_formats.md", 0): "part of a program of TRL",
    ("docs/how_to/token_grpo.md", 0): "part of a program with a model of Transformers",
    ("docs/how_to/token_grpo.md", 1): "part of a program with a model of Transformers",
    ("docs/how_to/token_grpo.md", 2): "part of a program with a model of Transformers",
    ("docs/how_to/train_an_agent.md", 0): "tests/capture/test_train_an_agent.py runs it with a server of the tests",
    ("docs/how_to/language_agents.md", 0): "needs a server; tests/capture runs the proxy",
    ("docs/how_to/tune_settings.md", 0): "tests/learners/test_tuning_recipes.py runs it with fewer trials",
    ("docs/how_to/tune_settings.md", 1): "tests/learners/test_tuning_recipes.py runs it with fewer trials",
    ("docs/how_to/tune_settings.md", 2): "needs a server",
    ("docs/how_to/tune_settings.md", 3): "tests/learners/test_tuning_recipes.py runs it with fewer trials",
}


def programs() -> dict[tuple[str, int], str]:
    """Return all programs on pages, by page and number on the page."""
    texts = {name: PROGRAM.findall((ROOT / name).read_text()) for name in ALL_PAGES}
    return {(name, number): text for name, found in texts.items() for number, text in enumerate(found)}


def test_every_program_of_a_page_is_run_or_listed_with_a_reason() -> None:
    assert set(programs()) == set(PROGRAMS) | set(OTHER_PROGRAMS)


@pytest.mark.parametrize("place", PROGRAMS)
def test_program_of_a_page_runs_in_a_fresh_process(place: tuple[str, int], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(programs()[place])
    run(PROGRAMS[place], tmp_path)


# --- commands on pages ------------------------------------------------------------------------------------------------

COMMAND = re.compile(r"^(?:\$ )?((?:PYTHONPATH=\. )?episodes \w.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = """
algo = "ppo"
env = "CartPole-v1"
num_envs = 2
[policy]
hidden_sizes = [8]
[trainer]
max_epochs = 2
steps_per_epoch = 256
steps_per_collect = 128
num_test_episodes = 2
"""
MAKE_ENV = "import gymnasium\ndef make_env(): return gymnasium.make('CartPole-v1')\n"
GAMES = """
import numpy as np
from episodes import MultiAgentEpisode
from episodes.storage import EpisodeWriter
with EpisodeWriter("games") as writer:
    for name, length in (("first", 3), ("second", 5)):
        game = MultiAgentEpisode(id_=name)
        game.add_env_reset(observations={"car": np.zeros(4), "light": np.array([1, 0])})
        for t in range(1, length + 1):
            observations = {"car": np.full(4, float(t)), "light": np.array([0, 1])}
            rewards, ends = {"car": 1.0, "light": 0.0}, {"__all__": t == length}
            game.add_env_step(observations, {"car": 0.5, "light": 1}, rewards, terminateds=ends)
        writer.add([game])
"""
FILES = {
    "docs/how_to/looking.md": {"short.toml": SHORT},
    "docs/how_to/other_formats.md": {"log.csv": "run,x,y,dx,a\n1,0,0,1,0\n1,1,0,1,1\n2,0,1,0,1\n2,0,2,0,0\n"},
    "docs/how_to/several_agents.md": {"make_games.py": GAMES},
    "docs/how_to/train_and_resume.md": {"my.toml": SHORT},
    "docs/how_to/doctor.md": {"my_package/__init__.py": "", "my_package/envs.py": MAKE_ENV},
}
BEFORE = {
    "docs/how_to/doctor.md": ["episodes record runs/poles --env CartPole-v1 --episodes 3"],
    "docs/how_to/other_formats.md": ["episodes record PATH --env CartPole-v1 --episodes 2"],
    "docs/how_to/publish.md": ["episodes record walks --env CartPole-v1 --episodes 3"],
    "docs/how_to/several_agents.md": [f"{sys.executable} make_games.py"],
    "docs/how_to/train_and_resume.md": [
        f"episodes train --config my.toml --quiet --logdir runs/{name}" for name in ("fast", "slow")
    ],
}
IN_TEXT = {
    "docs/how_to/sample_with_ray.md": [
        "episodes train --algo ppo --runners 2",
        "episodes train --algo impala --runners 2",
    ],
    "docs/how_to/search_a_data_set.md": [
        "episodes record data --env CartPole-v1 --episodes 10",
        "episodes split data train=0.8 test=0.2",
        "episodes info data --stats",
        "episodes ls data",
        "episodes copy data long --where 'length > 10'",
        "episodes check data",
        "episodes compact data",
        "episodes seal data",
        "episodes record more --env CartPole-v1 --episodes 2",
        "episodes merge all data more",
        "episodes diff data data",
        "episodes keys keys",
    ],
    "docs/how_to/other_formats.md": [
        "episodes record data --env CartPole-v1 --episodes 3",
        "episodes convert data rows.parquet --to parquet",
    ],
    "docs/how_to/sample_from_disk.md": [
        "episodes record data --env CartPole-v1 --episodes 20",
        "episodes train --algo cql --data data",
    ],
    "docs/how_to/keep_episodes_elsewhere.md": [
        "episodes record data --env CartPole-v1 --episodes 3",
        "episodes upload data file://elsewhere",
        "episodes copy file://elsewhere back",
        "episodes info file://elsewhere",
    ],
}


def commands(name: str) -> list[str]:
    """Return the commands `episodes ...` of a page in the order in which a reader runs them."""
    blocks = [text for language, text in BLOCK.findall((ROOT / name).read_text()) if language in ("", "console")]
    return [
        *BEFORE.get(name, []),
        *(line for block in blocks for line in COMMAND.findall(block)),
        *IN_TEXT.get(name, []),
    ]


WITH_COMMANDS = [name for name in ALL_PAGES if commands(name)]


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_of_a_page_run_in_fresh_processes(name: str, tmp_path: Path) -> None:
    for file, text in FILES.get(name, {}).items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    for line in commands(name):
        command, _, comment = line.partition("  #")
        words = ["env", *shlex.split(command)]
        if {"watch", "capture"} & set(words):  # they serve until Ctrl-C: test_looking_page.py, test_capture_command.py
            continue
        if "train" in words and not {"--config", "--resume"} & set(words):
            words += ["--epochs", "1", "--quiet"]
        run(words, tmp_path, status=int(comment.removeprefix(" exit status ") if "exit status" in comment else 0))

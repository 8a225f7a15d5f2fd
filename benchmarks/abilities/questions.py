"""Table of replay features: the questions, the compared libraries, and functions that run the checks."""

from __future__ import annotations

from types import ModuleType

from benchmarks.abilities import cpprb, ours, rllib, sb3, tianshou, torchrl
from benchmarks.figure import NotHere
from benchmarks.measure import installed

LIBRARIES: dict[str, tuple[ModuleType, str]] = {
    "rl-episodes": (ours, "episodes"),
    "RLlib": (rllib, "ray.rllib"),
    "Tianshou": (tianshou, "tianshou"),
    "SB3": (sb3, "stable_baselines3"),
    "TorchRL": (torchrl, "torchrl"),
    "cpprb": (cpprb, "cpprb"),
}

QUESTIONS = {
    "n_step_draws_reach_the_end": "n-step draws include an episode's last steps",
    "time_limits_keep_their_observation": "each observation stored once, a time limit's last one included",
    "environments_are_drawn_independently": "parallel environments are drawn independently",
    "sequences_stay_in_their_episode": "sequences stay inside their episode",
    "whole_episodes_come_back": "whole episodes come back as they were added",
    "one_seed_fixes_all_draws": "one seed fixes all draws, by priority too, whatever other code draws",
    "a_changed_beta_changes_the_weights": "a changed beta changes the weights, with several environments too",
    "an_add_that_fails_changes_nothing": "an add that fails changes nothing",
    "a_restored_buffer_draws_the_same": "a saved and restored buffer draws what the original draws",
}

YES, NO, NO_SUCH_MODE, NOT_INSTALLED, NOT_RUN = "yes", "no", "-", "not installed", "not run"


def answer(library: str, question: str) -> str:
    """Run the check of one feature in one library, and return "yes", "no", or the reason why there is no result."""
    module, name = LIBRARIES[library]
    if not installed(name):
        return NOT_INSTALLED
    check = getattr(module, question, None)
    if check is None:
        return NO_SUCH_MODE
    try:
        return YES if check() else NO
    except NotHere:
        return NOT_RUN


def markdown() -> str:
    """Run the checks of all features in all libraries, and return the results as a Markdown table."""
    lines = ["| | " + " | ".join(LIBRARIES) + " |", "|---" * (len(LIBRARIES) + 1) + "|"]
    for question, words in QUESTIONS.items():
        lines.append(f"| {words} | " + " | ".join(answer(library, question) for library in LIBRARIES) + " |")
    return "\n".join(lines)

"""The questions, who answers them, and the table of the answers."""

from __future__ import annotations

from types import ModuleType

from benchmarks.abilities import cpprb, ours, rllib, sb3, tianshou, torchrl
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
    "a_restored_buffer_draws_the_same": "a saved and restored buffer draws what the original draws",
}

YES, NO, NO_SUCH_MODE, NOT_INSTALLED = "yes", "no", "-", "not installed"


def answer(library: str, question: str) -> str:
    """The outcome of one check; `-` where the library offers nothing of the kind."""
    module, name = LIBRARIES[library]
    if not installed(name):
        return NOT_INSTALLED
    check = getattr(module, question, None)
    if check is None:
        return NO_SUCH_MODE
    return YES if check() else NO


def markdown() -> str:
    """The table."""
    lines = ["| | " + " | ".join(LIBRARIES) + " |", "|---" * (len(LIBRARIES) + 1) + "|"]
    for question, words in QUESTIONS.items():
        lines.append(f"| {words} | " + " | ".join(answer(library, question) for library in LIBRARIES) + " |")
    return "\n".join(lines)

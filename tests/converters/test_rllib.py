"""Tests of RLlib conversions in a new process, since importing RLlib changes the logging of a process."""

from __future__ import annotations

from samples import run_python


def test_rllib_checks_pass_in_new_process() -> None:
    options = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider")
    run_python("-m", "pytest", *options, "tests/converters/rllib_checks.py", PYTEST_ADDOPTS="")

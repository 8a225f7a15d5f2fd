"""Run code in a fresh Python process, whose use of resources must end within 20 seconds."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.code_rules import ROOT

SECONDS = 20.0  # from the end of the imports to the end of the process


def run_fresh(imports: str, code: str, *arguments: str) -> tuple[str, str]:
    """Run `imports`, then `code`, and return the standard output and the standard error of the process.

    Importing takes longest on a busy machine, so only `code` and the exit of the interpreter are limited in time.

    Raises:
        subprocess.TimeoutExpired: the process did not end in time.
        AssertionError: the process failed.
    """
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy starts none itself
    process = subprocess.Popen(
        [sys.executable, "-c", f"{imports}\nprint('imported', flush=True)\n{code}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **one_thread, "PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "imported\n", process.communicate()
        try:
            output, errors = process.communicate(timeout=SECONDS)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, errors
    return output, errors

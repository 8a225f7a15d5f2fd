"""Notebooks run without errors, and their stored outputs equal the current outputs.

`python -m tests.test_notebooks` runs them and stores their outputs.
"""

from __future__ import annotations

import html
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
TIMEOUT_S = 300  # for one cell and for the start of the kernel, on a slow and busy machine
TIMING = re.compile(r" *\d+(\.\d+)? (ms|us|s)\b")
RANDOM_ID = re.compile(r"\b([0-9a-f]{32}|[0-9a-f]{8,16}…[0-9a-f]{8,16}|(?<=AgentEpisode )[0-9a-f]{8})\b")
TRACE_TIMES = re.compile(r"\b\d+\.\d{3}\b|(?<=milliseconds=)[\d.e-]+")  # a trace has a column of milliseconds
IMAGES = {"image/png", "image/svg+xml"}  # their bytes depend on fonts and on the version of matplotlib


def executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook after a run in a new kernel, without execution counts and metadata of the run."""
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.pop("MPLBACKEND", None)  # the import of EnvPool sets it, and the kernel could not draw
    with tempfile.TemporaryDirectory(prefix="kernel") as folder:  # for the sockets, whose paths must be short
        NotebookClient(
            notebook,
            # A kernel that listens on ports could lose them to another process before it starts.
            km=AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{folder}/kernel.json"),
            startup_timeout=TIMEOUT_S,
            timeout=TIMEOUT_S,
            iopub_timeout=TIMEOUT_S,
            resources={"metadata": {"path": str(FOLDER.parent)}},
        ).execute(cleanup_kc=True)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                output.pop("execution_count", None) if output.output_type != "execute_result" else None
                if output.output_type == "execute_result":
                    output.execution_count = None
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": python})
    return notebook


def contents(notebook: nbformat.NotebookNode) -> list[list[Any]]:
    """Return what each code cell prints and shows. Images count by their type, and HTML by its text."""
    return [[_content(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _content(output: nbformat.NotebookNode) -> Any:
    if output.output_type == "stream":
        return output.name, TIMING.sub(" <time>", output.text)
    return {kind: _comparable(kind, data) for kind, data in sorted(output.get("data", {}).items())}


def _comparable(kind: str, data: str) -> str:
    if kind in IMAGES:
        return kind
    if kind == "text/html":
        data = re.sub(r"<style.*?</style>", "", data, flags=re.DOTALL)
        data = html.unescape(re.sub(r"<[^>]+>", " ", data))
    if data.lstrip().startswith("Trace"):
        data = TRACE_TIMES.sub("<time>", data)
    return RANDOM_ID.sub("<id>", " ".join(TIMING.sub(" <time>", data).split()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_notebook_outputs_equal_stored_outputs(path: Path) -> None:
    stored = contents(nbformat.read(path, as_version=4))
    assert contents(executed(path)) == stored, "if this is intended: python -m tests.test_notebooks"


def test_notebooks_begin_with_a_title_and_show_an_episode() -> None:
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert cells[0].source.startswith("# "), path.name
        assert len(cells) <= 30, path.name
        shown = [output.get("data", {}) for cell in cells if cell.cell_type == "code" for output in cell.outputs]
        assert any("Episode" in data.get("text/plain", "") and "text/html" in data for data in shown), path.name


if __name__ == "__main__":
    for file in NOTEBOOKS:
        if len(sys.argv) == 1 or file.stem in sys.argv[1:]:
            nbformat.write(executed(file), file)

"""The notebooks run from top to bottom, and show what `tests/shown` says. In their files they show nothing.

`python -m tests.test_notebooks` runs them, writes what they show, and takes their outputs out.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
PATIENCE_S = 300  # of a cell, and of the kernel's start, on a slow and busy machine
SHOWN = Path(__file__).parent / "shown"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
MILLISECONDS = re.compile(r" +\d+\.\d+ ms")
PICTURES = {"image/png", "image/svg+xml", "text/html"}  # their bytes depend on fonts and styles


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook run in a kernel of its own, without what depends on when and where it ran."""
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.pop("MPLBACKEND", None)  # importing EnvPool sets it, and a kernel would draw nowhere
    with tempfile.TemporaryDirectory(prefix="kernel") as folder:  # of its sockets, whose paths must be short
        file = f"{folder}/kernel.json"
        NotebookClient(
            notebook,
            # Ports are chosen before the kernel listens there, and somebody else may have them by then.
            km=AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=file),
            startup_timeout=PATIENCE_S,
            timeout=PATIENCE_S,
            iopub_timeout=PATIENCE_S,
            resources={"metadata": {"path": str(FOLDER.parent)}},
        ).execute(cleanup_kc=True)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def shown(notebook: nbformat.NotebookNode) -> list[list[Any]]:
    """What each code cell prints and displays; of pictures, that there is one."""
    return [[_content(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _content(output: nbformat.NotebookNode) -> Any:
    if output.output_type == "stream":
        return output.name, MILLISECONDS.sub(" ms", output.text)
    return {kind: kind if kind in PICTURES else data for kind, data in output.get("data", {}).items()}


def stripped(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook without outputs."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_a_notebook_shows_what_it_showed(path: Path) -> None:
    assert json.loads(json.dumps(shown(executed(path)))) == json.loads((SHOWN / f"{path.stem}.json").read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebooks_file_holds_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook == stripped(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_begins_with_what_it_is_about(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert len(cells) <= 30


if __name__ == "__main__":
    for file in NOTEBOOKS:
        (SHOWN / f"{file.stem}.json").write_text(json.dumps(shown(executed(file)), indent=1) + "\n")
        nbformat.write(stripped(nbformat.read(file, as_version=4)), file)

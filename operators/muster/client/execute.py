"""Runs all cells of a notebook: ``python -P execute.py NOTEBOOK``, in the image `notebook`.

An ``.ipynb`` is saved with its outputs. A ``.py`` is a notebook whose cells begin with ``# %%``; its outputs are printed.
A failed cell gives one message on stderr and exit code 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

KERNEL = "muster"
SCRIPT = ".py"


def main() -> None:
    """Run the notebook that the command line names."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    path = Path(sys.argv[1])
    try:
        notebook = _of_script(path) if path.suffix == SCRIPT else nbformat.read(path, as_version=4)
    except (ValueError, OSError) as error:
        sys.exit(f"it is no notebook: {error}")
    client = NotebookClient(
        notebook, timeout=None, kernel_name=KERNEL, resources={"metadata": {"path": str(path.parent)}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        number = sum(1 for cell in notebook.cells if cell.get("execution_count"))
        sys.exit(f"cell {number} failed: {error.ename}: {error.evalue}")
    finally:
        if path.suffix == SCRIPT:
            _print(notebook)
        else:
            nbformat.write(notebook, path)


def _of_script(path: Path) -> Any:
    """Return a notebook whose cells are those of a script, each begun by a line ``# %%``."""
    from nbformat.v4 import new_code_cell, new_notebook

    cells: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# %%"):
            cells.append([])
        else:
            cells[-1].append(line)
    texts = ("\n".join(lines).strip("\n") for lines in cells)
    return new_notebook(cells=[new_code_cell(text) for text in texts if text.strip()])


def _print(notebook: Any) -> None:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                stream = sys.stderr if output["name"] == "stderr" else sys.stdout
                stream.write(output["text"])
            elif "text/plain" in output.get("data", {}):
                print(output["data"]["text/plain"])  # noqa: T201 - what the cell shows


if __name__ == "__main__":
    main()

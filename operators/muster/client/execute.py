"""Runs all cells of a notebook and saves it: ``python -P execute.py NOTEBOOK``, in the image `notebook`.

A cell that fails is one message on stderr, and exit code 1; the notebook is saved as far as it came.
"""

from __future__ import annotations

import sys
from pathlib import Path

KERNEL = "muster"


def main() -> None:
    """Run the notebook that the command line names."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    path = Path(sys.argv[1])
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=None, kernel_name=KERNEL, resources={"metadata": {"path": str(path.parent)}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        number = sum(1 for cell in notebook.cells if cell.get("execution_count"))
        sys.exit(f"cell {number} failed: {error.ename}: {error.evalue}")
    finally:
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()

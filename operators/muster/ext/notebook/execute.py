"""Runs all cells of a notebook: ``python -P execute.py NOTEBOOK``, in the image `notebook`.

An ``.ipynb`` is saved with its outputs. A ``.py`` is a notebook whose cells begin with ``# %%``; its outputs are printed.
A failed cell gives one message on stderr and exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KERNEL = "muster"
_WIDGET = "application/vnd.jupyter.widget-view+json"
SCRIPT = ".py"
TRANSPORT = "ipc"
"""How a kernel is spoken to: files of this user's, in place of ports that each user of the machine can reach."""


def main() -> None:
    """Run the notebook that the command line names."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    path = Path(sys.argv[1])
    try:
        notebook = _of_script(path) if path.suffix == SCRIPT else nbformat.read(path, as_version=4)
    except (ValueError, OSError) as error:
        sys.exit(f"it is no notebook: {error}")
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name=KERNEL,
        resources={"metadata": {"path": str(path.parent)}},
        config=Config({"KernelManager": {"transport": TRANSPORT}}),
    )
    try:
        client.execute()
    except CellExecutionError as error:
        number = sum(1 for cell in notebook.cells if cell.get("execution_count"))
        sys.exit(f"cell {number} failed: {error.ename}: {error.evalue}")
    finally:
        if path.suffix == SCRIPT:
            _print(notebook, client.widget_state)
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


def _print(notebook: Any, widgets: Mapping[str, Any]) -> None:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            shown = output.get("data", {}).get(_WIDGET)
            if output["output_type"] == "stream":
                stream = sys.stderr if output["name"] == "stderr" else sys.stdout
                stream.write(output["text"])
            elif shown and (text := _text_of(widgets, shown["model_id"])):
                print(text)  # noqa: T201 - the widget as it is at the end; its own text is that of its start
            elif "text/plain" in output.get("data", {}):
                print(output["data"]["text/plain"])  # noqa: T201 - what the cell shows


def _text_of(widgets: Mapping[str, Any], model_id: str) -> str:
    """Return what a widget, or a box of them, says in words: a bar of tqdm's is ``100%  3/3 [00:00<00:00]``."""
    from html import unescape

    state = widgets.get(model_id, {})
    inner = [_text_of(widgets, each.removeprefix("IPY_MODEL_")) for each in state.get("children", ())]
    value = state.get("value")
    return " ".join([*([unescape(value).strip()] if isinstance(value, str) else []), *filter(None, inner)])


if __name__ == "__main__":
    main()

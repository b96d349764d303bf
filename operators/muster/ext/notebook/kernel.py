"""A Jupyter kernel in the Python of an image, with muster and the versions that the user named.

``python -P kernel.py LINKS -f CONNECTION`` is what ``muster notebook`` has Jupyter start; ``python -P kernel.py LINKS
--check`` says as JSON what of the kernel cannot be imported, and which readers of data the image lacks. LINKS is the
folder of links of :mod:`muster.ext.notebook.commands`. The versions are the JSON in ``MUSTER_NOTEBOOK_INPUTS``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

INPUTS = "MUSTER_NOTEBOOK_INPUTS"
IMAGE = "MUSTER_NOTEBOOK_IMAGE"
DAGS = "MUSTER_NOTEBOOK_DAGS"
NEEDED = ("ipykernel.kernelapp", "fsspec", "muster.client.versions", "muster.client.files")
READERS = ("pandas", "polars", "pyarrow", "duckdb")


def main() -> None:
    """Serve a kernel until Jupyter ends it."""
    links, *rest = sys.argv[1:]
    sys.path.append(links)  # last: the image's own packages win
    if rest == ["--check"]:
        print(json.dumps(check()))  # noqa: T201 - the answer
        return
    sys.path.insert(0, os.environ.get(DAGS, ""))  # a cell imports a stage's module as its job does
    from ipykernel.kernelapp import IPKernelApp

    kernel = IPKernelApp.instance()
    kernel.initialize(rest)
    kernel.shell.user_ns.update(given())
    kernel.shell.set_custom_exc((ModuleNotFoundError,), _say_what_is_missing)
    for name in ("pip", "uv", "conda", "mamba"):
        kernel.shell.register_magic_function(_refuse_to_install, magic_name=name)
    kernel.start()


def check() -> dict[str, Any]:
    """Return why the kernel cannot start here (empty if it can), and which readers the image lacks."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except Exception as error:
            return {"error": f"{name}: {type(error).__name__}: {error}", "lacks": []}
    return {"error": "", "lacks": [name for name in READERS if importlib.util.find_spec(name) is None]}


def advice(image: str) -> str:
    """Return how a package is added to an image."""
    from muster.core.advice import adding  # LINKS leads there

    return f"To have a package: {adding('it', image)}, and open the notebook with that image again"


def given() -> dict[str, Any]:
    """Return the variables of a new notebook: ``muster``, ``inputs`` by name, and each input under its own name."""
    import muster

    def found(addresses: list[str], many: bool) -> Any:
        versions = [muster.version(address) for address in addresses]
        return versions if many else versions[0]

    asked = json.loads(os.environ.get(INPUTS, "{}"))
    inputs = {name: found(each["addresses"], each["many"]) for name, each in asked.items()}
    return {"muster": muster, "inputs": inputs, **inputs}


def _say_what_is_missing(shell: Any, kind: Any, error: Any, *_: Any, **__: Any) -> list[str]:
    image = os.environ.get(IMAGE, "")
    said = f"{error}. Image {image!r} does not hold it, so a job in it could not import it either. {advice(image)}"
    if error.name and error.name.partition(".")[0] == "muster":
        said = f"{error}. It belongs to muster, and cannot be imported in a notebook"
    lines = [f"{kind.__name__}: {said}"]
    shell._showtraceback(kind, error, lines)
    return lines


def _refuse_to_install(_: str) -> None:
    """Stand for ``%pip`` and its kind, which would install into the environment of all jobs of this image."""
    image = os.environ.get(IMAGE, "")
    print(f"Nothing is installed: image {image!r} holds what its lock says. {advice(image)}", file=sys.stderr)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

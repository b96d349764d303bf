"""The predictors: each makes, of a file that a version holds, a function from arrays by name to arrays by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError
from muster_serving.signature import ModelSignature

Predict = Callable[[dict[str, Any]], Any]

KNOWN = {
    "predict.py": "python_code",
    "model.skops": "scikit_learn",
    "model.ubj": "boosters",
    "model.lightgbm.txt": "boosters",
    "model.pt2": "torch_export",
    "pipeline": "hugging_face",
    "model.pkl": "scikit_learn",
    "model.joblib": "scikit_learn",
}
"""By a version's file: the module here that loads it. ``muster.core.deployment.PREDICTED`` names the same files."""
PICKLE = "pickle"


def load(folder: Path, signature: ModelSignature, trusted: Sequence[str]) -> Predict:
    """Load a version.

    :param trusted: what may be loaded though it can run code: ``pickle``, ``torch.export``, or types in a skops file.
    :raises ModelError: it holds nothing that can be loaded, or something that is not trusted.
    """
    found = [name for name in KNOWN if (folder / name).exists()]
    if found[:1] != ["predict.py"] and len(found) != 1:
        holds = ", ".join(found) or "none"
        raise ModelError(
            f"a version holds one of {', '.join(KNOWN)} beside signature.json; this one holds {holds}"
        )
    guard = _Guard(trusted)
    sys.addaudithook(guard)
    try:
        predict: Predict = import_module(f"{__name__}.{KNOWN[found[0]]}").load(
            folder / found[0], signature, trusted
        )
    finally:
        guard.on = False  # what runs later is the author's own code, and no file that was made elsewhere
    return predict


class _Guard:
    """Refuses to unpickle while a version is loaded, unless the Dag trusts it: a pickle runs any code.

    Python's unpicklers raise the event ``pickle.find_class``, in C and in Python.
    """

    def __init__(self, trusted: Sequence[str]) -> None:
        self.on = PICKLE not in trusted

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event == "pickle.find_class":
            raise ModelError(
                f"loading it unpickles {arguments[0]}.{arguments[1]}, which can run any code: save the model in a format "
                'that cannot, such as skops, or trust it, trusted=["pickle"]'
            )

"""``predict.py``: the author's own ``load(folder)`` and ``predict(model, inputs)``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import util
from pathlib import Path

from muster_serving.errors import ModelError
from muster_serving.predictors import Predict
from muster_serving.signature import ModelSignature


def load(path: Path, signature: ModelSignature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - it is the author's code
    """Import the file, which may import others beside it, and have it load the model."""
    sys.path.insert(0, str(path.parent))
    sys.dont_write_bytecode = True  # a version is never changed
    spec = util.spec_from_file_location("predict", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules["predict"] = module
    spec.loader.exec_module(module)
    for name in ("load", "predict"):
        if not callable(getattr(module, name, None)):
            raise ModelError(
                f"{path.name} has no function {name}: it needs load(folder) and predict(model, inputs)"
            )
    return partial(module.predict, module.load(path.parent))

"""Runs in the image: print, as JSON, what the predictor says of each folder that is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from muster_serving.errors import ModelError
from muster_serving.predictor import Predictor


def loading(folder: Path) -> str:
    try:
        predictor = Predictor(folder)
    except ModelError as error:
        return str(error)
    return f"takes {', '.join(predictor.signature.inputs)}"


print(json.dumps([loading(Path(folder)) for folder in sys.argv[1:]]))

"""Writes ``catalogue.json`` of the image: ``python -m muster_validate``."""

import json
from pathlib import Path

from muster_validate import catalogue

Path(__file__).parents[1].joinpath("catalogue.json").write_text(
    json.dumps(catalogue(), indent=1) + "\n", encoding="utf-8"
)

"""What the chart makes of this cluster's values (``values.yaml``), as it was rendered and reviewed.

``python -m tests.chart.examples`` renders it, and ``make test-chart`` holds it to the chart; so neither a cluster that
is brought up nor a test that reads these objects needs helm.
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
RENDERED = Path(__file__).parents[1] / "chart" / "golden" / "test-cluster.yaml"
_WHEN_ASKED_FOR = frozenset({"Deployment", "Service", "CronJob", "ConfigMap", "Pod"})


def objects(*kinds: str, name: str = "") -> list[Document]:
    """Return those of some kinds. :param name: of the one that is wanted; all of them where not given."""
    found = (each for each in _read() if each["kind"] in kinds and name in ("", each["metadata"]["name"]))
    return [deepcopy(each) for each in found]  # tests change them


def standing() -> list[Document]:
    """Return all that is there whenever the cluster is: whatever runs no pods."""
    return [_of_any_store(each) for each in deepcopy(_read()) if each["kind"] not in _WHEN_ASKED_FOR]


def _of_any_store(document: Document) -> Document:
    """Let what is said of the store's folder on the claim count of any: tests have a store each, in a folder of its own."""
    if document["kind"] != "ValidatingAdmissionPolicy":
        return document
    text = json.dumps(document)
    for part in ("v", "staging"):
        assert f"startsWith('store/{part}/'" in text
        text = text.replace(f"startsWith('store/{part}/'", f"matches('^[a-z0-9-]+/{part}/'")
    own = "subPath == 'store/predictions/' + variables.deployment"
    assert own in text
    text = text.replace(own, "subPath.matches('^[a-z0-9-]+/predictions/' + variables.deployment + '$')")
    changed: Document = json.loads(text)
    return changed


def of_the_whole_cluster() -> list[Document]:
    """Return what of that is in no namespace."""
    return [each for each in standing() if "namespace" not in each["metadata"]]


@cache
def _read() -> list[Document]:
    return list(filter(None, yaml.load_all(RENDERED.read_text(encoding="utf-8"), yaml.CSafeLoader)))

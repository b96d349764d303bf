"""What a revision's object was made with, written down in it, so that an edit of it is seen and undone: pure.

Image and command of each container: an API server and its webhooks write other fields in their own way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.serving import names
from muster.core.text import shortened

_HELD = ("image", "command")
_MOST_CHARACTERS = 120


def noted(document: Document) -> Document:
    """Return an object with what it is made with in an annotation."""
    made = {each["name"]: {field: each[field] for field in _HELD} for each in _containers(document)}
    text = json.dumps(made, sort_keys=True, separators=(",", ":"))
    metadata = document["metadata"]
    annotations = {**metadata.get("annotations", {}), names.MADE: text}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def edited(document: Document) -> str:
    """Return the first field that differs from what muster wrote; empty where none does, or an earlier release made it."""
    made = _read(document)
    found = {each.get("name"): each for each in _containers(document)}
    for name, fields in made.items():
        for field, value in fields.items():
            if name in found and found[name].get(field) != value:
                shown = (json.dumps(each) for each in (found[name].get(field), value))
                return f"{field} of {name} is {' and not '.join(shortened(each, _MOST_CHARACTERS) for each in shown)}"
    return ""


def restored(document: Document) -> Document:
    """Return an object as it is to be written again, without what the API server keeps of it: as it was made."""
    again: Document = {
        field: deepcopy(document[field]) for field in ("apiVersion", "kind", "metadata", "spec")
    }
    for field in again["metadata"].keys() - {"name", "namespace", "labels", "annotations"}:
        del again["metadata"][field]
    made = _read(document)
    for each in _containers(again):
        each.update(made.get(str(each.get("name")), {}))
    return again


def _read(document: Document) -> dict[str, Document]:
    """What is written down; nothing where that was spoiled."""
    try:
        found = json.loads((document["metadata"].get("annotations") or {}).get(names.MADE) or "{}")
        return {str(name): {field: each[field] for field in _HELD} for name, each in found.items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}


def _containers(document: Document) -> Iterator[Document]:
    """The containers of KServe's object, or of Seldon's."""
    spec = document.get("spec") or {}
    for predictor in [spec.get("predictor") or {}, *(spec.get("predictors") or ())]:
        for pod in (predictor, *(each.get("spec") or {} for each in predictor.get("componentSpecs") or ())):
            yield from pod.get("containers") or ()

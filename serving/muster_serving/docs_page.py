"""The OpenAPI document as one page of HTML, which loads nothing from another server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from muster_serving import schemas
from muster_serving.column import Column
from muster_serving.signature import ModelSignature

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
div { overflow-x: auto } table { border-collapse: collapse; margin: 0 0 1rem }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
pre { overflow-x: auto; background: #8882; padding: .75rem }
"""


def docs_page(document: Mapping[str, Any], signature: ModelSignature | None) -> str:
    """Return the page: what the model takes and answers, an example, and every path."""
    about = document["info"]
    title = escape(about["title"])
    now = f'Serving now: {escape(about["version"])}. <a href="openapi.json">openapi.json</a>'
    body = [
        f"<h1>{title}</h1>",
        f"<p>{escape(about['description'])} {now}</p>",
        *(_model(document, signature) if signature else ()),
        "<h2>Pages</h2>",
        _table(("method", "path", "what it does", "statuses"), _pages(document["paths"])),
        *_descriptions(document["paths"]),
        "<h2>Statuses</h2>",
        _table(("status", "meaning"), _statuses(document)),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(body)}</body></html>'


def _model(document: Mapping[str, Any], signature: ModelSignature) -> Iterator[str]:
    yield "<h2>What the model takes</h2>"
    yield _table(("input", "type", "shape", "values"), map(_column, signature.inputs.values()))
    yield f"<p>At most {signature.max_batch} rows in one request.</p>"
    yield "<h2>What it answers</h2>"
    yield _table(("output", "type", "shape", "values"), map(_column, signature.outputs.values()))
    path = next(path for path in document["paths"] if path.endswith(":predict"))
    body = json.dumps(schemas.example(signature), ensure_ascii=False).replace("'", "'\\''")
    line = f"curl -si ADDRESS{path} -H 'Content-Type: application/json' -d '{body}'"
    yield f"<h2>An example</h2><pre>{escape(line)}</pre>"


def _column(column: Column) -> tuple[str, ...]:
    values = column.expects if column.fallback is None else "any; all unknown values count as one category"
    return column.name, column.datatype, str([-1, *column.tail]), values


def _pages(paths: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for path, operations in paths.items():
        for method in ("get", "post"):
            if found := operations.get(method):
                yield method.upper(), path, found["summary"], ", ".join(found["responses"])


def _descriptions(paths: Mapping[str, Any]) -> Iterator[str]:
    asked = (each["post"] for each in paths.values() if "post" in each)
    texts = {found["description"] for found in asked if "description" in found}
    return (f"<p>{escape(text)}</p>" for text in sorted(texts))


def _statuses(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    return ((status, said["description"]) for status, said in document["components"]["responses"].items())


def _table(heads: Sequence[str], rows: Any) -> str:
    head = "".join(f"<th>{escape(each)}" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}" for each in row) for row in rows)
    return f"<div><table><tr>{head}{body}</table></div>"

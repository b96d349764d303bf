"""The OpenAPI document of a model server (https://spec.openapis.org/oas/v3.1.0), for the model that it serves, and the same as one
page of HTML, which loads nothing from another server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from muster_serving import schemas
from muster_serving.column import Column
from muster_serving.signature import ModelSignature

_JSON = "application/json"
_BINARY = "application/octet-stream"
_EVENTS = "text/event-stream"
_EVENTS_TEXT = (
    'Each event is one answer of version 2 as JSON, with some rows of the outputs; or {"error": …}, which is the last one. A '
    "model that does not stream answers with one event."
)
_ERRORS = {
    "400": "The request is wrong; the message names the field.",
    "404": "There is no such page, model or revision.",
    "405": "The page does not take this method; the header Allow names those that it takes.",
    "413": "The body is too long.",
    "415": "The body's type or encoding is not supported.",
    "500": "The model failed.",
    "503": "No revision answers now, or the server is overloaded: try again soon.",
}
_READING = ("404", "405", "503")
_BINARY_TEXT = (
    "Tensors may also be sent and returned as bytes, by the binary tensor data extension. The body is then JSON whose "
    "inputs have `parameters: {binary_data_size: N}` in place of `data`, followed by the bytes of each input; the header "
    "`Inference-Header-Content-Length` is the length of the JSON. `parameters: {binary_data: true}` of an output, or "
    "`parameters: {binary_data_output: true}` of the request, returns bytes. The schema shows tensors of one row; "
    "requests may have up to {rows} rows, the same number in every input, and a plain column also as [rows, 1]. A tensor "
    "NAME.nulls of BOOL says which values of a nullable input NAME are null."
)
_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
div { overflow-x: auto } table { border-collapse: collapse; margin: 0 0 1rem }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
pre { overflow-x: auto; background: #8882; padding: .75rem }
"""


def document(name: str, revisions: Sequence[str], signature: ModelSignature | None) -> dict[str, Any]:
    """Return the document.

    :param name: the deployment's name, which is the model's name in every path.
    :param revisions: those that have a share.
    :param signature: of the described model; None where none is loaded: then a body is any object.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{name}: predictions",
            "version": revisions[0] if revisions else "none",
            "description": (
                "The Open Inference Protocol (v2) and version 1 of it. Each answer of a model has the header "
                "Muster-Revision, and Muster-Model where the version's address is known."
            ),
        },
        "paths": _server() | _models(name, revisions, signature),
        "components": {
            "responses": {status: _error(words) for status, words in _ERRORS.items()},
            "headers": {
                "Muster-Revision": _header("Which revision answered, such as r8."),
                "Muster-Model": _header("The version's address, such as volume://flights/model@8."),
            },
        },
    }


def _server() -> dict[str, Any]:
    texts = {"type": "array", "items": {"type": "string"}}
    server = schemas.record({"name": schemas.TEXT, "version": schemas.TEXT, "extensions": texts})
    flag = {"type": "boolean"}
    ready = _read("Whether a revision answers", schemas.record({"ready": flag}))
    ready["get"]["responses"]["503"] = {
        "description": "No revision answers now.",
        "content": {_JSON: {"schema": schemas.record({"ready": flag})}},
    }
    return {
        "/": _read("Whether the server runs", {"type": "object"}),
        "/v2": _read("What the server is, and which extensions of the protocol it has", server),
        "/v2/health/live": _read("Whether the server runs", schemas.record({"live": flag})),
        "/v2/health/ready": ready,
        "/v1/models": _read("The model's name", schemas.record({"models": texts})),
        "/metrics": _read("Figures for Prometheus", schemas.TEXT, kind="text/plain"),
        "/openapi.json": _read("This document", {"type": "object"}),
        "/docs": _read("This document for people", schemas.TEXT, kind="text/html"),
    }


def _models(name: str, revisions: Sequence[str], signature: ModelSignature | None) -> dict[str, Any]:
    ready = schemas.record({"name": schemas.TEXT, "ready": {"type": "boolean"}})
    infer = schemas.infer(signature), schemas.inferred(signature)
    parts = schemas.infer(signature, binary=False), infer[1]  # events are text
    predict = schemas.predict(signature), schemas.predicted(signature)
    about = _BINARY_TEXT.replace("{rows}", str(signature.max_batch if signature else 4096))
    paths: dict[str, Any] = {
        f"/v1/models/{name}": _read("Whether the model answers", ready, model=True),
        f"/v1/models/{name}:predict": _ask("Predict, version 1", *predict, ""),
    }
    for path, names in ((f"/v2/models/{name}", []), (f"/v2/models/{name}/versions/{{revision}}", revisions)):
        made = {
            path: _read("The model's metadata", schemas.metadata(), model=True),
            f"{path}/ready": _read("Whether the model answers", ready, model=True),
            f"{path}/infer": _ask("Predict, version 2", *infer, about, kinds=(_JSON, _BINARY)),
            f"{path}/generate_stream": _ask("Predict in parts", *parts, _EVENTS_TEXT, kinds=(_EVENTS,)),
        }
        if "{revision}" in path:
            for operations in made.values():
                operations["parameters"] = [_revision(names)]
        paths |= made
    return paths


def _revision(names: Sequence[str]) -> dict[str, Any]:
    kind = {"type": "string", "enum": list(names)} if names else schemas.TEXT
    about = "One revision; a request that names it is not counted."
    return {"name": "revision", "in": "path", "required": True, "description": about, "schema": kind}


def _read(
    summary: str, schema: Mapping[str, Any], *, kind: str = _JSON, model: bool = False
) -> dict[str, Any]:
    good = {"description": summary, "content": {kind: {"schema": schema}}}
    return {"get": {"summary": summary, "responses": _responses(good, _READING, model=model)}}


def _ask(
    summary: str,
    schema: Mapping[str, Any],
    answer: Mapping[str, Any],
    about: str,
    *,
    kinds: Sequence[str] = (_JSON,),
) -> dict[str, Any]:
    content = {kind: {"schema": answer if kind == _JSON else {}} for kind in kinds}
    responses = _responses({"description": "The predictions", "content": content}, tuple(_ERRORS), model=True)
    operation = {
        "summary": summary,
        "requestBody": {"required": True, "content": {_JSON: {"schema": schema}}},
        "responses": responses,
    }
    return {"post": operation | ({"description": about} if about else {})}


def _responses(good: dict[str, Any], others: Sequence[str], *, model: bool) -> dict[str, Any]:
    if model:
        names = ("Muster-Revision", "Muster-Model")
        good = good | {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}
    return {"200": good} | {status: {"$ref": f"#/components/responses/{status}"} for status in others}


def _error(words: str) -> dict[str, Any]:
    return {
        "description": words,
        "content": {_JSON: {"schema": schemas.record({"error": schemas.TEXT})}},
    }


def _header(words: str) -> dict[str, Any]:
    return {"description": words, "schema": schemas.TEXT}


def docs_page(document: Mapping[str, Any], signature: ModelSignature | None) -> str:
    """Return the page: what the model takes and answers, an example, and every path."""
    about = document["info"]
    title = escape(about["title"])
    now = f'Serving now: {escape(about["version"])}. <a href="openapi.json">openapi.json</a>'
    body = [
        f"<h1>{title}</h1>",
        f"<p>{escape(about['description'])} {now}</p>",
        *(_about_model(document, signature) if signature else ()),
        "<h2>Pages</h2>",
        _table(("method", "path", "what it does", "statuses"), _pages(document["paths"])),
        *_descriptions(document["paths"]),
        "<h2>Statuses</h2>",
        _table(("status", "meaning"), _statuses(document)),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(body)}</body></html>'


def _about_model(document: Mapping[str, Any], signature: ModelSignature) -> Iterator[str]:
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

"""The OpenAPI document of a model server (https://spec.openapis.org/oas/v3.1.0), for the model that it serves, and the same as one
page of HTML, which loads nothing from another server.

Its schemas are made from the model's signature (https://json-schema.org/draft/2020-12). A schema cannot require lists of equal length, so it describes
tensors and columns of one row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from muster_serving.column import Column
from muster_serving.signature import ModelSignature

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {"type": "object"}
_DESCRIBED = {"name": _TEXT, "datatype": _TEXT, "shape": {"type": "array", "items": {"type": "integer"}}}
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
    server = _record({"name": _TEXT, "version": _TEXT, "extensions": _TEXTS})
    ready = _read("Whether a revision answers", _record({"ready": _FLAG}))
    ready["get"]["responses"]["503"] = {
        "description": "No revision answers now.",
        "content": {_JSON: {"schema": _record({"ready": _FLAG})}},
    }
    return {
        "/": _read("Whether the server runs", _ANY),
        "/v2": _read("What the server is, and which extensions of the protocol it has", server),
        "/v2/health/live": _read("Whether the server runs", _record({"live": _FLAG})),
        "/v2/health/ready": ready,
        "/v1/models": _read("The model's name", _record({"models": _TEXTS})),
        "/metrics": _read("Figures for Prometheus", _TEXT, kind="text/plain"),
        "/openapi.json": _read("This document", _ANY),
        "/docs": _read("This document for people", _TEXT, kind="text/html"),
    }


def _models(name: str, revisions: Sequence[str], signature: ModelSignature | None) -> dict[str, Any]:
    ready = _record({"name": _TEXT, "ready": _FLAG})
    infer = _infer(signature), _inferred(signature)
    parts = _infer(signature, binary=False), infer[1]  # events are text
    predict = _predict(signature), _predicted(signature)
    about = _BINARY_TEXT.replace("{rows}", str(signature.max_batch if signature else 4096))
    paths: dict[str, Any] = {
        f"/v1/models/{name}": _read("Whether the model answers", ready, model=True),
        f"/v1/models/{name}:predict": _ask("Predict, version 1", *predict, ""),
    }
    for path, names in ((f"/v2/models/{name}", []), (f"/v2/models/{name}/versions/{{revision}}", revisions)):
        made = {
            path: _read("The model's metadata", _metadata(), model=True),
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
    kind = {"type": "string", "enum": list(names)} if names else _TEXT
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
        "content": {_JSON: {"schema": _record({"error": _TEXT})}},
    }


def _header(words: str) -> dict[str, Any]:
    return {"description": words, "schema": _TEXT}


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
    body = json.dumps(example(signature), ensure_ascii=False).replace("'", "'\\''")
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


def _record(properties: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the schema of an object with all of these properties."""
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def _predict(signature: ModelSignature | None) -> Schema:
    """Return the schema of v1's request."""
    if signature is None:
        return _ANY
    inputs = signature.inputs.values()
    row = _whole({column.name: _nested(column, column.tail) for column in inputs})
    columns = _whole({column.name: _list(_nested(column, column.tail), 1) for column in inputs})
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": signature.max_batch}
    asked = [_record({"instances": rows}), _record({"inputs": columns})]
    asked[0]["properties"]["inputs"] = asked[1]["properties"]["instances"] = False
    return {"anyOf": asked, "example": example(signature)}


def _predicted(signature: ModelSignature | None) -> Schema:
    """Return the schema of v1's answer: by rows or by columns, like its request."""
    if signature is None:
        return _ANY
    outputs = {column.name: _nested(column, column.tail) for column in signature.outputs.values()}
    row = next(iter(outputs.values())) if len(outputs) == 1 else _whole(outputs)
    columns = {name: {"type": "array", "items": kind} for name, kind in outputs.items()}
    rows = {"type": "array", "items": row}
    return {"oneOf": [_whole({"predictions": rows}), _whole({"outputs": _whole(columns)})]}


def _infer(signature: ModelSignature | None, *, binary: bool = True) -> Schema:
    """Return the schema of v2's request. :param binary: whether it may ask for outputs as bytes."""
    if signature is None:
        return _ANY
    tensors = [_tensor(column) for column in signature.inputs.values()]
    masks = [_tensor(mask) for mask in signature.masks.values()]
    number, most = len(tensors), len(tensors) + len(masks)
    more = {"anyOf": masks} if masks else False
    names = {"enum": list(signature.outputs)}
    named = _record({"name": names})
    named["properties"]["parameters"] = _flags("binary_data", binary=binary)
    wanted = {"anyOf": [named, names]}
    inputs = {"type": "array", "prefixItems": tensors, "items": more, "minItems": number, "maxItems": most}
    request = _record({"inputs": inputs})
    request["properties"] |= {
        "id": {"type": ["string", "null"]},
        "outputs": {"anyOf": [{"type": "array", "items": wanted}, *wanted["anyOf"], {"type": "null"}]},
        "parameters": _flags("binary_data_output", binary=binary),
    }
    return request


def _inferred(signature: ModelSignature | None) -> Schema:
    """Return the schema of v2's answer in JSON."""
    output = _record(_DESCRIBED)
    output["properties"] |= {"data": {"type": "array"}, "parameters": _ANY}
    if signature:
        output["properties"]["name"] = {"enum": list(signature.outputs)}
    answer = _record(
        {"model_name": _TEXT, "model_version": _TEXT, "outputs": {"type": "array", "items": output}}
    )
    answer["properties"]["id"] = _TEXT
    return answer


def _metadata() -> Schema:
    """Return the schema of a model's metadata."""
    tensors = {"type": "array", "items": _record(_DESCRIBED)}
    return _record(
        {"name": _TEXT, "versions": _TEXTS, "platform": _TEXT, "inputs": tensors, "outputs": tensors}
    )


def example(signature: ModelSignature) -> dict[str, Any]:
    """Return a valid v1 request of one row."""
    columns = signature.inputs.values()
    return {"instances": [{column.name: _example(column, column.tail) for column in columns}]}


def _whole(properties: Mapping[str, Schema]) -> dict[str, Any]:
    return _record(properties) | {"additionalProperties": False}


def _list(items: Schema, number: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": number, "maxItems": number}


def _nested(column: Column, sizes: Sequence[int]) -> Schema:
    """Return the schema of one row of a column: a value, or nested lists of these sizes."""
    return _list(_nested(column, sizes[1:]), sizes[0]) if sizes else _value(column)


def _tensor(column: Column) -> Schema:
    count = math.prod(column.tail)
    return _record(
        {
            "name": {"const": column.name},
            "datatype": {"const": column.datatype},
            "shape": {"const": [1, *column.tail]},
            "data": _list(_value(column), count),
        }
    )


def _value(column: Column) -> Schema:
    if column.codes is not None and column.fallback is None:
        return {"enum": [*column.codes, *[None] * column.nullable]}
    if column.datatype == "BYTES":
        kind: dict[str, Any] = {"type": "string"}
    elif column.datatype == "BOOL":
        kind = {"type": "boolean"}
    else:
        name = "number" if float in column.accepted else "integer"
        kind = {"type": name, "minimum": column.least, "maximum": column.greatest}
    return kind | {"type": [kind["type"], "null"]} if column.nullable else kind


def _example(column: Column, sizes: Sequence[int]) -> Any:
    return [_example(column, sizes[1:])] * sizes[0] if sizes else column.example


def _flags(name: str, *, binary: bool) -> Schema:
    flag = _FLAG if binary else {"const": False}
    return {"type": ["object", "null"], "properties": {name: flag}}

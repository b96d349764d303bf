"""The OpenAPI document of a model server (https://spec.openapis.org/oas/v3.1.0), for the model that it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster_serving import schemas
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

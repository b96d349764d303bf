"""What kubeconform holds the chart to, without a network: the schemas that the programs of the test cluster come with.

Kubernetes' own kinds are described in the OpenAPI document of its module, the others in their modules' definitions
(CustomResourceDefinition). Each is written as one JSON schema that knows every field, so that an unknown one is refused.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import golang
from tests.cluster.programs import go_environment

Schema = dict[str, Any]

NAMING = "{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json"  # as kubeconform fills it in

_DEFINED = {
    "kueue": ("sigs.k8s.io/kueue", "config/components/crd/bases/*.yaml"),
    "kserve": ("github.com/kserve/kserve", "config/crd/full/*.yaml"),
    "prometheus-operator": (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/*_servicemonitors.yaml",
        "example/prometheus-operator-crd/*_prometheusrules.yaml",
    ),
}
_OPEN = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"}
_LOOSE = {  # what the API server takes beside what its description says
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}


def write(folder: Path, programs: Path) -> Path:
    """Write a schema for every kind into a folder, and return it."""
    cache = programs.parent
    for kind, group, version, schema in (*_own(cache), *_defined(cache)):
        (folder / f"{kind.lower()}-{group or version}-{version}.json").write_text(json.dumps(schema))
    return folder


def _own(cache: Path) -> Iterator[tuple[str, str, str, Schema]]:
    path = _module("kubernetes", "k8s.io/kubernetes", cache) / "api" / "openapi-spec" / "swagger.json"
    definitions = {**json.loads(path.read_text())["definitions"], **_LOOSE}
    strict = {name: _strict(schema) for name, schema in definitions.items()}
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            if not kind["kind"].endswith(("List", "Options")):
                whole = {"$ref": f"#/definitions/{name}", "definitions": _needed(name, strict)}
                yield kind["kind"], kind["group"], kind["version"], whole


def _defined(cache: Path) -> Iterator[tuple[str, str, str, Schema]]:
    for name, (module, *patterns) in _DEFINED.items():
        folder = _module(name, module, cache)
        for path in (path for pattern in patterns for path in folder.glob(pattern)):
            for found in yaml.safe_load_all(path.read_text()):
                if found and found["kind"] == "CustomResourceDefinition":
                    for version in found["spec"]["versions"]:
                        schema = _strict(version["schema"]["openAPIV3Schema"])
                        schema["properties"]["metadata"] = {"type": "object"}
                        yield found["spec"]["names"]["kind"], found["spec"]["group"], version["name"], schema


def _module(folder: str, module: str, cache: Path) -> Path:
    command = [golang.command(cache), "mod", "download", "-json", module]
    done = subprocess.run(
        command, cwd=golang.GO / folder, env=go_environment(cache), capture_output=True, text=True, check=True
    )
    return Path(json.loads(done.stdout)["Dir"])


def _strict(schema: Any) -> Any:
    """Know no other fields than those that are named."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _strict(value) for name, value in schema.items() if name not in ("default", "format")}
    if schema.get("x-kubernetes-int-or-string"):
        made = {"type": ["string", "number"]}
    elif "properties" in schema and not _OPEN & schema.keys():
        made["additionalProperties"] = False
    return made


def _needed(name: str, definitions: dict[str, Schema]) -> dict[str, Schema]:
    """The definitions that one is made of, itself among them."""
    found: dict[str, Schema] = {}
    wanted = [name]
    while wanted:
        each = wanted.pop()
        if each not in found:
            found[each] = definitions[each]
            wanted += [reference.rpartition("/")[2] for reference in _references(definitions[each])]
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)

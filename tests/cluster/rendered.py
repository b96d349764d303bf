"""The kinds and webhooks that programs bring, rendered once from their modules into the cache.

Their managers run as programs of the machine, so a webhook is asked by address instead of by Service.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import golang
from tests.cluster.programs import PROGRAMS, SERVING, go_environment

Document = dict[str, Any]
_KEPT = ("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
# Where each program's objects are: a kustomization, of which these kinds are kept, or files that are taken whole.
_BRINGS = {
    "jobset": (("sigs.k8s.io/jobset", "config/default"),),
    "kueue": (("sigs.k8s.io/kueue", "config/default"),),
    "kserve": (
        ("github.com/kserve/kserve", "config/default"),
        ("github.com/kserve/kserve", "config/configmap/inferenceservice.yaml"),
    ),
    "traefik": (("sigs.k8s.io/gateway-api", "config/crd/standard"),),
}


def documents(module: str, programs: Path, *, port: int, authority: str) -> list[Document]:
    """Return the objects that one program needs, its webhooks at a port of loopback.

    :param authority: the certificate that webhooks are trusted by, in base64.
    """
    found: list[Document] = json.loads(render(module, programs).read_text())
    for client in (client for document in found for client in _clients(document)):
        service = client.pop("service")
        client |= {"url": f"https://127.0.0.1:{port}{service.get('path', '')}", "caBundle": authority}
    return found


def render(module: str, programs: Path) -> Path:
    """Write a program's objects to the cache, if they are not there, and return the file."""
    program = next(program for program in (*PROGRAMS, *SERVING) if program.module == module)
    path = programs.parent / "rendered" / f"{module}-{program.digest()}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        found = [
            document
            for of, place in _BRINGS[module]
            for document in _read(_module_folder(module, of, programs.parent) / place, programs)
        ]
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(found))
        partial.replace(path)
    return path


def _read(place: Path, programs: Path) -> list[Document]:
    if (place / "kustomization.yaml").exists():
        command = [str(programs / "kubectl"), "kustomize", str(place)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found["kind"] in _KEPT]
    files = sorted(place.glob("*.yaml")) if place.is_dir() else [place]
    return [found for file in files for found in yaml.load_all(file.read_text(), yaml.CSafeLoader) if found]


def _module_folder(module: str, path: str, cache: Path) -> Path:
    command = [golang.command(cache), "mod", "download", "-json", path]
    done = subprocess.run(
        command, cwd=golang.GO / module, env=go_environment(cache), capture_output=True, text=True, check=True
    )
    return Path(json.loads(done.stdout)["Dir"])


def _clients(document: Document) -> Iterator[Document]:
    """Where the API server is told whom to ask."""
    for webhook in document.get("webhooks", ()):
        yield webhook["clientConfig"]
    conversion = document.get("spec", {}).get("conversion", {})
    if "webhook" in conversion:
        yield conversion["webhook"]["clientConfig"]

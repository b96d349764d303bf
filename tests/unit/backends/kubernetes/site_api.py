"""An API server that serves the objects of a small site, at the edge of HTTP, and refuses what it is told to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.furniture import objects
from tests.unit.backends.kubernetes.api_server import Answer, ApiServer, Asked, api_server, status
from tests.unit.backends.kubernetes.site_objects import NODES, QUEUES, claim

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.kinds import Document, Kind

NAMESPACE = "muster-jobs"
KINDS = {
    (each.path().rpartition("/")[0], each.plural): each
    for each in vars(kinds).values()
    if isinstance(each, Kind)
}
_PATH = re.compile(
    r"(?P<head>/api/v1|/apis/[^/]+/[^/]+)(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(/(?P<name>[^/]+))?(/(?P<sub>[^/]+))?\Z"
)


@dataclass
class SiteApi:
    """What there is, and what may not be read.

    :param missing: kinds that the cluster does not serve; `away` those whose own server does not answer.
    :param refused: verbs and resources that access control refuses, such as ``list pods``; in the whole
        cluster ``list pods!``.
    :param places: what waits in each queue, as Kueue tells it.
    :param unasked: queues of which it tells no places, and calls the question bad.
    :param dry_run: the answer to whatever is to be made, if it is refused.
    """

    documents: list[Document] = field(default_factory=list)
    missing: set[Kind] = field(default_factory=set)
    away: set[Kind] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    places: dict[str, list[str]] = field(default_factory=dict)
    unasked: set[str] = field(default_factory=set)
    dry_run: Answer | None = None

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if asked.path == "/apis":
            return Answer(body=self._discovery())
        if asked.path == "/readyz":
            return Answer(body=b"ok")
        if asked.path == "/version":
            return Answer(body={"gitVersion": "v1.37.0"})
        if asked.path.endswith("/selfsubjectaccessreviews"):
            return Answer(code=201, body=self._review(asked.body["spec"]["resourceAttributes"]))
        if asked.method == "POST":
            return self.dry_run or Answer(code=201, body=asked.body)
        return self._read(asked)

    def _read(self, asked: Asked) -> Answer:
        match = _PATH.match(asked.path)
        assert match, asked.path
        kind, namespace, name = KINDS[match["head"], match["plural"]], match["namespace"], match["name"]
        if kind in self.away:
            return status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        verb = "get" if name else "list"
        if (verb, kind.resource if namespace else f"{kind.resource}!") in self.refused:
            return self._forbidden(kind, verb, namespace)
        if match["sub"] == "pendingworkloads":
            if name in self.unasked:
                return status(400, "BadRequest", f"invalid name {name!r}")
            return Answer(body={"items": self._pending(name)})
        return self._one(kind.name, name) if name else self._list(kind, namespace, asked)

    def _list(self, kind: Kind, namespace: str | None, asked: Asked) -> Answer:
        wanted = asked.query.get("labelSelector", "")
        found = [
            each
            for each in self.documents
            if (each["apiVersion"], each["kind"]) == (kind.api_version, kind.name)
            and namespace in (None, each["metadata"].get("namespace"))
            and _selected(each["metadata"].get("labels") or {}, wanted)
        ]
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": found})

    def _one(self, kind: str, name: str) -> Answer:
        for each in self.documents:
            if each["kind"] == kind and each["metadata"]["name"] == name:
                return Answer(body=each)
        return status(404, "NotFound", f'"{name}" not found', name=name)

    def _pending(self, queue: str) -> list[Document]:
        return [
            {"metadata": {"name": name, "namespace": NAMESPACE}, "positionInLocalQueue": position}
            for position, name in enumerate(self.places.get(queue, ()))
        ]

    def _forbidden(self, kind: Kind, verb: str, namespace: str | None) -> Answer:
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        said = (
            f'{kind.plural} is forbidden: User "ann" cannot {verb} resource "{kind.plural}" in API group '
            f'"{kind.group}" {where}'
        )
        return status(403, "Forbidden", said, kind=kind.plural, group=kind.group)

    def _review(self, attributes: dict[str, str]) -> Document:
        resource = ".".join(filter(None, (attributes["resource"], attributes["group"])))
        resource += "" if "namespace" in attributes else "!"
        return {"status": {"allowed": (attributes["verb"], resource) not in self.refused}}

    def _discovery(self) -> Document:
        groups: dict[tuple[str, str], list[Document]] = {}
        for kind in KINDS.values():
            if kind.group and kind not in self.missing:
                group, _, version = kind.api_version.partition("/")
                groups.setdefault((group, version), []).append({"resource": kind.plural})
        return {
            "items": [
                {"metadata": {"name": group}, "versions": [{"version": version, "resources": found}]}
                for (group, version), found in groups.items()
            ]
        }


def _selected(labels: dict[str, str], wanted: str) -> bool:
    for part in filter(None, wanted.split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def site_documents() -> list[Document]:
    """The nodes, queues, flavors, priorities and the claim of the test cluster."""
    metadata = {"name": "muster-jobs"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "status": {"phase": "Active"}}
    return [namespace, claim("ReadWriteMany"), *objects(*QUEUES), *NODES]


@contextmanager
def site_api(*more: Document) -> Iterator[tuple[SiteApi, ApiServer]]:
    """Serve the site, and `more` objects in it."""
    site = SiteApi(documents=[*site_documents(), *more])
    with api_server(site.answer) as server:
        yield site, server


def kubeconfig(path: Path, host: str) -> Path:
    """Write how to reach a server."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": host}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def moved(documents: Iterable[Document], **metadata: Any) -> list[Document]:
    """Return copies of objects with other metadata."""
    return [{**each, "metadata": {**each["metadata"], **metadata}} for each in documents]

"""A cluster that keeps objects as an API server does, and runs nothing: what its pods do, a test does."""

from __future__ import annotations

import itertools
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.furniture import objects
from tests.unit.backends.kubernetes.api_server import Answer, Asked, status
from tests.unit.backends.kubernetes.site_objects import NODES, QUEUES, claim

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.kinds import Kind

Document = dict[str, Any]
NAMESPACE = "muster-jobs"

_KINDS = [each for each in vars(kinds).values() if isinstance(each, Kind)]
_REQUIREMENT = re.compile(r"(?P<key>[^,=() ]+)(?:=(?P<value>[^,]*)| in \((?P<values>[^)]*)\))?(?:,|$)")
KUEUE = frozenset(each for each in _KINDS if "kueue.x-k8s.io" in each.group)
BARE = KUEUE | {kinds.JOB_SET, kinds.POD_GROUP}
_VERBS = {"POST": "create", "DELETE": "delete", "PUT": "update", "PATCH": "patch"}


@dataclass
class FakeCluster:
    """Answers requests from what it holds.

    :param away: nothing is answered.
    :param starts: it has not read the cluster's roles so far, and forbids everything.
    :param forbidden: verbs and kinds that this account may not.
    :param unanswered: verbs and kinds of which nothing is answered.
    :param busy: verbs and names of objects to which it answers 503.
    :param missing: kinds that it does not serve.
    :param collects: what has lost its owner goes at once, else with :meth:`collect`.
    """

    objects: dict[tuple[str, str], Document] = field(default_factory=dict)
    away: bool = False
    starts: bool = False
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    unanswered: set[tuple[str, str]] = field(default_factory=set)
    busy: set[tuple[str, str]] = field(default_factory=set)
    missing: frozenset[Kind] = frozenset()
    collects: bool = True
    made: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        for document in (space, *objects(*QUEUES), *NODES, claim("ReadWriteMany")):
            self.put(document)

    def __call__(self, asked: Asked) -> Answer:
        if self.away:
            return Answer(code=0)
        if asked.path in ("/apis", "/readyz"):
            return self._about_itself(asked.path)
        kind, name, _ = _read(asked.path)
        if self.starts:
            return _forbidden(_VERBS.get(asked.method) or _reading(asked, name), kind)
        if kind in self.missing:
            return Answer(404, b"404 page not found\n")
        if kind is kinds.ACCESS_REVIEW:
            about = asked.body["spec"]["resourceAttributes"]
            return Answer(
                body={"status": {"allowed": (about["verb"], about["resource"]) not in self.forbidden}}
            )
        verb = _VERBS.get(asked.method) or _reading(asked, name)
        if self.busy and (verb, name or (asked.body or {}).get("metadata", {}).get("name")) in self.busy:
            return status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if (verb, kind.plural) in self.unanswered:
            return Answer(code=0)
        if (verb, kind.plural) in self.forbidden:
            return _forbidden(verb, kind)
        if verb == "watch":
            return Answer(hold=self.closing)
        with self._lock:
            return self._answer(verb, kind, name, asked)

    def _about_itself(self, path: str) -> Answer:
        if self.starts:
            return status(403, "Forbidden", f'forbidden: User "muster" cannot get path "{path}"')
        return Answer(body=_groups(self.missing) if path == "/apis" else b"ok")

    def put(self, document: Document) -> Document:
        """Have an object, as a controller or a test makes it."""
        metadata = document["metadata"]
        number = str(next(self._numbers))
        metadata = {
            "uid": f"uid-{number}",
            "creationTimestamp": "2026-11-21T20:00:00Z",
            **metadata,
            "resourceVersion": number,
        }
        plural = next(each.plural for each in _KINDS if each.name == document["kind"])
        kept = {**document, "metadata": metadata}
        self.objects[plural, metadata["name"]] = kept
        return kept

    def all(self, kind: Kind) -> list[Document]:
        """What it holds of a kind."""
        return [each for (plural, _), each in sorted(self.objects.items()) if plural == kind.plural]

    def _answer(self, verb: str, kind: Kind, name: str | None, asked: Asked) -> Answer:
        if verb == "list":
            return self._listed(kind, asked.query.get("labelSelector", ""))
        if verb == "create":
            return self._created(kind, asked)
        assert name is not None
        found = self.objects.get((kind.plural, name))
        if found is None:
            return status(404, "NotFound", f"{kind.resource} {name!r} not found", name=name, kind=kind.plural)
        if verb == "delete":
            wanted = (asked.body.get("preconditions") or {}).get("uid")
            if wanted not in (None, found["metadata"]["uid"]):
                return status(409, "Conflict", "the UID in the precondition does not match")
            if asked.body["propagationPolicy"] == "Foreground" and not self.collects:
                found["metadata"]["deletionTimestamp"] = "2026-11-21T20:30:00Z"
            else:
                self.remove(found, kind)
        return Answer(body=found)

    def _listed(self, kind: Kind, selector: str) -> Answer:
        wanted = [each.groupdict() for each in _REQUIREMENT.finditer(selector)]
        items = [each for each in self.all(kind) if _matches(each, wanted)]
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": items})

    def _created(self, kind: Kind, asked: Asked) -> Answer:
        name = asked.body["metadata"]["name"]
        if (kind.plural, name) in self.objects:
            return status(409, "AlreadyExists", f"{kind.resource} {name!r} already exists", name=name)
        if asked.query.get("dryRun"):
            return Answer(201, asked.body)
        self.made.append(f"{kind.name} {name}")
        made = self.put(asked.body)
        if self.collects:
            self.collect()
        return Answer(201, made)

    def remove(self, document: Document, kind: Kind) -> None:
        """Take an object away with all that it owns."""
        del self.objects[kind.plural, document["metadata"]["name"]]
        if self.collects:
            self.collect()

    def collect(self) -> None:
        """Take away what is being deleted or has lost its owner, as the garbage collector does when it comes to it."""
        for key in [key for key, each in self.objects.items() if "deletionTimestamp" in each["metadata"]]:
            del self.objects[key]
        uids = {each["metadata"]["uid"] for each in self.objects.values()}
        lost = [
            key
            for key, each in self.objects.items()
            if any(owner["uid"] not in uids for owner in each["metadata"].get("ownerReferences") or ())
        ]
        for key in lost:
            del self.objects[key]
        if lost:
            self.collect()


def _groups(missing: frozenset[Kind]) -> Document:
    """What is served, as aggregated discovery tells it."""
    items, served = [], [each for each in _KINDS if each not in missing]
    for api_version in sorted({each.api_version for each in served if each.group}):
        group, _, version = api_version.partition("/")
        plurals = [{"resource": each.plural} for each in served if each.api_version == api_version]
        items.append({"metadata": {"name": group}, "versions": [{"version": version, "resources": plurals}]})
    return {"items": items}


def _read(path: str) -> tuple[Kind, str | None, str]:
    """Say what a path is about: its kind, name and subresource."""
    parts = path.strip("/").split("/")
    version, rest = ("/".join(parts[1:3]), parts[3:]) if parts[0] == "apis" else (parts[1], parts[2:])
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    kind = next(each for each in _KINDS if each.api_version == version and each.plural == rest[0])
    return kind, rest[1] if len(rest) > 1 else None, rest[2] if len(rest) > 2 else ""


def _reading(asked: Asked, name: str | None) -> str:
    if asked.query.get("watch") == "true":
        return "watch"
    return "list" if name is None else "get"


def _matches(document: Document, wanted: list[dict[str, str | None]]) -> bool:
    labels = document["metadata"].get("labels") or {}
    return all(
        each["key"] in labels
        and each["value"] in (None, labels[each["key"]])
        and (each["values"] is None or labels[each["key"]] in each["values"].split(","))
        for each in wanted
    )


def _forbidden(verb: str, kind: Kind) -> Answer:
    said = (
        f'{kind.resource} is forbidden: User "muster" cannot {verb} resource "{kind.plural}" '
        f'in API group "{kind.group}" in the namespace "{NAMESPACE}"'
    )
    return status(403, "Forbidden", said, kind=kind.plural)

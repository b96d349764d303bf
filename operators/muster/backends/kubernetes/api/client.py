"""A thin client of the Kubernetes API: documents in and out, errors in muster's own words.

Every call may raise :class:`~muster.core.errors.Forbidden`, whose message names the rule that a role
lacks, and :class:`~muster.core.errors.Unreachable` when patience has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.backends.kubernetes.api.kinds import ACCESS_REVIEW, Document, Kind, Read, kind_of
from muster.backends.kubernetes.api.refusals import ApiRequest, Expired
from muster.backends.kubernetes.api.transport import JSON, Transport
from muster.core.errors import BackendError, Conflict, NotFound

CHUNK = 500

_MANAGER = "muster"  # of fields that we apply
_APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
_MERGE_PATCH = "application/merge-patch+json"
_HEADS = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Client(Transport):
    """Reads and writes objects of one cluster. Safe to share between threads.

    :param access: what :func:`~muster.backends.kubernetes.api.access.connect` returns, or of a client that
        Airflow's ``KubernetesHook`` configured, :func:`~muster.backends.kubernetes.api.access.access_of`.
    :param patience_seconds: how long it goes on asking an API server that is away.
    """

    def patient(self, seconds: float) -> Client:
        """Return a client of the same connection that goes on asking for so long."""
        return replace(self, patience_seconds=seconds)

    def get(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Document | None:
        """Return an object, None where there is none of that name."""
        request = ApiRequest(verb="get", kind=kind, name=name, namespace=namespace, subresource=subresource)
        try:
            return self._ask(request, query=query)
        except NotFound:
            return None

    def find(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        heads: bool = False,
    ) -> tuple[Document, ...]:
        """Return all objects that the selectors match; of the whole cluster where no namespace is given.

        :param heads: only their metadata, which is a tenth of them.
        """
        return self.snapshot(kind, namespace=namespace, labels=labels, fields=fields, heads=heads)[0]

    def snapshot(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        heads: bool = False,
        read: Read | None = None,
    ) -> tuple[tuple[Document, ...], str]:
        """Return what :meth:`find` does, and the version of the list, from which a watch goes on.

        :param read: chooses what is kept of each object; all of it if it is not given.
        """
        request = ApiRequest(verb="list", kind=kind, namespace=namespace)
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(CHUNK), "continue": ""}
        # A list's items do not say what they are: its head does.
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        found: list[Document] = []
        while True:
            try:
                asked = {name: text for name, text in query.items() if text}
                chunk = self._ask(request, query=asked, accept=_HEADS if heads else JSON, read=read)
            except Expired:  # so much has changed between two chunks that they would not fit together
                found, query["continue"] = [], ""
                continue
            if "metadata" not in chunk:
                raise BackendError(f"{request}: the answer is no list; is there a proxy in between?")
            found += [{**head, **item} for item in chunk.get("items") or ()]
            query["continue"] = chunk["metadata"].get("continue") or ""
            if not query["continue"]:
                return tuple(found), str(chunk["metadata"].get("resourceVersion", ""))

    def create(self, document: Document, *, dry_run: bool = False) -> Document:
        """Make an object and return it as it is stored.

        :param dry_run: the API server and its webhooks check it whole, and store nothing.
        :raises Conflict: there is one of that name.
        :raises SpecError: it is refused; the message names the fields.
        """
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self._ask(_about("create", document), query=query, body=document)

    def apply(self, document: Document) -> Document:
        """Set an object's fields as in `document`, also where another field manager owns them; all other fields stay.

        A ``resourceVersion`` in it is the one that the object must still have.

        :raises Conflict: it has another by now.
        :raises SpecError: it is refused; the message names the fields.
        """
        query = {"fieldManager": _MANAGER, "force": "true", "fieldValidation": "Strict"}
        return self._ask(_about("patch", document), query=query, body=document, content_type=_APPLY_PATCH)

    def patch(
        self,
        kind: Kind,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str = "",
    ) -> Document:
        """Merge `change` into an object; None removes a field. :raises NotFound: there is none."""
        request = ApiRequest(verb="patch", kind=kind, name=name, namespace=namespace, subresource=subresource)
        return self._ask(request, body=dict(change), content_type=_MERGE_PATCH)

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        propagation: str = "Background",
        grace_seconds: int | None = None,
        uid: str | None = None,
        version: str | None = None,
    ) -> bool:
        """Begin to delete an object and what it owns; whether there was one. Idempotent.

        :param propagation: ``Foreground`` keeps the object until all that it owns is gone.
        :param uid: only the object of that uid: another of the same name is left alone.
        :param version: the ``resourceVersion`` that it must still have.
        :raises Conflict: it has another by now.
        """
        options: Document = {"propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        expected = {"uid": uid, "resourceVersion": version}
        if preconditions := {name: text for name, text in expected.items() if text is not None}:
            options["preconditions"] = preconditions
        try:
            self._ask(ApiRequest(verb="delete", kind=kind, name=name, namespace=namespace), body=options)
        except NotFound:
            return False
        except Conflict:
            if uid is None or version is not None:
                raise
            return False
        return True

    def allowed(self, verb: str, kind: Kind, *, namespace: str | None = None, subresource: str = "") -> bool:
        """Whether these credentials may do that."""
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": subresource}
        if namespace is not None:
            attributes["namespace"] = namespace
        review = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._ask(ApiRequest(verb="create", kind=ACCESS_REVIEW), body=review)
        return bool(answer["status"].get("allowed"))

    def version(self) -> str:
        """Return the API server's version, such as ``v1.37.0``; every authenticated user may read it."""
        return str(self._ask(ApiRequest(verb="get"), path="/version").get("gitVersion", "?"))

    def served(self) -> frozenset[tuple[str, str]]:
        """Return everything that the API server serves: ``("batch/v1", "jobs")``. One request."""
        answer = self._ask(ApiRequest(verb="get"), path="/apis", accept=_DISCOVERY)
        return frozenset(
            (f"{group['metadata']['name']}/{version['version']}", resource["resource"])
            for group in answer.get("items") or ()
            for version in group.get("versions") or ()
            for resource in version.get("resources") or ()
        )

    def _ask(self, request: ApiRequest, *, read: Read | None = None, **how: Any) -> Document:
        data = self.ask(request, **how)
        try:
            document = json.loads(data, object_hook=read)
        except ValueError as error:
            raise BackendError(
                f"{request}: the answer is no JSON: {data[:80]!r}; is there a proxy in between?"
            ) from error
        return document if isinstance(document, dict) else {}


def _about(verb: str, document: Document) -> ApiRequest:
    metadata = document["metadata"]
    return ApiRequest(
        verb=verb, kind=kind_of(document), name=metadata["name"], namespace=metadata.get("namespace")
    )

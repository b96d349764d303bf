"""Turns what an API server refuses into one of muster's errors: the only place that does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.backends.kubernetes.api.kinds import Kind
from muster.core.errors import (
    BackendError,
    Conflict,
    Forbidden,
    MusterError,
    NotFound,
    SpecError,
    Unreachable,
)
from muster.core.text import one_line

# Answers that a later try may not get: a server that starts, is overloaded, or has lost its leader.
_PASSING = frozenset({429, 500, 502, 503, 504})

_RBAC = re.compile(r'User "([^"]*)" cannot (\w+) resource "([^"]*)" in API group "([^"]*)"')
_RBAC_PATH = re.compile(r'User "([^"]*)" cannot (\w+) path "([^"]*)"')
_WEBHOOK_DOWN = re.compile(r'failed calling webhook "([^"]*)"(.*)', re.DOTALL)
_WEBHOOK_NO = re.compile(r'admission webhook "([^"]*)" denied the request: (.*)', re.DOTALL)
_HOST = re.compile(r"https://([^/:]+)")
_OWNERS = {"kueue": "Kueue", "jobset": "JobSet", "kserve": "KServe", "seldon": "Seldon Core"}
_CAUSES_SHOWN = 3
_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}

Status = Mapping[str, Any]


class Expired(BackendError):
    """The API server no longer knows the version of the list that was asked for: list again."""


class NotServed(SpecError):
    """The API server knows no objects of that kind."""


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """What was asked of the API server, in the words of a Role."""

    verb: str
    kind: Kind | None = None
    name: str | None = None
    namespace: str | None = None
    subresource: str = ""

    @property
    def method(self) -> str:
        """The HTTP method of its verb."""
        return _METHODS[self.verb]

    @property
    def path(self) -> str:
        """Where it is sent to."""
        assert self.kind is not None
        name = None if self.verb == "create" else self.name
        return self.kind.path(namespace=self.namespace, name=name, subresource=self.subresource)

    def __str__(self) -> str:
        """For the start of a message: ``create jobsets.jobset.x-k8s.io tr1 in namespace ml``."""
        what = self.kind.resource if self.kind else "the API's groups"
        name = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{'/' + self.subresource if self.subresource else ''}{name}{where}"


def refusal(request: ApiRequest, code: int, status: Status) -> MusterError:
    """Return the error for an answer of `code` whose body was `status`, a ``Status`` of ``v1``."""
    said = one_line(str(status.get("message") or "")) or f"HTTP {code}"
    if down := _WEBHOOK_DOWN.search(said):
        return _webhook_down(request, *down.groups())
    if denied := _WEBHOOK_NO.search(said):
        return SpecError(f"{request}: webhook {denied[1]} refuses it: {denied[2]}")
    if special := _SPECIAL.get(code):
        return special(request, status, said)
    if plain := _PLAIN.get(code):
        return plain(f"{request}: {said}")
    kind = Unreachable if code in _PASSING else BackendError
    return kind(f"{request}: the API server answers HTTP {code}: {said}")


def read_status(body: bytes) -> Status:
    """Return the ``Status`` that an answer holds; its text where something in between has answered."""
    text = body.decode("utf-8", "replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    return status if isinstance(status, dict) else {"message": text}


def _webhook_down(request: ApiRequest, webhook: str, how: str) -> MusterError:
    return Unreachable(
        f"{request}: {_owner(how)}webhook {webhook} does not answer, so the API server admits nothing "
        f"({how.lstrip(': ')}); nothing was made: see that its pods run, then try again"
    )


def _owner(how: str) -> str:
    """Name whose webhook it is by the Service that was asked: their names are often the same."""
    host = _HOST.search(how)
    return next((f"{owner}'s " for part, owner in _OWNERS.items() if host and part in host[1]), "")


def _unauthorized(request: ApiRequest, _status: Status, said: str) -> MusterError:
    return Forbidden(
        f"{request}: the API server does not accept these credentials ({said}): "
        "renew the kubeconfig's, or the service account's token"
    )


def _forbidden(request: ApiRequest, status: Status, said: str) -> MusterError:
    if rights := _RBAC.search(said):
        return _no_rights(request, *rights.groups())
    if path := _RBAC_PATH.search(said):
        user, verb, where = path.groups()
        return Forbidden(f"{user} may not {verb} {where}: bind it to the ClusterRole system:discovery")
    if "not yet ready to handle request" in said:  # admission, in an API server that starts
        return Unreachable(f"{request}: the API server is not ready: {said}")
    reasons = {str(cause.get("reason")) for cause in _causes(status)}
    if "NamespaceTerminating" in reasons or "because it is being terminated" in said:
        return SpecError(
            f"{request}: namespace {request.namespace} is being deleted and takes nothing new: "
            "use another, or make it again when it is gone"
        )
    if "exceeded quota" in said:
        return BackendError(f"{request}: the namespace's ResourceQuota is used up: {said}")
    return SpecError(f"{request}: the cluster does not admit it: {said}")


def _no_rights(request: ApiRequest, user: str, verb: str, resource: str, group: str) -> MusterError:
    role, where = "ClusterRole", " in the whole cluster"
    if request.namespace:
        role, where = "Role", f" in namespace {request.namespace}"
    return Forbidden(
        f"{user} may not {verb} {resource}{where}: give it a {role} with "
        f'apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]'
    )


def _not_found(request: ApiRequest, status: Status, said: str) -> MusterError:
    details = status.get("details") or {}
    if details.get("kind") == "namespaces":
        return SpecError(
            f"{request}: the cluster has no namespace {request.namespace or request.name}: make it, or name another"
        )
    if not details.get("name") and request.kind is not None:
        return NotServed(
            f"{request}: the cluster serves no {request.kind.name} of {request.kind.api_version}: install it"
        )
    return NotFound(f"{request}: {said}")


def _invalid(request: ApiRequest, status: Status, said: str) -> MusterError:
    causes = [f"{each.get('field')}: {each.get('message')}" for each in _causes(status) if each.get("field")]
    more = len(causes) - _CAUSES_SHOWN
    text = "; ".join(causes[:_CAUSES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return SpecError(f"{request}: the API server refuses it: {text or said}")


def _causes(status: Status) -> list[Mapping[str, Any]]:
    return list((status.get("details") or {}).get("causes") or ())


_SPECIAL = {
    400: _invalid,
    401: _unauthorized,
    403: _forbidden,
    404: _not_found,
    413: _invalid,
    422: _invalid,
}
_PLAIN = {409: Conflict, 410: Expired}

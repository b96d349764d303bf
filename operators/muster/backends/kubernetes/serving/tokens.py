"""The tokens of a deployment's clients on a cluster: a ConfigMap that goes with its route.

It holds digests of random words, which tell nothing; so it is no Secret, and no account needs a right to read Secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import CONFIG_MAP, Document
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.route import route_kind
from muster.backends.kubernetes.serving.server import whose
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.tokens import Tokens
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.core.wire import dumps, loads

FILE = "tokens.json"  # muster_serving.clients_file reads it
_TRIES, _PAUSE_SECONDS = 20, 0.25


class ClientTokens:
    """The tokens of one namespace's deployments. Safe to share between threads."""

    def __init__(
        self, client: Client, site: ClusterSite, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._site = site
        self._sleep = sleep

    def of(self, name: str) -> Tokens:
        """Return a deployment's. :raises NotFound: there is none; :raises Corrupt: they cannot be read."""
        return _read(name, self._found(name, self._route(name)))

    def change(self, name: str, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change them in one step, and return them as they are then.

        :raises NotFound: there is no such deployment; :raises Conflict: others write them all the time.
        """
        for _ in range(_TRIES):
            route = self._route(name)
            found = self._found(name, route)
            after = change(_read(name, found))
            document = self._document(name, after, route)
            try:
                if found is None:
                    self._client.create(document)
                else:
                    document["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                    self._client.apply(document)
            except Conflict:  # another writer was first, or what went with an earlier route is still there
                self._sleep(_PAUSE_SECONDS)
            else:
                return after
        raise Conflict(f"the tokens of {name} are written by others all the time: try again")

    def _route(self, name: str) -> Document:
        route = self._client.get(
            route_kind(self._site), names.route_name(name), namespace=self._site.namespace
        )
        if route is None or route["metadata"].get("deletionTimestamp"):
            raise NotFound(f"no deployment {name!r}")
        return route

    def _found(self, name: str, route: Document) -> Document | None:
        """The ConfigMap that goes with this route; one of an earlier route is about to be deleted."""
        found = self._client.get(CONFIG_MAP, names.tokens_name(name), namespace=self._site.namespace)
        owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
        return found if any(each["uid"] == route["metadata"]["uid"] for each in owners) else None

    def _document(self, name: str, tokens: Tokens, route: Document) -> Document:
        kind = route_kind(self._site)
        owner = whose({**route, "apiVersion": kind.api_version, "kind": kind.name})
        return {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.name,
            "metadata": {
                "name": names.tokens_name(name),
                "namespace": self._site.namespace,
                "labels": names.of_deployment(name),
                "ownerReferences": [owner],
            },
            "data": {FILE: dumps(tokens)},
        }


def _read(name: str, found: Document | None) -> Tokens:
    if found is None:
        return Tokens()
    try:
        return loads(Tokens, str((found.get("data") or {}).get(FILE)))
    except SpecError as error:
        raise Corrupt(
            f"the tokens of {name} cannot be read ({error}): delete the ConfigMap {found['metadata']['name']}, and make "
            "each client's token anew"
        ) from error

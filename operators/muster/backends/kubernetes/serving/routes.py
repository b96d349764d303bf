"""Reads and writes routes, each write only where the route still is as it was when it was read.

The tokens of a deployment's clients go with its route, in a ConfigMap: it holds digests of random words, which tell
nothing, so it is no Secret, and no account needs a right to read Secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import CONFIG_MAP, EVENT, Document, Kind, owned_by
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.route import (
    Notes,
    Route,
    other_kind,
    read_route,
    route_kind,
    write_route,
)
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.tokens import Tokens
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError, Unreachable
from muster.core.names import check_label
from muster.core.wire import dumps, loads

TAKEN_UP_SECONDS, _LOOK_SECONDS = 10.0, 0.05
_MESSAGE_CHARACTERS = 1000  # an Event's may have 1024
_REPORTS = 20  # of a gateway that come in between a look and a write
_TOKENS_FILE = "tokens.json"  # muster_serving.clients reads it
_TRIES, _PAUSE_SECONDS = 20, 0.25  # of a write of tokens


@dataclass(eq=False)
class Routes:
    """The routes of one namespace. Safe to share between threads."""

    client: Client
    site: ClusterSite
    _: KW_ONLY
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    @property
    def _kind(self) -> Kind:
        return route_kind(self.site)

    def find(self, name: str, *, spoiled: Notes | None = None) -> Route | None:
        """Return a deployment's route. :raises BackendError: what is there by its name is not one.

        :param spoiled: replaces its notes where they were damaged.
        """
        found = self._object(name)
        return None if found is None else read_route(found, name=name, site=self.site, spoiled=spoiled)

    def _object(self, name: str) -> Document | None:
        """Return the object of a deployment's route; None where it does not exist or is being deleted."""
        found = self.client.get(self._kind, names.route_name(name), namespace=self.site.namespace)
        return None if found is None or found["metadata"].get("deletionTimestamp") else found

    def check_only(self, name: str) -> None:
        """Refuse a deployment that is served by a route of the other kind: users are sent to its revisions by that.

        :raises SpecError: it is.
        """
        other, called, place = other_kind(self.site), names.route_name(name), self.site.namespace
        found = self.client.get(other, called, namespace=place)
        labels = (found["metadata"].get("labels") or {}) if found else {}
        if labels.get(names.DEPLOYMENT) == name and names.REVISION not in labels:
            then, now = ("without", "with") if self.site.gateway else ("with", "without")
            raise SpecError(
                f"deployment {name} is served by {other.name} {called} in namespace {place}, as it was {then} a "
                f"Gateway, and not {now} one: retire it with the settings of then (gateway, serving_url), or deploy "
                "under another name and move its users"
            )

    def names(self) -> list[str]:
        """Return every deployment's name, sorted."""
        return sorted({_whose(each) for each in self._listed(names.DEPLOYMENT, heads=True)})

    def all(self, wanted: Collection[str] | None = None) -> dict[str, Route | Corrupt]:
        """Return every deployment's route, or those of them, by name: with one request.

        A route with unreadable notes comes as that error. One that is being deleted, or does not exist, is left out.

        :raises SpecError: what is wanted is no name.
        """
        among = names.DEPLOYMENT
        if wanted is not None:
            if not wanted:
                return {}
            among += f" in ({','.join(check_label('deployment', each) for each in wanted)})"
        called = {_whose(each): each for each in self._listed(among) if _stays(each)}
        return {name: self._read(name, document) for name, document in sorted(called.items())}

    def _read(self, name: str, document: Document) -> Route | Corrupt:
        try:
            return read_route(document, name=name, site=self.site)
        except Corrupt as error:
            return error

    def _listed(self, labels: str, *, heads: bool = False) -> list[Document]:
        found = self.client.find(self._kind, namespace=self.site.namespace, labels=labels, heads=heads)
        # the Services that KServe makes carry the labels of a revision, too
        return [each for each in found if names.REVISION not in each["metadata"]["labels"]]

    def write(self, route: Route) -> Route:
        """Write a route that was read, or is new, and return it as it is then.

        :raises Conflict: another writer has changed it since, or made it first.
        :raises SpecError: it is refused.
        """
        counted = replace(route, writes=route.writes + 1)
        if route.version is None:
            made = self.client.create(write_route(counted, self.site))
            return read_route(made, name=route.name, site=self.site)
        return self._insisting(counted, self._written)

    def documents(self) -> dict[str, Document]:
        """Return every deployment's route as the API server has it, by name."""
        return {_whose(each): each for each in self._listed(names.DEPLOYMENT) if _stays(each)}

    def has_tokens(self, name: str, route: Document) -> bool:
        """Whether the tokens that go with this route are there."""
        return self._tokens_of(name, route) is not None

    def pause(self, name: str, why: str) -> None:
        """Write down that a route is left as it is, with a reason, or is not. :raises NotFound: there is none."""
        change = {"metadata": {"annotations": {names.PAUSED: why or None}}}
        self.client.patch(self._kind, names.route_name(name), change, namespace=self.site.namespace)

    def announce(self, name: str, message: str, *, mended: bool) -> None:
        """Make an Event of this route: a warning that it drifted, or that it was mended."""
        found = self.client.get(self._kind, names.route_name(name), namespace=self.site.namespace)
        if found is None:
            return
        about = {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
        now = datetime.now(UTC)
        event = EVENT.document(
            {"name": f"{about['name']}.{now:%Y%m%d%H%M%S%f}", "namespace": about["namespace"]},
            involvedObject={"apiVersion": self._kind.api_version, "kind": self._kind.name, **about},
            type="Normal" if mended else "Warning",
            reason="DeploymentMended" if mended else "DeploymentDrifted",
            message=message[:_MESSAGE_CHARACTERS],
            source={"component": "muster"},
            **dict.fromkeys(("firstTimestamp", "lastTimestamp"), now.strftime("%Y-%m-%dT%H:%M:%SZ")),
        )
        self.client.create(event)

    def await_taken_up(self, name: str) -> Route:
        """Return a route when its Gateway says that it has read it as it is; that takes some hundredths of a second.

        :raises Unreachable: it does not say so; what was written stands, and may be waited for again.
        :raises NotFound: it was deleted meanwhile.
        """
        deadline = self.clock() + TAKEN_UP_SECONDS
        while True:
            route = self.find(name)
            if route is None:
                raise NotFound(f"the route of {name} was deleted meanwhile")
            if not route.unsettled:
                return route
            if self.clock() > deadline:
                raise Unreachable(f"deployment {name}: {route.unsettled}")
            self.sleep(_LOOK_SECONDS)

    def delete(self, route: Route) -> None:
        """Delete a route that was read. :raises Conflict: it has changed since."""
        self._insisting(route, self._deleted)

    def tokens(self, name: str) -> Tokens:
        """Return a deployment's tokens. :raises NotFound: no such deployment; :raises Corrupt: they cannot be read."""
        return _read_tokens(name, self._tokens_of(name, self._there(name)))

    def change_tokens(self, name: str, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change its tokens in one step, and return them as they are then.

        :raises NotFound: there is no such deployment; :raises Conflict: others write them all the time.
        """
        for _ in range(_TRIES):
            route = self._there(name)
            found = self._tokens_of(name, route)
            after = change(_read_tokens(name, found))
            document = self._tokens_document(name, after, route)
            try:
                if found is None:
                    self.client.create(document)
                else:
                    document["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                    self.client.apply(document)
            except Conflict:  # another writer was first, or what went with an earlier route is still there
                self.sleep(_PAUSE_SECONDS)
            else:
                return after
        raise Conflict(f"the tokens of {name} are written by others all the time: try again")

    def _there(self, name: str) -> Document:
        route = self._object(name)
        if route is None:
            raise NotFound(f"no deployment {name!r}")
        return {**route, "apiVersion": self._kind.api_version, "kind": self._kind.name}

    def _tokens_of(self, name: str, route: Document) -> Document | None:
        """The ConfigMap that goes with this route; one of an earlier route is about to be deleted."""
        found = self.client.get(CONFIG_MAP, names.tokens_name(name), namespace=self.site.namespace)
        owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
        return found if any(each["uid"] == route["metadata"]["uid"] for each in owners) else None

    def _tokens_document(self, name: str, tokens: Tokens, route: Document) -> Document:
        metadata = {
            "name": names.tokens_name(name),
            "namespace": self.site.namespace,
            "labels": names.of_deployment(name),
        }
        return owned_by(CONFIG_MAP.document(metadata, data={_TOKENS_FILE: dumps(tokens)}), route)

    def _insisting(self, route: Route, write: Callable[[Route], Route]) -> Route:
        """Write a route, again where no more has happened than that a gateway has reported. :raises Conflict: it has changed."""
        for _ in range(_REPORTS):
            try:
                return write(route)
            except Conflict:
                found = self.find(route.name)
                if found is None or found.token != route.token:
                    break
                route = replace(route, version=found.version)
        raise Conflict(f"another writer changed the route of {route.name} meanwhile: look again")

    def _deleted(self, route: Route) -> Route:
        place, called = self.site.namespace, names.route_name(route.name)
        try:
            self.client.delete(self._kind, called, namespace=place, version=route.version)
        except Conflict:
            if self.find(route.name) is not None:
                raise
        return route

    def _written(self, route: Route) -> Route:
        applied = self.client.apply(write_route(route, self.site))
        return read_route(applied, name=route.name, site=self.site)


def _whose(document: Document) -> str:
    return str(document["metadata"]["labels"][names.DEPLOYMENT])


def _stays(document: Document) -> bool:
    """Whether it is the route of whom its label names, and not on its way out."""
    metadata = document["metadata"]
    try:
        called = names.route_name(_whose(document))
    except SpecError:  # the label is not muster's: it names no deployment
        return False
    return bool(metadata["name"] == called and not metadata.get("deletionTimestamp"))


def _read_tokens(name: str, found: Document | None) -> Tokens:
    if found is None:
        return Tokens()
    try:
        return loads(Tokens, str((found.get("data") or {}).get(_TOKENS_FILE)))
    except SpecError as error:
        raise Corrupt(
            f"the tokens of {name} cannot be read ({error}): delete the ConfigMap {found['metadata']['name']}, and make "
            "each client's token anew"
        ) from error

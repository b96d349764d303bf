"""Follows all objects of one kind, from the first request for them until it is closed.

One list, then one watch, whatever becomes of the connection: it goes on from the last version that
was seen, and lists again where the API server has forgotten that one (410).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind, Read
from muster.backends.kubernetes.api.refusals import ApiRequest, Expired, refusal
from muster.backends.kubernetes.api.transport import SilentServer
from muster.core.errors import BackendError, MusterError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

log = logging.getLogger(__name__)

# The server ends a watch by itself after so long, so that watches spread over its replicas.
_SERVER_SECONDS = 300
# Bookmarks come once a minute, but none of events, which the API server does not keep in mind, and of kinds that it
# has nothing new of. Where nothing came for so long the connection may be dead, and the watch is taken anew; a watch
# that is taken may be mute all the same, as behind some proxies, so after a longer silence all is listed again.
SILENT_SECONDS, MUTE_SECONDS = 90.0, 600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """What has changed since the change before.

    :param version: of all objects of the kind, from which a watch goes on.
    :param put: objects that are new or other than they were.
    :param gone: objects that were deleted, as they were last.
    :param whole: `put` is all there is, so that what is not in it is gone.
    """

    version: str
    put: tuple[Document, ...] = ()
    gone: tuple[Document, ...] = ()
    whole: bool = False


def without_managers(found: Document) -> Document:
    """Leave out who wrote which field, which is half of an object."""
    found.pop("managedFields", None)
    return found


@dataclass(eq=False)
class ChangeWatch:
    """The changes of one kind of object in one namespace.

    :param labels: a selector, such as ``muster.dev/job``.
    :param read: chooses what is kept of each object.
    """

    client: Client
    kind: Kind
    _: KW_ONLY
    namespace: str | None
    labels: str = ""
    fields: str = ""
    read: Read = without_managers

    def __post_init__(self) -> None:
        self.client = self.client.patient(0.0)  # the pauses are ours, so that close() ends them
        self._closed = threading.Event()
        self._open: BaseHTTPResponse | None = None
        self.heard = self._told = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """How long the API server has neither told anything nor taken a watch: below two minutes where all is well."""
        return time.monotonic() - self.heard

    def changes(self) -> Iterator[Change]:
        """Yield what changes until :meth:`close`; at first all there is.

        It never gives up, and says in the log, once, what keeps it: a missing right, an API server that is away; or
        a defect of muster's own, after which all is listed again.
        """
        version: str | None = None
        pause, said = _FIRST_PAUSE_SECONDS, ""
        while not self._closed.is_set():
            try:
                if version is None:
                    change = self._listed()
                    version = change.version
                    yield change
                for change in self._watched(version):
                    version, pause, said = change.version, _FIRST_PAUSE_SECONDS, ""
                    if change.put or change.gone:
                        yield change
            except Expired:
                version = None
            except SilentServer:
                pause = _FIRST_PAUSE_SECONDS
            except Exception as error:  # a thread that ended would leave what it knew to stand for ever
                said = self._say(error, said)
                if not isinstance(error, BackendError):  # the kind is gone or another, so its versions are
                    version = None
            # A load balancer may end a watch before it counts as silent.
            if time.monotonic() - self._told > MUTE_SECONDS:
                version = None
            self._closed.wait(pause)  # also where it ended well: a proxy may end every watch at once
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """End :meth:`changes`, which may be waiting in another thread. Idempotent."""
        self._closed.set()
        response = self._open
        if response is not None:
            with suppress(OSError, RuntimeError, ValueError):  # it has just ended by itself
                response.shutdown()

    def _say(self, error: Exception, said: str) -> str:
        """Tell in the log what keeps it, unless that was `said` last; return what is said now."""
        defect = None if isinstance(error, MusterError) else error
        text = str(error) if defect is None else f"{self.kind.plural}: a defect of muster's own: {error!r}"
        if text != said and not self._closed.is_set():
            log.warning("%s; what the cluster does is seen late", text, exc_info=defect)
        return text

    def _listed(self) -> Change:
        objects, version = self.client.snapshot(
            self.kind, namespace=self.namespace, labels=self.labels, fields=self.fields, read=self.read
        )
        self.heard = self._told = time.monotonic()
        return Change(version=version, put=objects, whole=True)

    def _watched(self, version: str) -> Iterator[Change]:
        """Yield what one watch tells, until the server ends it or the connection breaks."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_SERVER_SECONDS),
            "labelSelector": self.labels,
            "fieldSelector": self.fields,
        }
        request = ApiRequest(verb="watch", kind=self.kind, namespace=self.namespace)
        given = {name: text for name, text in query.items() if text}
        with self.client.stream(request, query=given, silent_seconds=SILENT_SECONDS) as response:
            self._open, self.heard = response, time.monotonic()
            try:
                if self._closed.is_set():
                    return
                for line in self.client.lines(request, response):
                    if self._closed.is_set():  # a TLS socket that was shut down gives its cipher as it is
                        return
                    self.heard = self._told = time.monotonic()
                    yield _change(request, line, self.read)
            finally:
                self._open = None


def _change(request: ApiRequest, line: bytes, read: Read) -> Change:
    """Read one line of a watch. :raises BackendError: it says that the watch has failed, or nothing at all."""
    try:
        event = json.loads(line, object_hook=read)
        kind, found = event["type"], event["object"]
        version = "" if kind == "ERROR" else found["metadata"]["resourceVersion"]
    except (ValueError, LookupError, TypeError) as error:
        raise BackendError(
            f"{request}: it tells no change: {line[:80]!r}; is there a proxy in between?"
        ) from error
    if kind == "ERROR":
        raise refusal(request, int(found.get("code") or 500), found)
    if kind == "BOOKMARK":
        return Change(version=version)
    if kind == "DELETED":
        return Change(version=version, gone=(found,))
    return Change(version=version, put=(found,))

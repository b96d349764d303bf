"""Asks an API server, again where it is away, and says in muster's words what it refuses.

It is asked again with growing pauses when it does not answer, is overloaded, or one of its webhooks
is down. That is safe for every request since every object has a name of its own: what was made by a
request whose answer got lost is found by the next.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from muster.backends.base import PATIENCE_SECONDS
from muster.backends.kubernetes.api.access import Access
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.api.refusals import ApiRequest, read_status, refusal
from muster.core.errors import BackendError, Forbidden, MusterError, Unreachable
from muster.core.patience import Patience

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

JSON = "application/json"

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_TOO_LATE = 504


class SilentServer(Unreachable):
    """Nothing came for so long that the connection counts as lost, though there may have been nothing to say."""


@dataclass(eq=False)
class Transport:
    """Sends requests over one connection. Safe to share between threads.

    :param patience_seconds: how long it goes on asking an API server that is away.
    """

    access: Access
    _: KW_ONLY
    patience_seconds: float = PATIENCE_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def host(self) -> str:
        """The address of the API server."""
        return self.access.host

    def ask(self, request: ApiRequest, **how: Any) -> bytes:
        """Send a request until there is an answer, and return that.

        :param how: `query`, `body`, `path` and media types, as in :meth:`_send`.
        :raises Unreachable: there was none for as long as patience lasts.
        :raises MusterError: it is refused: see :mod:`~muster.backends.kubernetes.api.refusals`.
        """
        patience = Patience(
            self.patience_seconds,
            first=_FIRST_PAUSE_SECONDS,
            longest=_LONGEST_PAUSE_SECONDS,
            clock=self.clock,
            sleep=self.sleep,
        )
        sure = False
        while True:
            try:
                return bytes(self._send(request, **how).data)
            except (Unreachable, Forbidden) as error:
                forbidden = isinstance(error, Forbidden)
                if patience.spent or (sure and forbidden):
                    raise _given_up(error, patience.waited) from error
                sure = forbidden and self._is_ready()
                # It may have become ready just now: then it is asked once more, at once.
                if not sure and not patience.wait():
                    raise _given_up(error, patience.waited) from error

    def proxied(
        self,
        request: ApiRequest,
        *,
        path: str,
        body: bytes | None = None,
        seconds: float,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, bytes]:
        """Send a request to what the API server stands in front of, once, and return status and body as they are.

        :param path: of the pod's proxy, and below it that of the pod's server.
        :param headers: for that server.
        :param seconds: how long the server behind it may take; 504 where it takes longer.
        :raises Unreachable: the API server does not answer; whatever answers in place of the pod is an answer.
        """
        try:
            response = self._exchange(
                request, path=path, body=body, accept="*/*", read_seconds=seconds, headers=headers
            )
        except Unreachable as error:
            if not _silent(error):
                raise
            return _TOO_LATE, json.dumps({"error": f"no answer within {seconds:g} s"}).encode()
        return response.status, bytes(response.data)

    def socket(self, request: ApiRequest, path: str, opener: Callable[..., Any]) -> Any:
        """Open a WebSocket with an `opener` of the Kubernetes client's. :raises Unreachable: the API server opens none."""
        from websocket import WebSocketException

        headers = {name.lower(): text for name, text in self._signed({}).items()}
        try:
            return opener(self.access.configuration(), f"ws{self.host.removeprefix('http')}{path}", headers)
        except (WebSocketException, OSError) as error:
            raise self._away(request, error) from error

    def _is_ready(self) -> bool:
        """Whether the API server has read the cluster's roles: for some seconds after its start it forbids all.

        A young API server answers 403 here, too, although every user may ask this. 401: the credentials do not count.
        404: something in between does not tell.
        """
        try:
            response = self._exchange(ApiRequest(verb="get"), path="/readyz", accept="*/*")
        except Forbidden:  # the credentials cannot be read
            return True
        except MusterError:
            return False
        return response.status in (200, 401, 404)

    @contextmanager
    def stream(
        self, request: ApiRequest, *, query: Mapping[str, str], silent_seconds: float
    ) -> Iterator[BaseHTTPResponse]:
        """Open an answer that is read as it comes, by :meth:`lines`; nothing is asked again.

        :param silent_seconds: where nothing comes for so long, the connection counts as lost.
        """
        response = self._send(request, query=query, read_seconds=silent_seconds, stream=True)
        try:
            yield response
        finally:
            response.close()

    def lines(self, request: ApiRequest, response: BaseHTTPResponse) -> Iterator[bytes]:
        """Yield an answer's lines as they come.

        :raises SilentServer: none came for too long. :raises Unreachable: the connection broke.
        """
        from urllib3.exceptions import HTTPError

        rest = b""
        try:
            for part in response.stream(1 << 16, decode_content=True):
                *lines, rest = (rest + part).split(b"\n")
                yield from (line for line in lines if line)
        except (HTTPError, http.client.HTTPException, OSError) as error:
            if _silent(error):
                raise SilentServer(f"{request}: {self.host} has long said nothing") from error
            raise self._away(request, error) from error

    def _send(
        self,
        request: ApiRequest,
        *,
        path: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        **how: Any,
    ) -> BaseHTTPResponse:
        """Ask once, and translate what goes wrong. :param how: as in :meth:`_exchange`."""
        response = self._exchange(
            request,
            path=f"{path or request.path}?{urlencode(query or {})}",
            body=None if body is None else json.dumps(body).encode(),
            **how,
        )
        if not 200 <= response.status < 300:
            raise refusal(request, response.status, read_status(response.data))
        return response

    def _exchange(
        self,
        request: ApiRequest,
        *,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        read_seconds: float = _READ_SECONDS,
        stream: bool = False,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> BaseHTTPResponse:
        """Ask once, and return whatever is answered."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        try:
            return self.access.pool.request(
                request.method,
                f"{self.host}{path}",
                headers=self._signed({"Accept": accept, "Content-Type": content_type, **headers}),
                body=body,
                preload_content=not stream,
                timeout=Timeout(connect=_CONNECT_SECONDS, read=read_seconds),
            )
        except (HTTPError, http.client.HTTPException, OSError) as error:
            raise self._away(request, error) from error

    def _signed(self, headers: dict[str, str]) -> dict[str, str]:
        try:
            return {**self.access.headers(), **headers}
        except (OSError, ValueError) as error:  # a file is gone, a login program fails
            raise Forbidden(f"the credentials for {self.host} cannot be renewed: {error}") from error

    def _away(self, request: ApiRequest, error: BaseException) -> MusterError:
        cause = _root(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BackendError(
                f"{request}: {self.host} is not trusted ({cause.verify_message}): "
                "the kubeconfig's certificate-authority must be that of this cluster"
            )
        return Unreachable(f"{request}: {self.host} does not answer: {_said(cause)}")


def _given_up(error: MusterError, waited: float) -> MusterError:
    return Unreachable(f"{error} (asked for {waited:.0f} s)") if isinstance(error, Unreachable) else error


def _silent(error: BaseException) -> bool:
    """Whether it was connected, and nothing came for too long."""
    from urllib3.exceptions import ReadTimeoutError

    below = (getattr(error, "reason", None), error.__cause__)
    return isinstance(error, ReadTimeoutError) or any(
        _silent(each) for each in below if isinstance(each, BaseException)
    )


def _root(error: BaseException) -> BaseException:
    """The cause at the bottom: what lies around it repeats the address and says how often was tried."""
    for each in (getattr(error, "reason", None), error.__cause__, *error.args):
        if isinstance(each, BaseException):
            return _root(each)
    return error


def _said(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

"""The client's side of every request: retried while the service is away, with the service's errors raised."""

from __future__ import annotations

import io
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from typing import BinaryIO

import httpx

from muster.core.errors import SpecError, Unavailable
from muster.core.keepalive import CONNECT_SECONDS, SMALL_BYTES, socket_options
from muster.core.patience import Patience
from muster.volumes.service.archives import Chunks
from muster.volumes.service.refusals import read

PATIENCE_SECONDS = 60.0
_READ_SECONDS = 60.0
_SLOW_SECONDS = 3600.0

_AWAY = frozenset({408, 502, 503, 504})
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 0.5
FAR_SECONDS = 60.0  # what two clocks may differ by before it is told
SAID_AFTER_SECONDS = 1.0  # a service that is replaced is away as long

_LOG = logging.getLogger(__name__)


class Connection:
    """One store service, as its clients reach it. It may be used by any number of threads.

    Every request may be sent twice without being done twice, so each is: on a broken or refused
    connection and on 502, 503 and 504, which are a proxy's words for the same; and on 408, which says that
    too little of it came in time.

    :param token: the token, or what returns it for each request: it may be renewed meanwhile.
    :param patience_seconds: how long the service may be away before a call fails.
    :param clock: seconds since the epoch.
    :ivar ahead_seconds: how far this machine's clock is ahead of the service's, as its last answer said; 0 where none did.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str],
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise SpecError(
                f"store service {url!r:.120}: expected its address, such as http://muster-store:8470"
            )
        self.url = url.rstrip("/")
        self._patience, self._clock = patience_seconds, clock
        self.ahead_seconds = 0.0
        trusted = _trusted(self.url)
        self._http = self._client(token, trusted, small=True)
        self._uploads = self._client(token, trusted, small=False)

    def _client(
        self, token: str | Callable[[], str], trusted: ssl.SSLContext | bool, *, small: bool
    ) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            auth=partial(_authorized, token),
            timeout=httpx.Timeout(_READ_SECONDS, connect=CONNECT_SECONDS),
            transport=httpx.HTTPTransport(
                verify=trusted,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                socket_options=socket_options(small=small),
                trust_env=False,
            ),
            trust_env=False,  # no proxy may see a token
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._uploads.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Iterator[bytes]] | bytes | None = None,
        slow: bool = False,
    ) -> httpx.Response:
        """Send a request, retry while the service is away, and return the whole answer.

        :param content: the body, or a function that makes it for each try.
        :raises MusterError: the service's error, or Unavailable where it stays away.
        """
        absence = _Absence(self.url, self._patience)
        while True:
            try:
                with self.sent(
                    method, path, query=query, headers=headers, content=content, slow=slow
                ) as response:
                    response.read()
                absence.over()
                return response
            except (httpx.TransportError, _Away) as error:
                absence.wait(error)

    def stretch(self, path: str, *, first: int, end: int, **query: object) -> Iterator[bytes]:
        """Yield the bytes from `first` to before `end`, and resume after a broken connection."""
        absence = _Absence(self.url, self._patience)
        while first < end:
            try:
                headers = {"range": f"bytes={first}-{end - 1}"}
                with self.sent("GET", path, query=query, headers=headers) as response:
                    for chunk in response.iter_bytes():
                        first += len(chunk)
                        yield chunk
                        absence.over()
                        absence = _Absence(self.url, self._patience)
            except (httpx.TransportError, _Away) as error:
                absence.wait(error)

    def lines(self, method: str, path: str, **query: object) -> Iterator[bytes]:
        """Yield the lines of an answer as they arrive; from the first again after a broken connection."""
        absence = _Absence(self.url, self._patience)
        while True:
            try:
                with self.sent(method, path, query=query, slow=True) as response:
                    absence.over()
                    yield from _lines(response.iter_bytes())
                return
            except (httpx.TransportError, _Away) as error:
                absence.wait(error)

    @contextmanager
    def stream(self, path: str, *, query: Mapping[str, object] | None = None) -> Iterator[BinaryIO]:
        """Yield an answer as a file, read as it arrives. :raises Unavailable: the service is away, or goes away."""
        try:
            with self.sent("GET", path, query=query, slow=True) as response:
                yield io.BufferedReader(Chunks(partial(next, response.iter_bytes(), b"")))
        except (httpx.TransportError, _Away) as error:
            raise Unavailable(
                f"the store service at {self.url} does not answer ({str(error) or type(error).__name__}): ask again"
            ) from error

    @contextmanager
    def sent(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Iterator[bytes]] | bytes | None = None,
        slow: bool = False,
    ) -> Iterator[httpx.Response]:
        """Send a request once, and lend its answer. :raises MusterError: the service refuses it."""
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        large = callable(content) or len(content or b"") > SMALL_BYTES
        http = self._uploads if large else self._http
        request = http.build_request(
            method,
            path,
            params=given,
            headers=headers,
            content=content() if callable(content) else content,
            timeout=httpx.Timeout(_SLOW_SECONDS if slow else _READ_SECONDS, connect=CONNECT_SECONDS),
        )
        response = http.send(request, stream=True)
        try:
            self._compare_clocks(response.headers.get("date", ""))
            if response.status_code in _AWAY:
                raise _Away(f"HTTP {response.status_code}")
            if response.is_error or response.is_redirect:
                raise read(response.read(), status=response.status_code, where=self.url)
            yield response
        finally:
            response.close()

    def _compare_clocks(self, theirs: str) -> None:
        """Warn where this machine's clock and the service's are far apart, once for each time that they are. :param theirs: RFC 9110's."""
        try:
            ahead = self._clock() - parsedate_to_datetime(theirs).timestamp()
        except ValueError:  # it does not say
            return
        before, self.ahead_seconds = self.ahead_seconds, ahead
        if abs(ahead) > FAR_SECONDS >= abs(before):
            _LOG.warning("%s: %s", self.url, apart(ahead))


def apart(ahead: float) -> str:
    """Say that two clocks are far apart. :param ahead: seconds by which this machine's is ahead."""
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {way} the store service's: timeouts, ages and times of jobs are wrong by "
        "as much. Have both set by NTP (`timedatectl` says whether one is)"
    )


def _authorized(token: str | Callable[[], str], request: httpx.Request) -> httpx.Request:
    request.headers["authorization"] = f"Bearer {token if isinstance(token, str) else token()}"
    return request


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Whom a service with TLS is certified by, as ``SSL_CERT_FILE`` says; without TLS it takes 40 ms for nothing."""
    if not url.startswith("https://"):
        return False
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        raise SpecError(
            f"the certificates that {url} is trusted by cannot be read ({error}): see SSL_CERT_FILE, which is {named}"
        ) from error


class _Absence:
    """The absence of the service during one call; a long one is logged once."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._patience = Patience(seconds, first=_FIRST_PAUSE_SECONDS, longest=_LONGEST_PAUSE_SECONDS)
        self._told = False

    def over(self) -> None:
        """Log that the service answers again, if its absence was logged."""
        if self._told:
            _LOG.warning(
                "the store service at %s answers again, after %.1f s", self._url, self._patience.waited
            )

    def wait(self, error: Exception) -> None:
        """Wait before the next try. :raises Unavailable: the patience is spent."""
        said, seconds = str(error) or type(error).__name__, self._patience.seconds
        if not self._told and not self._patience.spent and self._patience.waited >= SAID_AFTER_SECONDS:
            self._told = True
            _LOG.warning(
                "the store service at %s does not answer (%s): asking again for up to %g s",
                *(self._url, said, seconds),
            )
        if not self._patience.wait():
            raise Unavailable(
                f"the store service at {self._url} does not answer ({said}), and has "
                f"not for {seconds:g} s: is it running, and is that its address?"
            ) from error


class _Away(Exception):
    """A proxy reports that the service does not answer."""


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut at newlines alone: JSON may hold other characters that splitlines takes for the end of a line."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if b"\n" in chunk:
            *whole, held = held.split(b"\n")
            yield from map(bytes, whole)
    if held:
        yield bytes(held)

"""The client's side of every request: sent again while the service is away, its errors raised as they are."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from muster.core import wire
from muster.core.errors import SpecError, Unavailable
from muster.volumes.service.refusals import read

PATIENCE_SECONDS = 60.0
READ_SECONDS = 60.0
SLOW_SECONDS = 3600.0

_AWAY = frozenset({408, 502, 503, 504})
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0

T = TypeVar("T")


class Connection:
    """One store service, as its clients reach it. It may be used by any number of threads.

    Every request may be sent twice without being done twice, so each is: on a broken or refused
    connection and on 502, 503 and 504, which are a proxy's words for the same; and on 408, which says that
    too little of it came in time.

    :param patience_seconds: how long the service may be away before a call fails.
    """

    def __init__(self, url: str, *, token: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        if not url.startswith(("http://", "https://")):
            raise SpecError(
                f"store service {url!r:.120}: expected its address, such as http://muster-store:8470"
            )
        self.url = url.rstrip("/")
        self._patience = patience_seconds
        self._http = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(READ_SECONDS, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,  # a token is for nobody in between
        )

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def get(self, path: str, kind: type[T], **query: object) -> T:
        """Ask for something."""
        return self.message("GET", path, kind, query=query)

    def send(
        self, method: str, path: str, kind: type[T], message: object | None = None, *, slow: bool = False
    ) -> T:
        """Send a message and return the answer.

        :param slow: it may take an hour before the first word comes back.
        """
        return self.message(method, path, kind, content=_content(message), slow=slow)

    def tell(self, method: str, path: str, message: object | None = None) -> None:
        """Send a message to which there is no answer."""
        self.request(method, path, content=_content(message))

    def message(self, method: str, path: str, kind: type[T], **how: Any) -> T:
        """Send a request and return its answer; see :meth:`request`."""
        return wire.loads(kind, self.request(method, path, **how).content)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        content: Callable[[], Iterator[bytes]] | bytes | None = None,
        slow: bool = False,
    ) -> httpx.Response:
        """Send a request, again while the service is away, and return its whole answer.

        :param content: the body, or what makes it anew for each time that it is sent.
        :raises MusterError: what the service raised, or that it stays away.
        """

        def once() -> httpx.Response:
            with self._sent(method, path, query=query, content=content, slow=slow) as response:
                response.read()
                return response

        return self.patiently(once)

    def stretch(self, path: str, *, first: int, end: int, **query: object) -> Iterator[bytes]:
        """The bytes from `first` to before `end` of something big, going on where a connection broke."""
        patience = _Patience(self.url, self._patience)
        while first < end:
            try:
                headers = {"range": f"bytes={first}-{end - 1}"}
                with self._sent("GET", path, query=query, headers=headers) as response:
                    for chunk in response.iter_bytes():
                        first += len(chunk)
                        yield chunk
                        patience = _Patience(self.url, self._patience)
            except (httpx.TransportError, _Away) as error:
                patience.wait(error)

    def lines(self, method: str, path: str, **query: object) -> Iterator[bytes]:
        """The lines of an answer as they come; from the first again where a connection broke."""
        patience = _Patience(self.url, self._patience)
        while True:
            try:
                with self._sent(method, path, query=query, slow=True) as response:
                    yield from _lines(response.iter_bytes())
                return
            except (httpx.TransportError, _Away) as error:
                patience.wait(error)

    def patiently(self, once: Callable[[], T]) -> T:
        """Do something again while the service is away. :raises Unavailable: it stays away."""
        patience = _Patience(self.url, self._patience)
        while True:
            try:
                return once()
            except (httpx.TransportError, _Away) as error:
                patience.wait(error)

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Iterator[bytes]] | bytes | None = None,
        slow: bool = False,
    ) -> Iterator[httpx.Response]:
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        request = self._http.build_request(
            method,
            path,
            params=given,
            headers=headers,
            content=content() if callable(content) else content,
            timeout=httpx.Timeout(SLOW_SECONDS if slow else READ_SECONDS, connect=10.0),
        )
        response = self._http.send(request, stream=True)
        try:
            if response.status_code in _AWAY:
                raise _Away(f"HTTP {response.status_code}")
            if response.is_error or response.is_redirect:
                raise read(response.read(), status=response.status_code, where=self.url)
            yield response
        finally:
            response.close()


class _Patience:
    """How long it is waited for a service that is away, and how long between two looks."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds = url, seconds
        self._deadline = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE_SECONDS

    def wait(self, error: Exception) -> None:
        """Wait a little. :raises Unavailable: it has been long enough."""
        if time.monotonic() + self._pause > self._deadline:
            raise Unavailable(
                f"the store service at {self._url} does not answer ({str(error) or type(error).__name__}), and has "
                f"not for {self._seconds:g} s: is it running, and is that its address?"
            ) from error
        time.sleep(self._pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come back at once
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


class _Away(Exception):
    """A proxy says that the service does not answer."""


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut at newlines alone: JSON may hold other characters that are taken for the end of a line."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if b"\n" in chunk:
            *whole, held = held.split(b"\n")
            yield from map(bytes, whole)
    if held:
        yield bytes(held)


def _content(message: object | None) -> bytes | None:
    return None if message is None else wire.dumps(message).encode()

"""Who may ask a deployment, and how often: clients with tokens, or all together where none are needed.

:meth:`Clients.admit` is asked before a request's body is read, so what is refused costs almost nothing. A token is looked
up by its SHA-256 digest, of which alone the server is told; the token itself is kept nowhere and written nowhere.

On a cluster the tokens are in a file that Kubernetes brings. A kubelet takes up to a minute or two to bring a change, so muster
also sends it to each server. Whichever comes later by its count of writes stands.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from muster_serving.answer import HttpAnswer, refusal
from muster_serving.body import MAX_BODY_BYTES
from muster_serving.metrics import CLIENTS

KEY, NAME = (
    b"muster-key",
    b"muster-client",
)  # of muster's own requests: its key, and for whom one is passed on
_AUTHORIZATION = b"authorization"
_BEARER = b"bearer"
_INVALID = ', error="invalid_token"'  # RFC 6750: a token came, and does not count

_HERE = re.compile(rb"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.IGNORECASE)

LOOK_SECONDS = 1.0
FILE = "tokens.json"

logger = logging.getLogger("muster.serving")

RawHeaders = Iterable[tuple[bytes, bytes]]  # as ASGI and HTTP/2 have them: names in lower case


class Caller:
    """One client, or all that are not told apart.

    Its limit is a token bucket, kept as the time at which it is full again (GCRA, ITU-T I.371).

    :param name: empty where clients are not told apart.
    :param rate: requests a second; None: any number. :param burst: how many may come at once.
    """

    __slots__ = ("_count", "_full_at", "_interval", "_limited", "_room", "name")

    def __init__(self, deployment: str, name: str, *, rate: float | None, burst: int | None) -> None:
        self.name = name
        self._interval = 1 / rate if rate else 0.0
        self._room = self._interval * ((burst or 1) - 1)
        self._full_at = 0.0
        self._count = CLIENTS.labels(deployment, name, "accepted") if name else None
        self._limited = CLIENTS.labels(deployment, name, "limited")

    def take(self) -> float:
        """Count one request; return 0, or the seconds after which the next one is accepted."""
        if self._interval:
            now = time.monotonic()
            full_at = max(self._full_at, now)
            if full_at - now > self._room:
                self._limited.inc()
                return full_at - now - self._room
            self._full_at = full_at + self._interval
        if self._count is not None:
            self._count.inc()
        return 0.0


class Clients:
    """The clients of one deployment. Without an order anyone may ask, as often as they like.

    :param one_port: muster's own requests come to the users' port, too.
    :param here: whether those who need no token ask from this machine alone.
    :ivar checked: whether a request for predictions must be admitted.
    :ivar needed: whether each request must carry a token.
    :ivar most_bytes: the longest body.
    """

    def __init__(self, name: str, *, one_port: bool = False, here: bool = False) -> None:
        self._deployment = name
        self._one_port, self._here = one_port, here
        self.checked = self.needed = self._guarded = False
        self.most_bytes = MAX_BODY_BYTES
        self._key = b""
        self._own = Caller(name, "", rate=None, burst=None)
        self._all = self._own
        self._by_digest: dict[bytes, Caller] = {}
        self._ended: dict[bytes, tuple[str, float]] = {}
        self._passed_on: dict[bytes, Caller] = {}
        self._limits: Any = None

    def order(self, order: Mapping[str, Any]) -> None:
        """Let requests in by these rules from now on: the keeper's command ``admit``.

        A client that stays, stays as far from its limit as it was.
        """
        limits = order.get("limits") or {}
        rate, burst = limits.get("rate"), limits.get("burst")
        # First, so that tokens that cannot be read leave the server closed.
        self._key = str(order.get("key") or "").encode()
        self.needed = bool(order["needed"])
        self.checked = self.needed or rate is not None
        self._guarded = self.needed or bool(self._key)
        known = self._by_digest if limits == self._limits else {}
        if limits != self._limits:
            self._all = Caller(self._deployment, "", rate=rate, burst=burst)
        live: dict[bytes, Caller] = {}
        ended: dict[bytes, tuple[str, float]] = {}
        for token in order.get("tokens") or ():
            digest, client = bytes.fromhex(token["digest"]), token["client"]
            if token.get("ended") is not None:
                ended[digest] = client, token["ended"]
            else:
                live[digest] = known.get(digest) or Caller(self._deployment, client, rate=rate, burst=burst)
        self._by_digest, self._ended, self._limits = live, ended, limits
        self.most_bytes = int(limits.get("body_bytes") or MAX_BODY_BYTES)

    def admit(self, headers: RawHeaders, *, asks: bool = True) -> Caller | HttpAnswer:
        """Return whose request this is, or its refusal: 401 without a token that counts, 429 over the client's limit.

        :param asks: whether it asks for predictions, which are counted and limited; pages are not.
        """
        client = self._all
        if self._one_port and (own := self.insider(headers)):
            return own
        if self.needed:
            found = self._known(headers)
            if isinstance(found, HttpAnswer):
                return found
            client = found
        if asks and (wait := client.take()):
            return self._too_many(client, wait)
        return client

    def misnamed(self, headers: RawHeaders) -> HttpAnswer | None:
        """Return the refusal of a request that needs no token and calls this machine by another name; None for any other.

        A page of the web may have its visitor's browser ask here by a name of that page's own, and read the answer (DNS rebinding).
        """
        if self.needed or not self._here:
            return None
        host = b"localhost"  # HTTP/1.0 has none
        for name, value in headers:  # the first of several counts
            if name == b"host":
                host = value
                break
        if _HERE.fullmatch(host):
            return None
        said = host.decode(errors="replace")
        return refusal(
            f"Host: found {said!r:.80}, expected localhost, 127.0.0.1 or [::1], since no token is asked for here: ask by one of "
            "these names, have the proxy send one, or deploy it with tokens=True",
            421,
        )

    def within(self, headers: RawHeaders) -> Caller | HttpAnswer:
        """Return for whom muster's own request is, on a port that users are not told of; or its refusal, 401."""
        if not self._guarded:
            return self._own
        return self.insider(headers) or self._denied(
            "", "this port is muster's own; users ask at the deployment's address"
        )

    def pass_on(self, client: Caller | None = None) -> tuple[str, ...]:
        """Return the header lines with which another process of this deployment takes a request of this client's."""
        if not self._guarded:
            return ()
        named = (f"{NAME.decode()}: {client.name}",) if client and client.name else ()
        return (f"{KEY.decode()}: {self._key.decode()}", *named)

    def _known(self, headers: RawHeaders) -> Caller | HttpAnswer:
        given = None
        for name, value in headers:
            if name == _AUTHORIZATION:
                if given is not None:
                    return self._denied("", "there are two headers Authorization; send one")
                given = value
        if given is None:
            return self._denied(
                "", "this deployment needs a token: send the header Authorization: Bearer TOKEN"
            )
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != _BEARER or not (token := token.strip(b" ")):
            return self._denied("", "Authorization: expected Bearer TOKEN")
        # The time of a lookup tells of the digest alone, whose next byte cannot be chosen: so nothing of a token.
        digest = sha256(token).digest()
        if (client := self._by_digest.get(digest)) is not None:
            return client
        whose, at = self._ended.get(digest, ("", 0.0))
        if whose:
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
            return self._denied(
                whose, f"the token of {whose} was ended on {when}: ask for a new one", _INVALID
            )
        return self._denied("", "this token does not count: ask who runs the deployment for one", _INVALID)

    def insider(self, headers: RawHeaders) -> Caller | None:
        """Return for whom a request is muster's own; None where it is not."""
        key, name = b"", b""
        for header, value in headers:
            if header == KEY:
                key = value
            elif header == NAME:
                name = value
        if not self._key or not hmac.compare_digest(key, self._key):
            return None
        if name and name not in self._passed_on:
            self._passed_on[name] = Caller(self._deployment, name.decode("ascii"), rate=None, burst=None)
        return self._passed_on.get(name, self._own)

    def _denied(self, client: str, message: str, how: str = "") -> HttpAnswer:
        CLIENTS.labels(self._deployment, client, "denied").inc()
        told = f'Bearer realm="{self._deployment}"{how}'
        return refusal(message, 401, ((b"www-authenticate", told.encode()),))

    def _too_many(self, client: Caller, wait: float) -> HttpAnswer:
        whose = (
            f"client {client.name} has" if client.name else "this deployment has, for all clients together,"
        )
        rate, burst = self._limits["rate"], self._limits["burst"]
        message = f"{whose} {rate:g} requests a second, {burst} at once: try again in {wait:.2g} s"
        return refusal(message, 429, ((b"retry-after", b"%d" % math.ceil(wait)),))


class ClientsFile:
    """Keeps :class:`Clients` as the file says; until there is one, no client has a token.

    :param folder: where Kubernetes puts the file.
    :param key: of muster's own requests. :param limits: of each client.
    """

    def __init__(self, clients: Clients, folder: Path, *, key: str, limits: Mapping[str, Any] | None) -> None:
        self._clients = clients
        self._path = folder / FILE
        self._terms = {"needed": True, "key": key, "limits": limits}
        self._writes = -1
        self._read = b""
        clients.order({**self._terms, "tokens": []})

    def take(self, text: bytes) -> None:
        """Take the tokens as they were written, unless later ones are known. :raises ValueError: they cannot be read."""
        try:
            found = orjson.loads(text)
            writes, tokens = int(found.get("writes", 0)), found.get("tokens", [])
            if writes > self._writes:
                self._clients.order({**self._terms, "tokens": tokens})
                self._writes = writes
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def look(self) -> None:
        """Read the file, if it has changed; where it cannot be read, what was read before stands."""
        try:
            text = self._path.read_bytes()
            if text != self._read:
                self._read = text
                self.take(text)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            logger.error("%s cannot be read: %s; the tokens read before stand", self._path, error)

    async def follow(self) -> None:
        """Look once a second, for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

"""The tokens of a deployment's clients: made, listed and ended. What is kept of one is its SHA-256 digest.

A token is 256 random bits, so its digest needs no salt: trying does not find a token.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field, replace

from muster.core.errors import NotFound, SpecError
from muster.core.names import check_label

_TOKEN_BYTES = 32
MOST_CLIENTS = 500
"""The clients with a token that a deployment may have: a server is told of all of them in one command."""
ENDED_KEPT = 100  # so that who comes with an ended token is told when it was ended

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class ClientToken:
    """One token, as it is remembered.

    :param client: whose it is; a client has at most one that has not ended.
    :param digest: SHA-256 of the token, in hexadecimal.
    :param made: in seconds since the epoch; `ended` likewise, None where it counts.
    """

    client: str
    digest: str
    made: float
    ended: float | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.match(self.digest):
            raise SpecError(
                f"the token of {self.client!r:.60} has the digest {self.digest!r:.80}: expected a SHA-256 in hexadecimal"
            )


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of a deployment, oldest first.

    :param key: what muster's own requests carry on one machine; it is none of a client's.
    :param writes: greater with each change, also after tokens that were deleted.
    """

    key: str = field(default="", repr=False)
    tokens: tuple[ClientToken, ...] = ()
    writes: int = 0

    @property
    def live(self) -> dict[str, ClientToken]:
        """Those that count, by client."""
        return {each.client: each for each in self.tokens if each.ended is None}


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def made(tokens: Tokens, client: str, token: str, *, now: float) -> Tokens:
    """Return the tokens with one more.

    :raises SpecError: the client has one, this is no name of a client, or there are :data:`MOST_CLIENTS`.
    """
    check_label("client", client)
    if len(tokens.live) >= MOST_CLIENTS:
        raise SpecError(f"{MOST_CLIENTS} clients have a token, and more cannot: end one first")
    if client in tokens.live:
        raise SpecError(
            f"client {client} has a token: end it first, or make one by another name, such as {client:.60}-2, to have "
            "both while the client changes over"
        )
    one = ClientToken(client=client, digest=digest_of(token), made=now)
    return replace(tokens, tokens=(*tokens.tokens, one), writes=_after(tokens, now))


def ended(tokens: Tokens, client: str, *, now: float) -> Tokens:
    """Return the tokens with this client's ended. :raises NotFound: it has none that counts."""
    if client not in tokens.live:
        known = ", ".join(tokens.live) or "none"
        raise NotFound(f"client {client!r:.60} has no token; those that count are of: {known}")
    several = [
        replace(each, ended=now) if each.client == client and each.ended is None else each
        for each in tokens.tokens
    ]
    over = [each for each in several if each.ended is not None]
    forgotten = {each.digest for each in over[: max(0, len(over) - ENDED_KEPT)]}
    kept = tuple(each for each in several if each.digest not in forgotten)
    return replace(tokens, tokens=kept, writes=_after(tokens, now))


def _after(tokens: Tokens, now: float) -> int:
    return max(tokens.writes + 1, int(now * 1000))  # servers may know those of a file that was deleted since


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(_TOKEN_BYTES)

"""The tokens of a deployment on a cluster: a file that Kubernetes brings, and what muster tells at once.

A kubelet takes up to a minute or two to bring a change, so muster also sends it to each server. Whichever comes later by
its count of writes stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from muster_serving.clients import Clients

LOOK_SECONDS = 1.0
FILE = "tokens.json"

logger = logging.getLogger("muster.serving")


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

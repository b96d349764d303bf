"""How the keeper of a deployment tells its model server what to load: lines of JSON on a socket pair.

The socket is inherited from the keeper, so nobody else can reach it; it has no name. A command is
``{"id": 1, "do": "load", "revision": "8", "folder": "/…"}``; ``promote`` and ``unload`` take a
revision, ``drain`` none. Each is answered ``{"id": 1}`` or ``{"id": 1, "error": "…"}``.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError
from muster_serving.revisions import Revisions


class Control:
    """Carries the keeper's commands out.

    :param promoted: called after each promotion, before it is answered.
    :param drain: called to send the clients elsewhere.
    """

    def __init__(
        self, revisions: Revisions, *, promoted: Callable[[], Awaitable[None]], drain: Callable[[], None]
    ) -> None:
        self._revisions = revisions
        self._promoted = promoted
        self._drain = drain

    async def serve(self, connection: socket.socket) -> None:
        """Answer commands until the keeper hangs up."""
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        command = json.loads(line)
        try:
            await self._do(command)
        except ModelError as error:
            return {"id": command["id"], "error": str(error)}
        return {"id": command["id"]}

    async def _do(self, command: dict[str, Any]) -> None:
        action, revision = command["do"], command["revision"]
        if action == "load":
            await asyncio.to_thread(self._revisions.load, revision, Path(command["folder"]))
        elif action == "promote":
            self._revisions.promote(revision)
            await self._promoted()
        elif action == "unload":
            self._revisions.unload(revision)
        elif action == "drain":
            self._drain()
        else:
            raise ModelError(f"command {action!r:.40}: known are load, promote, unload and drain")

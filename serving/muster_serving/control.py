"""The commands that a deployment's keeper sends to its model server: lines of JSON on a socket pair.

The socket is inherited from the keeper, so no other process can reach it; it has no name. A command is
``{"id": 1, "do": "load", "revision": "r8", "folder": "/…"}``, and so on::

    load    revision, folder, model     load a revision beside the others; `model` is its version's address, `log` an order
            log, setup                  of :mod:`muster_serving.request_log`, or null; and `setup` how its workers run,
                                        where it is not an ONNX model; `counts_inputs`, whether requests are counted
                                        by the bins of the training rows
    share   shares, ports               percent by revision; private ports of revisions in another process
    unload  revision                    forget a revision without a share
    open                                answer users on the public socket
    drain                               accept no more users there, and have the connected ones reconnect
    admit   needed, limits, key,        let requests in by these rules (:mod:`muster_serving.clients`): whether tokens are
            tokens                      needed, the limits, the key of muster's own requests, the digests of the tokens
    finish  seconds                     at the end, give requests under way so long, where that is longer than before

The answer is ``{"id": 1}`` or ``{"id": 1, "error": "…"}``. A slow command does not delay the answers of others. The line
``{"told": "…", "revision": "r8", "ended": true}``, which answers nothing, says what is wrong now with the workers of a
revision, nothing where the text is empty, and whether one has just ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from muster_serving.clients import Clients
from muster_serving.errors import ModelError
from muster_serving.process.setup import Setup
from muster_serving.request_log import LogOrder
from muster_serving.revisions import Revisions

logger = logging.getLogger("muster.serving")

_LINE_BYTES = 1 << 20  # a command names the tokens of all clients


class Control:
    """Carries out the keeper's commands.

    :param opened: called by ``open``. :param drain: called by ``drain``. :param finish: called by ``finish``.
    """

    def __init__(
        self,
        revisions: Revisions,
        clients: Clients,
        *,
        opened: Callable[[], Awaitable[None]],
        drain: Callable[[], None],
        finish: Callable[[float], None],
    ) -> None:
        self._revisions = revisions
        self._clients = clients
        self._opened = opened
        self._drain = drain
        self._finish = finish

    async def serve(self, connection: socket.socket) -> None:
        """Answer commands until the keeper hangs up."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_BYTES)

        def told(revision: str, what: str, ended: bool) -> None:
            logger.error("revision %s: %s", revision, what or "its workers are up")
            writer.write(json.dumps({"told": what, "revision": revision, "ended": ended}).encode() + b"\n")

        self._revisions.told = told
        running: set[asyncio.Task[None]] = set()
        try:
            while line := await reader.readline():
                task = asyncio.create_task(self._answer(line, writer))
                running.add(task)
                task.add_done_callback(running.discard)
        finally:
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        command = json.loads(line)
        answer = {"id": command["id"]}
        try:
            await self._do(command)
        except ModelError as error:
            answer["error"] = str(error)
        except Exception as error:  # any error: the keeper waits for an answer
            logger.exception("command %r", command["do"])
            answer["error"] = f"{type(error).__name__}: {error}"
        writer.write(json.dumps(answer).encode() + b"\n")

    async def _do(self, command: dict[str, Any]) -> None:
        action = command["do"]
        if action == "load":
            folder, model = Path(command["folder"]), command.get("model")
            setup = Setup.parse(command["setup"]) if command.get("setup") else None
            log = LogOrder.read(command["log"]) if command.get("log") else None
            await self._revisions.load(
                command["revision"],
                folder,
                model=model,
                setup=setup,
                log=log,
                counts_inputs=bool(command.get("counts_inputs")),
            )
        elif action == "share":
            self._revisions.share(command["shares"], command["ports"])
        elif action == "unload":
            await asyncio.to_thread(self._revisions.unload, command["revision"])
        elif action == "open":
            await self._opened()
        elif action == "drain":
            self._drain()
        elif action == "admit":
            self._clients.order(command)
        elif action == "finish":
            self._finish(command["seconds"])
        else:
            known = "load, share, unload, open, drain, admit and finish"
            raise ModelError(f"command {action!r:.40}: known are {known}")

"""The commands that a deployment's keeper sends to its model server: lines of JSON on a socket pair.

The socket is inherited from the keeper, so no other process can reach it; it has no name. When the keeper is gone, the
server makes another pair, and sends one end to the next keeper through a mailbox that it inherited. A command is
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
    ping                                answer
    finish  seconds                     at the end, give requests under way so long, where that is longer than before

The answer is ``{"id": 1}`` or ``{"id": 1, "error": "…"}``. A slow command does not delay the answers of others. The line
``{"told": "…", "revision": "r8", "ended": true}``, which answers nothing, says what is wrong now with the workers of a
revision, nothing where the text is empty, and whether one has just ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from muster_serving.clients import Clients
from muster_serving.errors import ModelError
from muster_serving.process.start import Setup
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
        self._troubles: dict[str, str] = {}

    async def serve(
        self, connection: socket.socket | None, post: socket.socket | None, label: Mapping[str, Any]
    ) -> None:
        """Answer commands, those of the next keeper, too, until there is none to come.

        :param post: takes a line for the next keeper; None: there is none. :param label: goes with it, and says which server this is.
        """
        while connection:
            await self._follow(connection)
            connection = self._introduced(post, label) if post else None

    def _introduced(self, post: socket.socket, label: Mapping[str, Any]) -> socket.socket | None:
        """Send a line to the next keeper, and return its other end; None where no keeper is left to take it."""
        ours, theirs = socket.socketpair()
        hello = {**label, "loaded": self._revisions.names, "pid": os.getpid()}
        handle = os.pidfd_open(os.getpid())
        try:
            socket.send_fds(
                post, [json.dumps(hello).encode()], [theirs.fileno(), handle], socket.MSG_DONTWAIT
            )
        except OSError:
            ours.close()
            return None
        finally:
            os.close(handle)
            theirs.close()
        return ours

    async def _follow(self, connection: socket.socket) -> None:
        """Answer the commands of one keeper until it hangs up."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_BYTES)

        def tell(revision: str, what: str, ended: bool) -> None:
            writer.write(json.dumps({"told": what, "revision": revision, "ended": ended}).encode() + b"\n")

        def told(revision: str, what: str, ended: bool) -> None:
            logger.error("revision %s: %s", revision, what or "its workers are up")
            self._troubles[revision] = what
            tell(revision, what, ended)

        for revision, what in self._troubles.items():
            tell(revision, what, False)
        self._revisions.told = told
        running: set[asyncio.Task[None]] = set()
        try:
            while (line := await reader.readline()).endswith(
                b"\n"
            ):  # else the keeper ended in the middle of it
                task = asyncio.create_task(self._answer(line, writer))
                running.add(task)
                task.add_done_callback(running.discard)
        except ConnectionResetError:
            pass
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
        elif action != "ping":
            known = "load, share, unload, open, drain, admit, finish and ping"
            raise ModelError(f"command {action!r:.40}: known are {known}")

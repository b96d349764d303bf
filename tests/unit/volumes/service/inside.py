"""The service in threads of this process, so that a test may change, and look at, what it runs on."""

from __future__ import annotations

import socket
import threading

import uvicorn
from tests.unit.volumes.service.process import Service
from tests.waiting import GUARD_SECONDS, eventually

from muster.volumes.folder import FolderStore
from muster.volumes.service.app import create_app
from muster.volumes.service.serve import configured


class Inside(Service):
    """Like :class:`Service`; it cannot be killed, only ended."""

    def start(self) -> None:
        """Start it and return when it answers."""
        app = create_app(FolderStore(self.root), keys=self.keys)
        config = configured(app)
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()
        eventually(self.answers)

    def kill(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join(GUARD_SECONDS)

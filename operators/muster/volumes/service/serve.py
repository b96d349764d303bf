"""Runs the store service: ``python -m muster.volumes.service --store DIR --key FILE --port N``.

One store has one service at a time: it holds the lock file ``service.lock`` in the store, and the kernel
releases it with the process. A second service waits for the lock, and meanwhile passes requests on to the
first, if both advertise an address (``--advertise``). Where several machines mount the claim, its file system must
share locks between them: a service that advertises an address refuses to serve beside another, and without it the
cluster must ensure this, with the strategy Recreate. The service may be killed at any moment; its end needs no work.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from muster.core.errors import MusterError, SpecError
from muster.core.forking import end_at_sigterm
from muster.core.locks import take
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore
from muster.volumes.service.app import create_app
from muster.volumes.service.clients import ClientConnection, ClientConnections, most_connections
from muster.volumes.service.standby import announce, end_when_replaced, stand_by, still_served
from muster.volumes.service.tokens import KeyFile, TokenKind, operator_token

LOCK = "service.lock"
DAY_SECONDS = 86_400.0
GRACE_SECONDS = 5

_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Serve until it is stopped; return the exit code."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    end_at_sigterm()
    try:
        keys = KeyFile(asked.key)
        if asked.print_token is not None:
            seconds = asked.print_token * DAY_SECONDS
            sys.stdout.write(
                operator_token(keys, lifetime_seconds=seconds, kind=TokenKind(asked.kind)) + "\n"
            )
            return 0
        store = FolderStore(asked.store, compare=Settings.load().compare)
        term = secrets.token_hex(8)
        lock, listening = _alone(store, asked, term)
    except (MusterError, OSError, OverflowError) as error:
        sys.stderr.write(f"the store service cannot start: {error}\n")
        return 2
    with listening, suppress(KeyboardInterrupt):
        _LOG.info("serving %s on %s:%d", store.layout.root, *listening.getsockname()[:2])
        uvicorn.Server(
            configured(create_app(store, keys=keys, keeps_requests=asked.keep_requests, term=term))
        ).run([listening])
    os.close(lock)
    return 0


def configured(app: Starlette) -> uvicorn.Config:
    """Return how the service is served."""
    return uvicorn.Config(
        ClientConnections(app, most=most_connections()),
        http=ClientConnection,
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m muster.volumes.service", description="Serve a store.")
    parser.add_argument(
        "--key", type=Path, required=True, help="a file with keys that sign tokens, one a line"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8470, help="on which port (8470)")
    parser.add_argument(
        "--advertise", metavar="HOST", help="this one's address: a second service passes requests on to it"
    )
    parser.add_argument(
        "--keep-requests",
        action="store_true",
        help="let model servers keep requests in the store's folder, which muster.backends.kubernetes.collecting commits",
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--store", type=Path, help="the store's folder, created if it is not there")
    task.add_argument("--print-token", type=float, metavar="DAYS", help="print a token and exit")
    parser.add_argument(
        "--kind",
        choices=("operator", "reader", "sweeper", "page"),
        default="operator",
        help="the kind of token",
    )
    return parser


def _alone(store: FolderStore, asked: argparse.Namespace, term: str) -> tuple[int, socket.socket]:
    """Listen, and take the store's lock until the end of this process."""
    path = store.layout.root / LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    where = (asked.host, asked.port)
    listening = socket.create_server(where) if asked.advertise else None
    if not take(lock, wait=False):
        _LOG.warning("another store service holds %s: waiting until it ends", path)
        if listening is None:
            take(lock)
        else:
            stand_by(lock, listening)
    if listening is None:
        return lock, socket.create_server(where)
    own = f"{asked.advertise}:{listening.getsockname()[1]}"
    other = still_served(lock, own=own)
    if other is not None:
        raise SpecError(
            f"the lock {path} was free, but the store service at {other} still serves this store: the file system of the "
            "store does not share locks (flock) between nodes, or the lock file was replaced. Have one service "
            "(store.replicas=1 in the chart), or a file system that shares locks, such as NFS 4 or CephFS"
        )
    announce(lock, own, term)
    end_when_replaced(path, term)
    return lock, listening

"""The init container's program: fetches the worker and the code from the store service, and writes its orders.

Its source lies in the job's Secret and runs in the user's image, so it stands alone: the standard
library of Python 3.10, nothing of muster. It is told what to do by one JSON argument (:func:`main`).
It ends with 0, or as the worker would: 65 where asking again cannot help, 68 where it may, and 70 where
this start of the gang is over.
"""

# ruff: noqa: E402 - what takes long to import comes after what reacts to a signal
from __future__ import annotations

import os
import signal

KILLED = 128 + signal.SIGTERM
if __name__ == "__main__":  # a pod's first process, which no signal ends that it does not handle
    signal.signal(signal.SIGTERM, lambda *_: os._exit(KILLED))

import http.client
import json
import shutil
import socket
import sys
import tarfile
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

SPEC_ERROR, RANK_LOST, STOPPED = 65, 68, 70
_SHUT = {
    401: "refuses this job's token",
    403: "refuses this job's token",
    404: "has nothing for this job",
    410: "is done with this job",
}
_LATER = (408, 425, 429)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.1, 1.0, 1.5
_CONNECT_SECONDS = 2.0
_GONE_SECONDS = 3  # as muster.core.keepalive has it
_ANSWER_SECONDS = 120.0  # the first to ask waits until the checkpoints are copied

T = TypeVar("T")


class StartRefused(Exception):
    """Asking again cannot help."""


class Busy(OSError):
    """What is asked for is being made: it is worth to ask again for as long as that is said."""


class StartStale(Exception):
    """The gang has gone on, or ended, without this pod."""


def main(told: dict[str, Any]) -> int:
    """Fill the folder; say on stdout what stood in the way.

    :param told: ``url`` of the bundle; ``token`` and ``orders``, files that hold the job's; ``role``,
        ``index``, ``sealed`` and ``gpus`` of this replica; ``folder`` to fill; ``patience_seconds``.
    """
    until = time.monotonic() + told["patience_seconds"]
    try:
        fetched = _persist(
            lambda: fetch(told["url"], told["token"], told["folder"]), until, _place(told["url"])
        )
        _write_orders(told, attempt=fetched)
    except StartRefused as error:
        return _end(SPEC_ERROR, str(error))
    except StartStale as error:
        return _end(STOPPED, str(error))
    except OSError as error:
        return _end(RANK_LOST, str(error))
    return 0


def _write_orders(told: dict[str, Any], *, attempt: int) -> None:
    """Make the gang's orders those of this replica, in this attempt."""
    with open(told["orders"], encoding="utf-8") as file:
        orders = json.load(file)
    gpus = [str(card) for card in range(told["gpus"])]  # a container counts its own from 0
    orders.update(
        role=told["role"], index=int(told["index"]), sealed=told["sealed"], gpus=gpus, attempt=attempt
    )
    with open(os.path.join(told["folder"], "replica.json"), "w", encoding="utf-8") as file:
        json.dump(orders, file)


def _end(code: int, message: str) -> int:
    print(f"muster: {message}", flush=True)
    return code


def _persist(ask: Callable[[], T], until: float, what: str) -> T:
    """Ask again with growing pauses, for as long as there is time; what a busy store takes is not counted.

    :raises OSError: it was in vain.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        asked = time.monotonic()
        try:
            return ask()
        except Busy:
            time.sleep(pause)
            until += time.monotonic() - asked
        except (OSError, http.client.HTTPException, tarfile.TarError, EOFError) as error:
            if time.monotonic() + pause > until:
                raise OSError(f"gave up on {what}: {error or type(error).__name__}") from error
            time.sleep(pause)
        pause = min(_GROWTH * pause, _LONGEST_PAUSE_SECONDS)


def fetch(url: str, token_file: str, folder: str) -> int:
    """Fill the folder and return which attempt to the store this start of the gang is."""
    with open(token_file, encoding="ascii") as file:
        token = file.read().strip()
    where = urlsplit(url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=_CONNECT_SECONDS)
    try:  # no proxy and no redirect: only the store service gets the token
        target = f"{where.path}?{where.query}"
        connection.connect()
        _keep_alive(connection.sock)
        connection.sock.settimeout(_ANSWER_SECONDS)
        connection.request("GET", target, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response, url)
        attempt = response.headers["Muster-Attempt"] or ""
        if not attempt.isdigit():
            raise StartRefused(
                f"{_place(url)} is no store service of this release: it does not number attempts"
            )
        _empty(folder)
        _unpack(response, folder)
        return int(attempt)
    finally:
        connection.close()


def _keep_alive(connected: socket.socket) -> None:
    """Have a connection tell within seconds that the other end is gone without a word."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _GONE_SECONDS - 1),
        (socket.TCP_USER_TIMEOUT, 1000 * _GONE_SECONDS),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _place(url: str) -> str:
    return f"the store at {url.partition('?')[0]}"


def _refusal(response: http.client.HTTPResponse, url: str) -> Exception:
    status, body = response.status, response.read(2000).decode("utf-8", "replace").strip()
    try:
        answer = json.loads(body)
        said, kind = str(answer["message"]), answer["error"]
    except (ValueError, KeyError, TypeError):
        said, kind = body[:200], None
    if (status, kind) == (503, "Unavailable"):
        return Busy(said)
    if status == 409:
        return StartStale(f"this start of the gang is over (HTTP {status}): {said}")
    if status >= 500 or status in _LATER:
        return OSError(f"HTTP {status} {said}")
    return StartRefused(f"{_place(url)} {_SHUT.get(status, 'is no store service')} (HTTP {status}): {said}")


def _empty(folder: str) -> None:
    """Take away what the try before has left."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _unpack(response: http.client.HTTPResponse, folder: str) -> None:
    root = os.path.realpath(folder)
    with tarfile.open(fileobj=response, mode="r|*") as archive:
        for member in archive:
            _extract(archive, member, root)
    response.read()
    if response.length:
        raise EOFError(f"the bundle ends {response.length} bytes too early")
    if not os.path.isfile(os.path.join(root, "worker.pyz")):
        raise StartRefused("the bundle holds no worker.pyz: it is not from a store service of this release")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    """Write one member below `root`; links that came before it are seen through."""
    folder = os.path.realpath(os.path.join(root, os.path.dirname(member.name)))
    path = os.path.join(folder, os.path.basename(member.name))
    if member.name.startswith("/") or ".." in member.name.split("/") or not _below(folder, root):
        raise StartRefused(f"the bundle holds {member.name!r:.200}, which leads out of its folder")
    os.makedirs(folder, exist_ok=True)
    try:
        if member.isdir():
            os.makedirs(path, exist_ok=True)
        elif member.issym():
            _link(member, path, root)
        elif member.isreg():
            _write(archive, member, path)
        else:
            raise StartRefused(
                f"the bundle holds {member.name!r:.200}, which is neither file, folder nor link"
            )
    except FileExistsError as error:
        raise StartRefused(f"the bundle holds {member.name!r:.200} twice") from error


def _link(member: tarfile.TarInfo, path: str, root: str) -> None:
    target = os.path.realpath(os.path.join(os.path.dirname(path), member.linkname))
    if member.linkname.startswith("/") or not _below(target, root):
        raise StartRefused(f"the bundle's link {member.name!r:.200} leads out of its folder")
    os.symlink(member.linkname, path)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    content = archive.extractfile(member)
    assert content is not None  # it is a file
    with open(path, "xb") as file:
        shutil.copyfileobj(content, file)
    os.chmod(path, member.mode & 0o777 | 0o400)


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.exit(
            _end(SPEC_ERROR, f"the image has Python {sys.version.split()[0]}, muster needs 3.10 or newer")
        )
    sys.exit(main(json.loads(sys.argv[1])))

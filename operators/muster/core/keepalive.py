"""How soon a connection tells that the other end is gone without a word, as a pod is whose node or network went with it.

An end that still is there answers a probe by its kernel, however long it takes for what it was asked. So a request may wait
for an hour, and is sent again a few seconds after the other end is gone.

That holds for a request that the other kernel takes whole. One with a long body waits in this kernel until the other end
reads on, and for TCP_USER_TIMEOUT an end that reads nothing for a while, as its disk is slow or its threads are taken, is
the same as one that is gone. So such a request gives the other end longer.
"""

from __future__ import annotations

import socket

CONNECT_SECONDS = 2.0  # a first packet that is lost is sent again after one
_SILENT_SECONDS, _PROBES = 1, 2
GONE_SECONDS = _SILENT_SECONDS * (1 + _PROBES)

STALLED_SECONDS = 60
SMALL_BYTES = 32 << 10  # of a body: a kernel takes as much for an end that reads nothing yet


def socket_options(*, small: bool = True) -> tuple[tuple[int, int, int], ...]:
    """Return the options of a connection. :param small: every body that it sends has at most :data:`SMALL_BYTES`."""
    unread_seconds = GONE_SECONDS if small else STALLED_SECONDS
    return (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
        # of what was sent and not received
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * unread_seconds),
    )


def keep_alive(connected: socket.socket, *, small: bool = True) -> None:
    """Have a socket tell that the other end is gone: within :data:`GONE_SECONDS`, or :data:`STALLED_SECONDS`.

    :param small: every body that it sends has at most :data:`SMALL_BYTES`.
    """
    for level, option, value in socket_options(small=small):
        connected.setsockopt(level, option, value)

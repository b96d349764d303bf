"""Socket options that detect a peer that is gone without closing, such as a pod whose node is lost.

The kernel of a live peer answers keepalive probes, however long the peer takes for its answer. So a request
may wait for an hour, and is still sent again a few seconds after the peer is gone.

That holds for a request that the peer's kernel takes whole. A long body waits in the local kernel until the
peer reads on; with TCP_USER_TIMEOUT, a peer that does not read for a while (slow disk, busy threads) looks
the same as one that is gone. So a request with a long body gets a longer limit.
"""

from __future__ import annotations

import socket

CONNECT_SECONDS = 2.0  # a lost first packet is sent again after one second
_SILENT_SECONDS, _PROBES = 1, 2
GONE_SECONDS = _SILENT_SECONDS * (1 + _PROBES)

STALLED_SECONDS = 60
SMALL_BYTES = 32 << 10  # of a body: a kernel buffers this much for a peer that does not read yet


def socket_options(*, small: bool = True) -> tuple[tuple[int, int, int], ...]:
    """Return the options of a connection.

    :param small: every body sent on it has at most :data:`SMALL_BYTES`.
    """
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
    """Make a socket fail once its peer is gone: within :data:`GONE_SECONDS`, or :data:`STALLED_SECONDS`.

    :param small: every body sent on it has at most :data:`SMALL_BYTES`.
    """
    for level, option, value in socket_options(small=small):
        connected.setsockopt(level, option, value)

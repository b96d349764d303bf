"""Answers a question about usage where the log is: in this process for a folder, else by a call of the store service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from muster.core.wire import dumps, loads
from muster.ext.usage import log, table
from muster.ext.usage.table import UsageQuestion, UsageRow

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore
    from muster.volumes.protocols import LocalStore
    from muster.volumes.service.calls import Bind, Call, Served

_PATH = "/v1/usage"


@dataclass(frozen=True, kw_only=True)
class UsageTable:
    """An answer."""

    rows: tuple[UsageRow, ...]


def ask(store: LocalStore, question: UsageQuestion) -> UsageTable:
    """Answer a question about the jobs of a store."""
    from muster.volumes.service.client import ServiceStore

    if isinstance(store, ServiceStore):
        answer = store.connection.request("POST", _PATH, content=dumps(question).encode(), slow=True)
        return loads(UsageTable, answer.content)
    return _answer(cast("FolderStore", store), question)  # all else that there is


def routes(_: Served) -> Iterator[Bind]:
    """Return the route of this module."""
    from muster.volumes.service.calls import LIMIT_JSON_BYTES, route

    yield route("POST", _PATH, _call, turns="working", text=LIMIT_JSON_BYTES, right="reads")


def _call(call: Call) -> UsageTable:
    return _answer(call.served.store, call.message(UsageQuestion))


def _answer(store: FolderStore, question: UsageQuestion) -> UsageTable:
    now = time.time()
    lines = log.read(store.layout.root, store.ledger, since=question.since, now=now)
    return UsageTable(rows=tuple(table.usage(lines, question, now=now)))

"""The thread that counts while the page is closed: one, that outlives what is away, and ends when it is told to."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.waiting import until

from muster.core.errors import BackendError
from muster.ext.page.answering import CounterSampling


class Lent:
    """An opening whose deployments are away the first time."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.looks = 0

    @contextmanager
    def lent(self) -> Any:
        yield SimpleNamespace(part=lambda _: self)

    def remember(self) -> None:
        self.looks += 1
        self.threads.add(threading.get_ident())
        if self.looks == 1:
            raise BackendError("the cluster does not answer")


def test_it_goes_on_after_an_error_in_one_thread_until_it_is_ended() -> None:
    opening, others = Lent(), set(threading.enumerate())
    sampling = CounterSampling(opening, seconds=0.001)  # type: ignore[arg-type]
    sampling.begin()
    sampling.begin()
    assert until(lambda: opening.looks >= 3)
    sampling.end()
    assert len(opening.threads) == 1
    assert not any(each.name == "muster-deployments" for each in set(threading.enumerate()) - others)

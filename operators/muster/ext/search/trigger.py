"""The trigger that drives a search while its task is deferred."""

from __future__ import annotations

import asyncio
from contextlib import closing

from muster.airflow.attempts import trigger
from muster.core.origin import Origin
from muster.core.wire import loads
from muster.ext.search.driver import SearchDriver


class SearchTrigger(trigger.WaitingTrigger):
    """Drives a search, from its events.

    :param origin: the task instance that searches, as :func:`muster.core.wire.dumps` writes it.
    :param deadline: when it has to have ended, in seconds since the epoch; None: never.
    """

    stored_in = trigger.__name__

    def __init__(self, *, search_id: str, origin: str, deadline: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.search_id = search_id
        self.origin = origin
        self.deadline = deadline
        self.what, self.told = f"search {search_id}", {"deadline": deadline}

    async def follow(self, limit: asyncio.Timeout) -> None:  # noqa: ARG002 - it stays the deadline
        """Drive the search; how it ended is among its events."""
        from muster.airflow.attempts.hub import driving_hub

        ours = driving_hub("search")
        async with ours.joined() as backend:
            driver = await ours.look(lambda: SearchDriver(backend, self.search_id, say=self.say))
            try:
                while await ours.look(driver.step) is None:
                    pass
            finally:
                driver.leave()

    def stop_unless_wanted(self) -> bool:
        """Pause the trials where the task was ended or cleared: nothing would drive the search any more."""
        from muster.airflow.attempts.task_state import ask, ended_by_hand
        from muster.airflow.site import open_backend

        state = ask(loads(Origin, self.origin))
        if state is not None and not ended_by_hand(state):
            return False
        with closing(open_backend()) as backend:
            SearchDriver(backend, self.search_id, say=self.say).pause()
        return True

"""The scheduler of ``muster up`` rests until there is something to schedule: PostgreSQL tells it, and its workers do.

Airflow's own looks again and again: ten times a second keeps a seventh of a core busy where nothing happens, once a second
delays every task. Its executor is asked in each of these looks, so it is the executor that waits.
"""

from __future__ import annotations

import select
import time
from typing import Any

from muster.airflow.upstream import internals

_CHANNEL = "muster_scheduler"
_LOOK_SECONDS = 0.02
_REST_SECONDS = 1.0  # what only the clock brings is seen this late

# What is due for the scheduler: a run is asked for, a task ended or was woken, an asset came. What it writes itself is not.
# The states are arguments and no condition of the trigger: Airflow may then change the column's type.
TRIGGERS = f"""
CREATE OR REPLACE FUNCTION muster_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_NARGS = 0 THEN
    PERFORM pg_notify('{_CHANNEL}', '');
  ELSIF NEW.state IS DISTINCT FROM OLD.state AND (NEW.state = ANY(TG_ARGV) OR OLD.state = 'deferred') THEN
    PERFORM pg_notify('{_CHANNEL}', '');
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER muster_wake AFTER INSERT OR UPDATE ON dag_run
  FOR EACH ROW EXECUTE FUNCTION muster_wake('queued');
CREATE OR REPLACE TRIGGER muster_wake AFTER UPDATE ON task_instance
  FOR EACH ROW EXECUTE FUNCTION muster_wake('success', 'failed', 'skipped', 'upstream_failed', 'removed');
CREATE OR REPLACE TRIGGER muster_wake AFTER INSERT ON asset_dag_run_queue
  FOR EACH STATEMENT EXECUTE FUNCTION muster_wake();
"""


class LocalExecutor(internals.local_executor.LocalExecutor):
    """Airflow's, which ends each look of the scheduler by waiting for the next reason to look."""

    def start(self) -> None:
        """Start the workers, and then listen: they are forks."""
        super().start()
        self._notices = _Notices()

    def heartbeat(self) -> None:
        """Hand out tasks and hear of ended ones; where there was neither, wait."""
        running = set(self.running)
        super().heartbeat()
        if self.event_buffer or self.running != running:
            return
        end = time.monotonic() + _REST_SECONDS
        while (left := end - time.monotonic()) > 0 and self.result_queue.empty():
            if self._notices.came(min(left, _LOOK_SECONDS) if self.running else left):
                return


class _Notices:
    """What muster's own PostgreSQL notifies; nothing from another database, or while it is away."""

    def __init__(self) -> None:
        self._connection: Any = None

    def came(self, seconds: float) -> bool:
        """Wait for a notice; return whether one came."""
        import psycopg2

        try:
            if self._connection is None:
                self._connection = _listen()
            if self._connection is not None:
                if not select.select([self._connection], [], [], seconds)[0]:
                    return False
                self._connection.poll()
                came = bool(self._connection.notifies)
                self._connection.notifies.clear()
                return came
        except psycopg2.Error:  # it is being started again; the scheduler itself tells of it
            self._connection = None
        time.sleep(seconds)
        return False


def _listen() -> Any:
    import psycopg2

    engine = internals.settings.engine
    assert engine is not None
    if engine.dialect.driver != "psycopg2" or engine.url.host:  # muster's own has a socket, and no host
        return None
    words, options = engine.dialect.create_connect_args(engine.url)
    connection = psycopg2.connect(*words, **options)
    connection.autocommit = True
    connection.cursor().execute(f"LISTEN {_CHANNEL}")
    return connection


def install() -> None:
    """Have muster's own PostgreSQL tell of what is due."""
    from sqlalchemy import text

    assert internals.settings.engine is not None
    with internals.settings.engine.begin() as connection:
        connection.execute(text(TRIGGERS))

"""Clicks and triggers while tasks run: each is answered, each task runs once, and so with a database that is killed."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path

import psycopg2
import pytest
from tests.airflow.clicked import AT_ONCE, SMALL, dags
from tests.ports import free_port
from tests.site import Site
from tests.waiting import until

from muster.ext.up.postgres import Postgres

MANY, CLICKS = 12, 16  # benchmarks/up.py has more


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.write("many", dags(MANY))
        site.up()
        yield site


def _server(site: Site) -> int:
    """The process of the site's PostgreSQL; 0 while it is started again."""
    try:
        return int((site.home / "up" / "postgres" / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return 0


def test_no_click_beside_tasks_is_refused_and_no_task_is_tried_again(site: Site) -> None:
    busy = site.trigger("many")

    def click(dag_id: str) -> list[int]:
        paused = site.client.patch(f"/api/v2/dags/{dag_id}", json={"is_paused": False})
        asked = site.client.post(f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None})
        return [paused.status_code, asked.status_code]

    with ThreadPoolExecutor(AT_ONCE) as clicks:
        answered = [*clicks.map(click, islice(cycle(SMALL), CLICKS))]
    assert answered == [[200, 200]] * CLICKS
    assert site.wait("many", busy) == "success"
    for dag_id in SMALL:
        runs = site.ask_api("GET", f"dags/{dag_id}/dagRuns")["dag_runs"]
        assert {site.wait(dag_id, run["dag_run_id"]) for run in runs} == {"success"}
    with site.database() as database:
        database.execute("SELECT state, try_number, count(*) FROM task_instance GROUP BY state, try_number")
        assert database.fetchall() == [("success", 1, MANY + CLICKS)]


def test_a_run_ends_well_though_the_database_is_killed_meanwhile(site: Site) -> None:
    run_id = site.trigger("many")
    for _ in range(2):
        assert until(lambda: "success" in site.states("many", run_id).values())
        before = _server(site)
        os.kill(before, signal.SIGKILL)
        assert until(lambda before=before: _server(site) not in (0, before))  # type: ignore[misc]
    assert site.wait("many", run_id) == "success"
    assert "postgres was killed by SIGKILL: it is started again" in site.log.read_text()
    assert not {"failed", "upstream_failed"} & {*site.states("many", run_id).values()}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Postgres]:
    """A server that exists, with an empty database."""
    made = Postgres(folder=tmp_path / "data", log=tmp_path / "log")
    made.initialise()
    with made.running():
        yield made


def _asked(url: str, query: str) -> int:
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(query)
        return int(cursor.fetchone()[0])


# The server ends a client that makes more than ten tables.
_ENDS_WHAT_MIGRATES = """
CREATE FUNCTION ends() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT count(*) FROM pg_tables WHERE schemaname = 'public') > 10 THEN
    PERFORM pg_terminate_backend(pg_backend_pid());
  END IF;
END $$;
CREATE EVENT TRIGGER ends ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION ends();
SELECT 0"""
_LETS_IT_MIGRATE = "DROP EVENT TRIGGER ends; DROP FUNCTION ends; SELECT 0"


@pytest.mark.nightly  # unit/airflow/up has the refusals and the migration
def test_a_database_that_exists_is_migrated_and_used(tmp_path: Path, elsewhere: Postgres) -> None:
    with Site(tmp_path / "site") as site:
        site.write("many", dags(2))
        url = elsewhere.url.replace("+psycopg2", "")
        _asked(url, _ENDS_WHAT_MIGRATES)
        refused = site.muster("up", "--port", str(site.port), "--metrics-port", "0", "--database", url)
        assert refused.returncode == 1
        assert "is it what --database or own.cfg should name?" in refused.stderr
        _asked(url, _LETS_IT_MIGRATE)
        site.up("--database", url)
        assert site.wait("many", site.trigger("many")) == "success"
        assert not (site.home / "up" / "postgres").exists()
        assert _asked(url, "SELECT count(*) FROM pg_proc WHERE proname LIKE 'muster%'") == 0
        site.stop()
        site.set("database", sql_alchemy_conn=elsewhere.url)
        refused = site.muster(
            "up", "--metrics-port", "0", "--database", "postgresql://other@127.0.0.1/airflow"
        )
        assert refused.returncode == 1
        assert "own.cfg another under sql_alchemy_conn: leave one of them out" in refused.stderr


def test_a_database_that_does_not_answer_is_said(tmp_path: Path) -> None:
    with Site(tmp_path) as site, socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url, why in (
            (f"postgresql://airflow:secret@127.0.0.1:{port}/airflow", "timeout expired"),
            (f"postgresql://airflow:secret@127.0.0.1:{free_port()}/airflow", "Connection refused"),
        ):
            refused = site.muster("up", "--port", str(site.port), "--metrics-port", "0", "--database", url)
            assert refused.returncode == 1
            assert why in refused.stderr
            assert "--database" in refused.stderr
            assert "secret" not in refused.stderr

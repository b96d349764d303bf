"""Where the local backend keeps what it must remember: files below MUSTER_HOME."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.core.cancelling import UNKNOWN
from muster.core.errors import SpecError
from muster.core.verdict import Verdict
from muster.core.wire import dumps, loads
from muster.volumes.durability import write_whole
from muster.volumes.tree import remove

_RESERVE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Places:
    """The folders of one MUSTER_HOME that belong to jobs."""

    home: Path

    @property
    def tickets(self) -> Path:
        """One file for each job that waits."""
        return self.home / "queue"

    @property
    def claims(self) -> Path:
        """One file for each job that was started; it counts while it is locked."""
        return self.home / "claims"

    @property
    def admission_lock(self) -> Path:
        """A process that changes tickets or claims holds this lock."""
        return self.home / "admission.lock"

    def mark(self, job_id: str) -> str:
        """Return what a job's processes and cgroups are known by: another home may have a job of that name."""
        found = self.home.stat()
        return f"{job_id}.{found.st_dev:x}-{found.st_ino:x}"

    def job(self, job_id: str) -> JobFolder:
        """Return the folder of one job's supervisor; it is gone when the job has ended."""
        return JobFolder(self.home / "jobs" / job_id)


@dataclass(frozen=True)
class JobFolder:
    """What a supervisor writes down for itself, for a cancel, and for a supervisor after it."""

    root: Path

    @property
    def cancel(self) -> Path:
        """There once the job's end was asked for; it holds the verdict, or nothing."""
        return self.root / "cancel"

    def ask_to_end(self, why: Verdict) -> None:
        """Ask for the job's end; the first that asks says why."""
        self.root.mkdir(parents=True, exist_ok=True)
        new = self.root / f".cancel.{os.getpid()}.{threading.get_ident()}"
        with suppress(FileNotFoundError):  # the job ended meanwhile, and its folder went
            try:
                new.write_text(dumps(why), encoding="utf-8")
                os.link(new, self.cancel)  # whole, and the first stays
            except (FileExistsError, FileNotFoundError):
                return
            except OSError:  # a full disk, or one without links: the job has to end all the same
                self.cancel.touch()
            finally:
                new.unlink(missing_ok=True)

    def why(self) -> Verdict:
        """Why the job's end was asked for."""
        try:
            return loads(Verdict, self.cancel.read_bytes())
        except (FileNotFoundError, SpecError):  # with a full disk no reason is written
            return UNKNOWN

    def gives_back(self, extra: int = 0) -> Path:
        """There once the job was asked to give its room back and to wait again; it says for whom, or nothing.

        :param extra: only what it claims under this number, for one replica beyond its least number.
        """
        return self.root / (f"give-back-{extra}" if extra else "give-back")

    def ask_to_give_back(self, whom: str, *, extra: int = 0) -> None:
        """Ask the job for its room, for one of a higher priority; its supervisor looks.

        :param whom: who waits for what.
        :param extra: as for :meth:`gives_back`.
        """
        # The job ended meanwhile, and its folder went; else the next admission asks again.
        with suppress(OSError):
            try:
                write_whole(self.gives_back(extra), whom, durable=False)
            except FileNotFoundError:
                raise
            except OSError:  # a full disk: that it is asked matters, for whom does not
                self.gives_back(extra).touch()

    def forget_giving_back(self, extra: int = 0) -> None:
        """Forget that the job was asked for its room: it starts anew."""
        self.gives_back(extra).unlink(missing_ok=True)

    def for_whom(self, extra: int = 0) -> str:
        """Who waits for the job's room and how much of it; nothing where that is not known."""
        with suppress(OSError):
            return self.gives_back(extra).read_text(encoding="utf-8")
        return ""

    def note_ran(self, seconds: float) -> None:
        """Write down how long the job ran before it had to wait again."""
        write_whole(self._ran, repr(seconds), durable=False)

    def ran(self) -> float | None:
        """How many seconds the job ran before it had to wait again; None where it never had to."""
        try:
            return float(self._ran.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:  # the power went while it was written
            return 0.0

    @property
    def _ran(self) -> Path:
        return self.root / "ran"

    @property
    def supervisor(self) -> Path:
        """Pid, boot id and start time of the supervisor."""
        return self.root / "supervisor.json"

    @property
    def stderr(self) -> Path:
        """What the supervisor itself says; a traceback if it has a defect."""
        return self.root / "supervisor.log"

    def report(self, attempt: int, role: str, index: int) -> Path:
        """Where one replica says how it ended."""
        return self.root / f"attempt-{attempt}" / f"{role}-{index}.report.json"

    def keep_reserve(self) -> None:
        """Keep some room on the disk, so that a job that fills it can still be recorded as failed."""
        path = self.root / "reserve"
        with path.open("wb") as reserve:
            try:
                os.posix_fallocate(reserve.fileno(), 0, _RESERVE_BYTES)
            except OSError as error:  # it does not say where
                raise OSError(error.errno, error.strerror, str(path)) from error

    def drop_reserve(self) -> None:
        """Give that room back, and the temporary files too."""
        (self.root / "reserve").unlink(missing_ok=True)
        self.drop_scratch()

    def scratch(self) -> Path:
        """Return a new folder for the job's temporary files, and forget the one before.

        It lies in the machine's own temporary folder, because a socket's path may have no more than
        108 characters and Python's multiprocessing makes its sockets there.
        """
        self.drop_scratch()
        folder = Path(os.environ.get("TMPDIR") or "/tmp", f"muster-{self.root.name}-{os.getpid()}")  # noqa: S108
        self._scratch_link.symlink_to(folder)
        folder.mkdir(mode=0o700)  # fails where it exists, so no other user can own it
        return folder

    def drop_scratch(self) -> None:
        """Delete the temporary files."""
        try:
            folder = self._scratch_link.readlink()
        except OSError:
            return
        with suppress(OSError):  # what a job made undeletable there must not keep it from its end
            remove(folder)
        self._scratch_link.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget the job; its ledger entry stays."""
        self.drop_scratch()
        remove(self.root)

    @property
    def _scratch_link(self) -> Path:
        return self.root / "scratch"

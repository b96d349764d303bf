"""A third backend, complete: a queue in memory, and one forked process for each job, which starts its workers.

Of one machine's backend it takes nothing but how Linux names and ends processes. What a job is, how it is entered,
watched, cancelled and swept it takes from :mod:`muster.backends.jobs`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.forks import forks
from tests.places import MadePlace
from tests.ports import free_port

from muster.backends.base import Backend
from muster.backends.forecast import Competition, Demand
from muster.backends.jobs.checks import check_inputs, from_environment, lease_inputs, secret_values
from muster.backends.jobs.ending import decide, is_decided, record
from muster.backends.jobs.runner import Look
from muster.backends.jobs.sizing import LOOK_SECONDS, Growth, Seen, Sizing, resized
from muster.backends.local.processes import MARK_VARIABLE, descendants, end_descendants, end_strays, marked
from muster.backends.tracking import URI, Tracking
from muster.core.errors import BadOutput, CannotSchedule, ImageError, MusterError, SpecError
from muster.core.job import JobSpec
from muster.core.linux import adopt_orphans
from muster.core.locks import locked
from muster.core.masking import Masking
from muster.core.progress import Told, heard
from muster.core.replica import LOOPBACK, Replica, Report
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.verdict import Cause, ExitCode, Verdict, first_of
from muster.core.wire import dumps, loads
from muster.images.environment import Environments
from muster.images.worker_archive import worker_folder
from muster.volumes.durability import write_whole
from muster.volumes.folder import FolderStore

_FORKS = forks(__name__)  # a process without threads is forked, not that of the caller
_LOOK_SECONDS, _SETTLE_SECONDS, _MARGIN_SECONDS = 0.05, 0.5, 2.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_AGAIN = "run it again"
_PRIORITIES = {"high": 1, "low": -1}


class ForkRunner:
    """Runs jobs for as long as its own process lives; see :class:`muster.backends.jobs.runner.Runner`."""

    pauses_seconds = (0.01, 0.1)
    part_bytes = 1 << 20
    margin_seconds = 10.0

    def __init__(self, home: Path, cache: Path, store: FolderStore, *, memory_gib: float) -> None:
        self._home, self._cache, self._store = home, cache, store
        self._memory_gib = memory_gib
        self._lock = threading.RLock()
        self._waiting: dict[str, tuple[JobSpec, JobStatus]] = {}
        self._running: dict[str, tuple[JobSpec, BaseProcess]] = {}
        self._sizes = _Sizes(home)
        self._growths: dict[str, Growth] = {}
        self._next = 0.0

    def check(self, job: JobSpec) -> tuple[str, ...]:
        if _memory(job) > self._memory_gib:
            raise CannotSchedule(f"{job.name} asks for {_memory(job):g} GiB of {self._memory_gib:g}")
        if any(secret.source == "kubernetes" for secret in job.secrets.values()):
            raise CannotSchedule(f"job {job.name}: there are no Kubernetes Secrets here")
        secret_values(job, from_environment)
        if not any(role.resources.gpus for role in job.roles):
            return ()
        if job.require_gpus:
            raise CannotSchedule(f"job {job.name} requires GPUs, and there are none")
        return ("there are no GPUs: the whole gang runs on CPUs",)

    def side_by_side(self, job: JobSpec) -> int | None:
        return None

    def tracking(self, job: JobSpec) -> Tracking:
        found = {**job.env, **secret_values(job, from_environment)}
        return Tracking(variables=found, chosen=URI in found, containers=True)

    def build(self, image: str, lock: Path, digest: str, say: Callable[[str], None]) -> None:
        Environments(self._cache).ensure(image, lock, digest, say)

    def start(self, job: JobSpec, status: JobStatus) -> None:
        with self._lock:
            if not self._works_on(status.job_id):
                self._waiting.setdefault(status.job_id, (job, status))
            self._admit()

    def look(self, *, many: bool) -> Look:
        self._admit()
        return self._look

    def stop(self, job: JobSpec, status: JobStatus, why: Verdict, *, owner: str | None) -> bool:
        job_id, ledger = status.job_id, self._store.ledger
        with _alone(self._store, job_id):
            status = ledger.status(job_id)
            if is_decided(status):
                return owner in (None, status.owner)
            if not decide(ledger, status, why, owner=owner):
                return False
        with self._lock:
            self._waiting.pop(job_id, None)
        self.end(job, job_id, late=False)
        return True

    def end(self, job: JobSpec, job_id: str, *, late: bool) -> str:
        if self._works_on(job_id):
            if late:
                self._running[job_id][1].kill()
            return "its process runs"
        status = self._store.ledger.status(job_id)
        if status.state is JobState.COMMITTING:
            self.start(job, status)
            return "it is committed"
        end_strays(mark(self._store, job_id))
        _record(self._store, job_id)
        return ""

    def clear(self, job: JobSpec, job_id: str) -> bool:
        return False  # its end is recorded when nothing is left

    def left(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing is held open."""

    def _works_on(self, job_id: str) -> bool:
        with self._lock:
            return job_id in self._running and self._running[job_id][1].is_alive()

    def _admit(self) -> None:
        """Start what has room, in order, and end what waited too long."""
        with self._lock:
            self._running = {one: each for one, each in self._running.items() if self._works_on(one)}
            for job_id, (job, status) in self._in_order():
                if _memory(job.sized(job.least)) <= self._free():
                    self._sizes.ask(job_id, self._sizing(job, job_id).most() or job.least, "")
                    self._fork(job, job_id)
                elif time.time() < status.submitted + job.queue_timeout_seconds:
                    continue
                else:
                    waited = f"it waited longer than its queue_timeout of {job.queue_timeout_seconds:g} s"
                    said = f"{waited}: {self._lacks(job)}"
                    verdict = Verdict(cause=Cause.QUEUE_TIMEOUT, message=said, advice=_AGAIN)
                    _record(self._store, job_id, verdict.going_on(job.origin.again))
                del self._waiting[job_id]
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + LOOK_SECONDS
                self._resize()

    def _in_order(self) -> list[tuple[str, tuple[JobSpec, JobStatus]]]:
        return sorted(self._waiting.items(), key=lambda each: -_priority(each[1][0]))

    def _resize(self) -> None:
        """Ask elastic gangs to shrink for jobs that wait, or to grow at a checkpoint."""
        for job_id, (job, _) in self._running.items():
            staging = self._store.staging(job_id)
            now = self._sizes.asked(job_id)[0]
            if not job.elastic or staging is None or now != self._sizes.held(job_id):
                continue
            sizing = self._sizing(job, job_id)
            growth = self._growths.setdefault(job_id, Growth(partial(_checkpoints, staging.checkpoints)))
            most = sizing.most() or now
            if let_in := sizing.to_let_in(now):
                self._sizes.ask(job_id, let_in[0], f"{let_in[1].name} waits for room")
            elif growth.due(room=most > now):
                self._sizes.ask(job_id, most, "there is room for more")
            else:
                continue
            del self._growths[job_id]

    def _sizing(self, job: JobSpec, job_id: str) -> Sizing:
        """What a gang may have beside what others have, or will have once those that shrink have done so."""
        running = (
            _demand(each.sized(self._sizes.asked(other)[0]), other)
            for other, (each, _) in self._running.items()
        )
        competition = Competition(
            pools={"memory": self._memory_gib},
            running=tuple(running),
            waiting=tuple(
                _demand(each, other, status.submitted) for other, (each, status) in self._in_order()
            ),
            planned=tuple(_demand(job.sized(size), job_id) for size in range(job.least, job.replicas + 1)),
        )
        return Sizing(competition, job_id=job_id, least=job.least)

    def _fork(self, job: JobSpec, job_id: str) -> None:
        given = (self._home, self._cache, job_id, secret_values(job, from_environment))
        process = _FORKS.Process(target=_run, args=given, name=job_id, daemon=True)
        process.start()
        self._running[job_id] = job, process

    def _free(self) -> float:
        held = (
            job.sized(max(self._sizes.asked(job_id)[0], self._sizes.held(job_id)))
            for job_id, (job, _) in self._running.items()
        )
        return self._memory_gib - sum(map(_memory, held))

    def _lacks(self, job: JobSpec) -> str:
        return f"waiting for {_memory(job.sized(job.least)):g} GiB of memory: {self._free():g} of {self._memory_gib:g} free"

    def _look(self, status: JobStatus) -> JobStatus:
        job_id = status.job_id
        with self._lock:
            if job_id in self._waiting:
                return replace(status, alive=True, reason=self._lacks(self._waiting[job_id][0]))
            if status.state.ended or self._works_on(job_id):
                return status
        status = self._store.ledger.status(job_id)
        if status.verdict is not None and not status.state.ended:
            self.end(self._store.ledger.spec(job_id), job_id, late=False)
            return self._store.ledger.status(job_id)
        lost = "its process is gone; submit it again to go on from its checkpoint"
        return status if status.state.ended else replace(status, alive=False, reason=lost)


def forked(home: Path, cache: Path, *, memory_gib: float) -> Iterator[Backend]:
    """Yield the jobs of a :class:`ForkRunner`; then end them, and see that nothing of them runs. Nothing is deployed there."""
    home.mkdir()
    store = FolderStore(home / "store")
    backend = Backend(MadePlace(store, ForkRunner(home, cache, store, memory_gib=memory_gib)))
    yield backend
    for job_id in store.ledger.jobs():
        backend.cancel(job_id)
        assert not marked(mark(store, job_id))


@dataclass
class _Member:
    """One replica's worker."""

    replica: Replica
    process: subprocess.Popen[bytes]
    log: Callable[[bytes], None]
    handle: int = -1
    ended_at: float = 0.0
    stopped: bool = False
    used_gib: float = 0.0
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.process.pid)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as told:  # its end is seen later
            told.write(dumps(self.replica).encode())

    def _read(self) -> None:
        assert self.process.stdout is not None
        partial_line = b""
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            whole, newline, partial_line = (partial_line + data).rpartition(b"\n")
            self.log(whole + newline)
        self.log(partial_line)

    @property
    def runs(self) -> bool:
        if self.process.poll() is None:
            return True
        self.ended_at = self.ended_at or time.time()
        return False

    def signal(self, number: int) -> None:
        self.stopped = self.stopped or self.runs
        self.process.send_signal(number)

    def mind_memory(self) -> None:
        """Kill a replica that uses more memory than it may; pages that its processes share do not count."""
        limit, pids = self.replica.job_role.resources.memory_gib, descendants(self.process.pid)
        used = sum(map(_resident, pids)) / 2**30
        if used > limit and not self.used_gib:
            self.used_gib = used
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def fault(self) -> tuple[float, Verdict] | None:
        """What went wrong here, and when."""
        code, name = self.process.returncode, f"replica {self.replica.role}-{self.replica.index}"
        if self.used_gib:
            limit = self.replica.job_role.resources.memory_gib
            said = f"{name} used {self.used_gib:.2f} GiB, its limit is {limit:g} GiB"
            return 0.0, self._verdict(Cause.OUT_OF_MEMORY, said, "raise memory_gib")
        if code == ExitCode.SEALED or (code == ExitCode.STOPPED and self.stopped):
            return None
        with suppress(FileNotFoundError, SpecError):
            report = loads(Report, Path(self.replica.report).read_bytes())
            if report.verdict is not None:
                return report.at, report.verdict
        if self.stopped:
            return None
        said = f"the worker of {name} ended with {code} and no report"
        return self.ended_at, self._verdict(Cause.RANK_LOST, said, "see its last lines")

    def _verdict(self, cause: Cause, message: str, advice: str) -> Verdict:
        return Verdict(cause=cause, rank=self.replica.first_rank, message=message, advice=advice)

    def close(self) -> None:
        self.reader.join()
        os.close(self.handle)
        assert self.process.stdout is not None
        self.process.stdout.close()


class _Sizes:
    """With how many replicas each gang is to go on, and with how many it does: files, since it has its own process."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "sizes"
        self._folder.mkdir(exist_ok=True)

    def ask(self, job_id: str, replicas: int, why: str) -> None:
        write_whole(self._folder / f"{job_id}.asked", f"{replicas} {why}")

    def asked(self, job_id: str) -> tuple[int, str]:
        replicas, _, why = (self._folder / f"{job_id}.asked").read_text().partition(" ")
        return int(replicas), why

    def hold(self, job_id: str, replicas: int) -> None:
        write_whole(self._folder / f"{job_id}.held", str(replicas))

    def held(self, job_id: str) -> int:
        with suppress(FileNotFoundError):
            return int((self._folder / f"{job_id}.held").read_text())
        return 0  # it has not begun


class _Decided(Exception):
    """The job's end was decided from outside."""


class _Resized(Exception):
    """The gang has stopped, to go on with other replicas."""


def _run(home: Path, cache: Path, job_id: str, secrets: Mapping[str, str]) -> None:
    """Bring one job to its end: the whole program of its process."""
    adopt_orphans()
    _Job(FolderStore(home / "store"), home, cache, job_id, secrets).run()


class _Job:
    """One job in the process that runs it."""

    def __init__(
        self, store: FolderStore, home: Path, cache: Path, job_id: str, secrets: Mapping[str, str]
    ) -> None:
        self._store, self._ledger, self._cache, self._job_id = store, store.ledger, cache, job_id
        self._spec, self._secrets = store.ledger.spec(job_id), secrets
        self._masking, self._told, self._restarts = Masking(secrets.values()), Told(), 0
        self._folder, self._telling = home / "forked" / job_id, threading.Lock()
        self._sizes = _Sizes(home)
        self._asked_for = store.ledger.spec(job_id)

    def run(self) -> None:
        end_strays(mark(self._store, self._job_id))
        self._folder.mkdir(parents=True, exist_ok=True)
        verdict = self._verdict()
        end_descendants()
        if verdict is not None:
            verdict = verdict.going_on(self._spec.origin.again)
            verdict = replace(verdict, message=self._masking.text(verdict.message))
        _record(self._store, self._job_id, verdict)
        self._store.release(self._job_id)
        shutil.rmtree(self._folder)

    def _verdict(self) -> Verdict | None:
        """Run the job and commit it; say why it failed, None where it did not, or where that is decided."""
        try:
            verdict = None if self._store.sealed(self._job_id) is not None else self._attempts()
            if verdict is None:
                end_descendants()
                self._commit()
            return verdict
        except _Decided:
            return None
        except (MusterError, OSError) as error:
            causes = {ImageError: Cause.IMAGE_UNAVAILABLE, BadOutput: Cause.USER_ERROR}
            cause = causes.get(type(error), Cause.BACKEND_ERROR)
            return Verdict(cause=cause, message=str(error), advice=_AGAIN)

    def _attempts(self) -> Verdict | None:
        spec, store = self._spec, self._store
        self._note(state=JobState.PREPARING, reason=f"preparing image {spec.image}")
        check_inputs(spec, store)
        lease_inputs(spec, store, job_id=self._job_id)
        digest = spec.image_digest
        python = Environments(self._cache).ensure(spec.image, store.code(digest), digest)
        deadline = time.monotonic() + spec.run_timeout_seconds
        while (verdict := self._attempt_resized(python, deadline)) and verdict.cause.restarts_gang:
            end_descendants()
            if self._restarts == spec.max_restarts:
                return verdict
            self._restarts += 1
            said = f"[muster] {verdict.cause.value}: {verdict.message}; the whole gang starts again"
            self._log(f"{said} from its checkpoint\n".encode())
            self._note(state=JobState.PREPARING, reason="starting again", restarts=self._restarts)
        return verdict

    def _attempt_resized(self, python: Path, deadline: float) -> Verdict | None:
        """Start the gang, and again whenever another size is asked for, which counts as no restart."""
        while True:
            size, why = self._sizes.asked(self._job_id)
            self._sizes.hold(self._job_id, size)
            if why and size != self._spec.replicas:
                self._log(f"[muster] {resized(why, size, self._asked_for.replicas)}\n".encode())
            self._spec = self._asked_for.sized(size)
            with suppress(_Resized):
                return self._attempt(python, deadline)

    def _attempt(self, python: Path, deadline: float) -> Verdict | None:
        """Start all replicas, and return when none of them runs any more: why the gang failed."""
        started = self._ledger.status(self._job_id).started or time.time()
        self._note(state=JobState.RUNNING, reason="", started=started)
        with tempfile.TemporaryDirectory(prefix="muster-") as scratch:
            members = [self._spawn(python, replica) for replica in self._replicas(Path(scratch))]
            try:
                return self._mind(members, deadline)
            finally:
                end_descendants()
                for member in members:
                    member.close()

    def _mind(self, members: Sequence[_Member], deadline: float) -> Verdict | None:
        never = float("inf")
        ended: Verdict | None = None
        stop_at = kill_at = never
        while running := [member for member in members if member.runs]:
            connection.wait([member.handle for member in running], _LOOK_SECONDS)
            now = time.monotonic()
            for member in running:
                member.mind_memory()
            ended = ended or self._ended(late=now > deadline)
            if kill_at == never and (ended or self._is_to_resize()):
                stop_at, kill_at = now, now + self._spec.grace_seconds + _MARGIN_SECONDS
            if kill_at == never and any(member.process.returncode for member in members):
                stop_at = now + _SETTLE_SECONDS
                kill_at = stop_at + members[0].replica.ending_seconds()
            number = signal.SIGKILL if now >= kill_at else signal.SIGTERM
            for member in running if now >= stop_at else ():
                member.signal(number)
            stop_at = max(stop_at, kill_at) if now >= stop_at else stop_at
        if ended is not None:
            return ended  # where it was decided from outside, that stands
        if self._is_to_resize() and self._store.sealed(self._job_id) is None:
            raise _Resized
        faults = [found for member in members if (found := member.fault())]
        return first_of([verdict for _, verdict in sorted(faults, key=lambda found: found[0])])

    def _is_to_resize(self) -> bool:
        return self._asked_for.elastic and self._sizes.asked(self._job_id)[0] != self._spec.replicas

    def _replicas(self, scratch: Path) -> list[Replica]:
        spec, store = self._spec, self._store
        staging = store.stage(self._job_id, replicas=spec.replicas if self._asked_for.elastic else None)
        ports = [free_port() for _ in range(max(1, spec.world_size))]
        found = [
            Replica(
                job_id=self._job_id,
                spec=spec,
                attempt=staging.attempt,
                role=role.name,
                index=index,
                code=str(store.code(spec.code)) if spec.code else None,
                inputs={
                    name: tuple(str(store.path(each.address)) for each in given.versions)
                    for name, given in spec.inputs.items()
                    if name in spec.mounted
                },
                staging={name: str(staging.output(role.name, index, name)) for name in spec.staged},
                checkpoints=str(staging.checkpoints),
                scratch=str(scratch / f"{role.name}-{index}"),
                sealed=str(staging.sealed(role.name, index)),
                report=str(self._report(staging.attempt, role.name, index)),
                master_port=ports[0],
                peers=tuple(f"{LOOPBACK}:{port}" for port in ports) if spec.launcher.listens else (),
            )
            for role in spec.roles
            for index in range(role.replicas)
        ]
        for each in found:
            for path in (*each.staging.values(), each.checkpoints, each.scratch):
                Path(path).mkdir(parents=True, exist_ok=True)
            Path(each.sealed).parent.mkdir(exist_ok=True)
        return found

    def _report(self, attempt: int, role: str, index: int = 0) -> Path:
        return self._folder / f"{attempt}-{role}-{index}.json"

    def _spawn(self, python: Path, replica: Replica) -> _Member:
        kept = {name: os.environ[name] for name in ("HOME", "USER", "LD_LIBRARY_PATH") if name in os.environ}
        marked = {MARK_VARIABLE: mark(self._store, self._job_id)}
        path = {"PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        process = subprocess.Popen(
            [str(python), str(worker_folder(self._cache)), "/dev/stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**kept, **path, **self._spec.env, **self._secrets, **marked},
        )
        return _Member(replica, process, self._log)

    def _log(self, lines: bytes) -> None:
        lines = self._masking.log(lines)
        self._ledger.append(self._job_id, lines)
        with self._telling:
            self._told = self._told.then(heard(lines))

    def _ended(self, *, late: bool) -> Verdict | None:
        """Why a job is ended that runs; None where it goes on. What the ranks told is written down."""
        told, status = self._told, self._ledger.status(self._job_id)
        if status.verdict is not None:
            return status.verdict
        if late:
            said = f"it ran longer than its run_timeout of {self._spec.run_timeout_seconds:g} s"
            return Verdict(cause=Cause.RUN_TIMEOUT, message=said, advice="raise the timeout")
        if (dict(status.progress), dict(status.links)) != (dict(told.progress), dict(told.links)):
            self._note(progress=told.progress, links=told.links)
        return None

    def _note(self, **changes: Any) -> None:
        with _alone(self._store, self._job_id):
            status = self._ledger.status(self._job_id)
            if is_decided(status) and status.state is not JobState.COMMITTING:
                raise _Decided
            self._ledger.update(replace(status, **changes))

    def _commit(self) -> None:
        staging, told = self._store.staging(self._job_id), self._told
        assert staging is not None
        self._note(state=JobState.COMMITTING, reason="", progress=told.progress, links=told.links)
        report = loads(Report, self._report(staging.attempt, self._spec.roles[0].name).read_bytes())
        said: dict[str, Any] = {"metrics": report.metrics, "modules": report.modules}
        made = self._store.commit(self._job_id, attempt=staging.attempt, **said)
        outputs = {name: tuple(version.address for version in versions) for name, versions in made.items()}
        result = JobResult(outputs=outputs, links=told.links, **said)
        self._note(state=JobState.SUCCEEDED, ended=time.time(), result=result)


def _memory(job: JobSpec) -> float:
    return sum(role.replicas * role.resources.memory_gib for role in job.roles)


def _priority(job: JobSpec) -> int:
    return _PRIORITIES.get(job.priority or "", 0)


def _demand(job: JobSpec, job_id: str, since: float = 0.0) -> Demand:
    choices = ({"memory": _memory(job.sized(job.least))},)
    return Demand(name=job.name, job_id=job_id, choices=choices, priority=_priority(job), since=since)


def _checkpoints(folder: Path) -> Seen:
    """Inode, size and time of change of each file; what goes meanwhile is seen at the next look."""
    found: dict[str, tuple[float, ...]] = {}
    with suppress(OSError):
        for path in folder.rglob("*"):
            stat = path.stat()
            found[str(path)] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


def mark(store: Any, job_id: str) -> str:
    """What the processes of a job are known by."""
    return f"{job_id}.{store.layout.root.stat().st_ino}"


def _alone(store: FolderStore, job_id: str) -> Any:
    """What is read of a job's status and then written is one step: its process and a cancel may do that at once."""
    folder = store.layout.root.parent / "forked"
    folder.mkdir(exist_ok=True)
    return locked(folder / f"{job_id}.lock")


def _record(store: FolderStore, job_id: str, verdict: Verdict | None = None) -> None:
    """Decide an end if it is not yet decided, and record it, once."""
    with _alone(store, job_id):
        status = store.ledger.status(job_id)
        if verdict is not None and not status.state.ended and status.verdict is None:
            decide(store.ledger, status, verdict)
            status = store.ledger.status(job_id)
        if status.state.ended or status.verdict is None:
            return
        store.ended.give_back(job_id, cause=status.verdict.cause)
        record(store.ledger, status, status.verdict)
    store.release(job_id)


def _resident(pid: int) -> int:
    """What a process has in memory for itself: pages that it shares, such as Ray's, would count once for each."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE

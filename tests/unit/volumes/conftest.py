"""Jobs as the worker leaves them: staged and sealed, ready for the store."""

import ctypes
import sys
import time
from pathlib import Path

import pytest

if (root := str(Path(__file__).parents[3])) not in sys.path:
    sys.path.append(root)  # the scripts beside this file import it without pytest

from tests.contract.test_store import write_and_seal

from muster.core.data import Input, OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore


class Work:
    """One store, and the jobs that run in it."""

    def __init__(self, root):
        self.store = FolderStore(root)

    def spec(self, *, replicas=1, inputs=None, code=None, **outputs):
        return JobSpec(
            name="flights.job",
            image="etl",
            image_digest="b3:" + "0" * 64,
            roles=(Role(replicas=replicas, entrypoint="etl:run"),),
            inputs={n: Input(versions=(v.pinned,)) for n, v in (inputs or {}).items()},
            outputs={
                n: o if isinstance(o, OutputTarget) else OutputTarget(volume=o) for n, o in outputs.items()
            },
            code=code,
        )

    def seal(self, job_id, spec, *replicas):
        """Enter and stage a job; each of `replicas` is what one writes: {output: {path: bytes}}."""
        self.store.ledger.create(job_id, spec)
        staging = self.store.stage(job_id)
        for index, files in enumerate(replicas):
            write_and_seal(staging, spec, files, index=index)
        return staging

    def run(self, job_id, files, *, volume="flights/features", inputs=None, code=None):
        """Run a job of one output to its end; return its version."""
        spec = self.spec(inputs=inputs, code=code, out=volume)
        self.seal(job_id, spec, {"out": files})
        ((version,),) = self.store.commit(job_id, attempt=1).values()
        self.end(job_id)
        return version

    def cut_off(self, job_id, volume="flights/features", number=1):
        """Leave what a crash before the commit record does: the version in its place, and the mark of its number."""
        aside = self.store.layout.trash / "x"
        self.store.layout.commit(job_id).rename(aside)
        (self.store.layout.volume(volume) / f".{number}").symlink_to(f"{job_id}:0")
        return aside

    def end(self, job_id, *, at=None):
        self.store.ledger.update(
            JobStatus(job_id=job_id, state=JobState.SUCCEEDED, submitted=1.0, ended=at or time.time())
        )


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path / "store")


@pytest.fixture
def store(work):
    return work.store


_watching = []


def _watch(event, arguments):
    if _watching and event in ("open", "os.listdir", "os.scandir"):
        _watching[-1].append(str(arguments[0]))


sys.addaudithook(_watch)  # it cannot be taken away again


@pytest.fixture
def opened():
    """Call something, and return every file that it opened and every folder that it listed."""

    def watch(act):
        _watching.append([])
        try:
            act()
            return _watching[-1]
        finally:
            _watching.pop()

    return watch


@pytest.fixture
def unprivileged():
    """Permissions hold in this thread as for any user, also where the tests run as root (capset(2))."""
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    before = sets[0]
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, sets)
    yield
    sets[0] = before
    libc.capset(header, sets)

"""A service whose store is a disk of 4 MiB: ``python -m …full_disk FOLDER`` fails at the first broken promise."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import Service, until

from muster.core.errors import StoreError
from muster.core.room import is_full
from muster.core.status import JobState
from muster.core.verdict import Cause, Verdict
from muster.volumes.folder import FolderStore

FULL = "No space left on device"
MANY = b"two\n" * 4096


def main(folder):
    with Service(folder) as service, service.client() as store:
        gangs = [Gang(service, f"a-{n}", make_spec(outputs={"out": f"v{n}"})) for n in range(2)]
        for gang in gangs:
            gang.bundle().raise_for_status()
            gang.write({"out/x": b"2" * 4096})
        assert gangs[0].lines(b"one\n") == 4
        filler = folder / "filler"
        fill(filler)
        refused(gangs[0], store, folder)
        filler.unlink()
        assert gangs[0].lines(b"one\n" + MANY) == 4 + len(MANY)
        assert store.ledger.read("a-0")[0] == b"one\n" + MANY
        seals_then_fills(gangs[1], store, filler)
        fails(gangs[0], store, filler)
        for gang in gangs:
            gang.pods.close()
        assert FolderStore(service.root).check(deep=True).clean


def refused(gang, store, folder):
    """Nothing that needs room is half done, and each says why."""
    lines = gang.pods.post(f"{gang.path()}/lines", params={"offset": 4}, content=MANY)
    seal = gang.seal(gang.sealing({"out/x": b"2" * 4096}))
    for answer in (lines, seal):
        assert (answer.status_code, answer.json()["error"]) == (500, "StoreError")
        assert FULL in answer.json()["message"]
    with pytest.raises(StoreError, match=FULL):
        store.add("big", folder / "filler")
    with pytest.raises(StoreError, match=f"{FULL}.*the store's claim has 0 B free of 4.0 MiB") as told:
        store.ledger.create("b-1", make_spec())
    assert is_full(told.value), "also for who asks from afar"
    assert store.ledger.status("a-0").state is JobState.RUNNING
    assert (store.volumes(), store.sealed("a-0")) == ([], None)


def seals_then_fills(gang, store, filler):
    """A commit waits for room: what took days to train is not thrown away for want of a few bytes."""
    body = gang.sealing({"out/x": b"2" * 4096})
    fill(filler, leave_bytes=24576)
    answer = gang.seal(body)
    fill(filler)
    filler.unlink()
    if not answer.is_success:
        gang.seal(body).raise_for_status()
    status = until(lambda: store.ledger.status(gang.job_id), lambda status: status.state.ended)
    assert status.state is JobState.SUCCEEDED, status
    assert store.count("v1") == 1


def fails(gang, store, filler):
    """Its verdict is recorded on a full disk, in the room of what it had staged: else both would stay for good."""
    gang.write({"out/y": b"3" * 65536})
    fill(filler)
    verdict = Verdict(cause=Cause.DISK_FULL, message=FULL, advice="make room")
    store.ledger.update(replace(store.ledger.status(gang.job_id), verdict=verdict))
    store.ledger.append(gang.job_id, b"disk full\n", request="verdict")
    store.ledger.update(replace(store.ledger.status(gang.job_id), state=JobState.FAILED, ended=time.time()))
    status = store.ledger.status(gang.job_id)
    assert (status.state, status.verdict) == (JobState.FAILED, verdict)
    filler.unlink()


def fill(path, *, leave_bytes=0):
    with path.open("ab", buffering=0) as file:
        try:
            while file.write(b"0" * 4096):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - leave_bytes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

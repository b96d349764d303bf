"""A rank that lives on behind a cut cable, with the token that it always had: nothing of it reaches a later start."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.core.status import JobState
from muster.volumes.service.client import ServiceStore

BLOCK = 4096


def begun(gang: Gang, *, restart: str) -> None:
    for index in range(2):
        gang.bundle(index, restart=restart).raise_for_status()


@contextmanager
def going_on(act: Callable[[int], None]) -> Iterator[None]:
    """Do something again and again meanwhile; it has been done once at the least."""
    done, once = threading.Event(), threading.Event()

    def run() -> None:
        number = 0
        while not done.is_set():
            with suppress(FileNotFoundError):  # the store takes a fenced start's folder away
                act(number % 256)
            number += 1
            once.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert once.wait(GUARD_SECONDS)
    try:
        yield
    finally:
        done.set()
        thread.join()


def keep(folder: Path, number: int) -> None:
    """Write a checkpoint as frameworks do: beside, then in its place."""
    (folder / "next").write_bytes(bytes([number]) * BLOCK)
    (folder / "next").replace(folder / "last")


def test_what_it_writes_is_in_no_later_start_and_in_no_version(
    gang: Gang, store: ServiceStore, volume: str
) -> None:
    begun(gang, restart="0")
    old = gang.root("0").resolve()
    gang.write({"out/part-0": b"old", "out/more": b"old"}, index=0)
    keep(old / "checkpoints", 7)
    folders = [old / "main-0" / "out", old / "checkpoints", old / "gang"]
    files = [old / "checkpoints" / "last", old / "main-0" / "out" / "part-0"]
    # a pod has these mounted or open, so it keeps them, whatever they are called by now
    places = [os.open(path, os.O_PATH) for path in folders]
    opened = [os.open(path, os.O_RDWR) for path in files]

    def live_on(number: int) -> None:
        for file in opened:
            os.pwrite(file, bytes([number]) * BLOCK, 0)
        for place in places:
            Path(f"/proc/self/fd/{place}/late").write_bytes(b"late")

    begun(gang, restart="1")
    with going_on(live_on):
        assert (gang.root("1") / "checkpoints" / "last").read_bytes() == bytes([7]) * BLOCK
        for index in range(2):
            gang.finish_started({f"out/part-{index}": b"new"}, index=index, restart="1")
        status = until(lambda: store.ledger.status(gang.job_id), lambda status: status.state.ended)
    for number in (*places, *opened):
        os.close(number)
    assert status.state is JobState.SUCCEEDED
    assert sorted(store.manifest(f"{volume}@1")) == ["part-0", "part-1"]
    found = store.path(f"{volume}@1")
    assert [(found / f"part-{index}").read_bytes() for index in range(2)] == [b"new", b"new"]


@pytest.mark.parametrize("restart", range(1, 6))
def test_what_it_writes_while_the_next_start_begins_tears_no_checkpoint(gang: Gang, restart: int) -> None:
    begun(gang, restart="0")
    place = os.open(gang.root("0").resolve() / "checkpoints", os.O_PATH)
    mounted = Path(f"/proc/self/fd/{place}")
    keep(mounted, 1)
    with going_on(lambda number: keep(mounted, number)):
        begun(gang, restart=str(restart))
        kept = (gang.root(str(restart)) / "checkpoints" / "last").read_bytes()
    os.close(place)
    assert (len(kept), len(set(kept))) == (BLOCK, 1)


@pytest.mark.parametrize("what", ["lines", "seal", "bundle"])
def test_what_it_asks_for_is_refused_and_changes_nothing(gang: Gang, store: ServiceStore, what: str) -> None:
    begun(gang, restart="0")
    path, seal = gang.path(), gang.sealing({"out/x": b"1"})
    begun(gang, restart="1")
    gang.lines(b"the new start\n")
    asked = {
        "lines": lambda: gang.pods.post(f"{path}/lines", params={"offset": 0}, content=b"late\n"),
        "seal": lambda: gang.pods.put(f"{path}/seal", content=seal),
        "bundle": lambda: gang.bundle(restart="0", pod="pod-0-0"),
    }[what]
    for _ in range(3):
        answer = asked()
        assert (answer.status_code, answer.json()["error"]) == (409, "Conflict")
    assert store.staging(gang.job_id).attempt == 2
    assert store.sealed(gang.job_id) is None
    assert store.ledger.read(gang.job_id)[0] == b"the new start\n"


def test_a_seal_of_before_does_not_count_for_the_start_after(gang: Gang, store: ServiceStore) -> None:
    """Replica 0 had sealed when the node of replica 1 was lost: the gang runs again, whole."""
    gang.finish({"out/part-0": b"old"}, index=0)
    begun(gang, restart="1")
    gang.finish_started({"out/part-1": b"new"}, index=1, restart="1")
    assert store.sealed(gang.job_id) is None
    gang.finish_started({"out/part-0": b"new"}, index=0, restart="1")
    status = until(lambda: store.ledger.status(gang.job_id), lambda status: status.state.ended)
    assert status.state is JobState.SUCCEEDED


def test_the_token_of_an_earlier_submission_is_refused(service, store: ServiceStore) -> None:  # type: ignore[no-untyped-def]
    with Gang(service, "submitted-twice", make_spec(replicas=2)) as gang:
        begun(gang, restart="0")
        attempt = store.begin(gang.job_id, after=gang.attempt)
        late = gang.path(attempt=attempt)
        assert gang.pods.post(f"{late}/lines", params={"offset": 0}, content=b"late\n").status_code == 409
        asked = {"attempt": attempt, "restart": "0", "role": "main", "index": 0, "pod": "late"}
        assert gang.pods.get(f"/v1/jobs/{gang.job_id}/bundle", params=asked).status_code == 401

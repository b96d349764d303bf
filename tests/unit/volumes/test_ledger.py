import json
import os
from dataclasses import replace

import pytest

from muster.core.errors import Corrupt, NotFound, StoreError
from muster.core.job import SecretRef
from muster.core.status import JobState
from muster.core.tally import Allotment, Tally


@pytest.fixture
def folder(work, store):
    store.ledger.create("a-1", work.spec(out="flights/x"))
    return store.layout.job("a-1")


def test_a_line_that_a_crash_tore_does_not_swallow_the_next(store, folder):
    (folder / "log").write_bytes(b"one\nto")
    assert store.ledger.read("a-1") == (b"one\n", 4)
    store.ledger.append("a-1", b"three")
    assert store.ledger.read("a-1", after=4)[0] == b"to\nthree\n"


@pytest.mark.parametrize("name", ["spec.json", "status.json"])
def test_a_torn_entry_is_named(store, folder, name):
    (folder / name).write_text((folder / name).read_text()[:-5])
    with pytest.raises(Corrupt, match=f"{name} cannot be read: .*; put it back as it was, or take .* away"):
        store.ledger.spec("a-1") if name == "spec.json" else store.ledger.status("a-1")
    (folder / name).unlink()
    with pytest.raises(Corrupt, match=f"{name} is missing"):
        store.ledger.spec("a-1") if name == "spec.json" else store.ledger.status("a-1")


def test_a_status_that_a_power_cut_emptied_can_be_picked_up(store, folder):
    submitted = store.ledger.status("a-1").submitted
    (folder / "status.json").write_bytes(b"")
    status = store.ledger.status("a-1")
    assert (status.state, status.alive) == (JobState.QUEUED, False)
    assert status.submitted == pytest.approx(submitted)


def test_what_a_crash_left_of_entering_is_no_job(store, folder):
    (folder.parent / ".new-0123").mkdir()
    assert store.ledger.jobs() == ["a-1"]


def test_a_stray_file_among_the_jobs_is_no_job(store, folder):
    known = store.ledger.jobs()
    (folder.parent / "notes.txt").write_text("left by a person")
    assert store.ledger.jobs() == known


def test_an_unknown_job_is_named(store):
    for act in (
        store.ledger.status,
        store.ledger.spec,
        store.ledger.read,
        lambda j: store.ledger.append(j, b"x"),
    ):
        with pytest.raises(NotFound, match="no job b-1"):
            act("b-1")


def test_a_log_that_cannot_be_written_is_an_error(store, folder):
    (folder / "log").mkdir()
    with pytest.raises(StoreError, match="could not write the log of job a-1"):
        store.ledger.append("a-1", b"x\n")


def test_params_given_as_tuple_or_list_are_one_spec(store, work):
    spec = work.spec(out="flights/x")
    assert store.ledger.create("b-1", replace(spec, params={"a": 1, "columns": ("x", "y")}))
    assert not store.ledger.create("b-1", replace(spec, params={"columns": ["x", "y"], "a": 1}))


def test_no_secret_is_stored(store, work):
    spec = replace(work.spec(out="x"), secrets={"TOKEN": SecretRef(source="environment", name="TOKEN")})
    store.ledger.create("b-1", spec)
    assert json.loads((store.layout.job("b-1") / "spec.json").read_text())["secrets"] == {
        "TOKEN": {"source": "environment", "name": "TOKEN"}
    }


SPOILED = {
    "power-cut": b"\0" * 80,
    "later-release": b'{"kind": "Tally", "schema": 1, "of_a_later_release": 1}',
    "torn": b'{"user": "a',
    "empty": b"",
    "no-text": b"\xff\xfe",
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_a_tally_that_cannot_be_read_keeps_no_job_from_its_end(store, folder, spoiled, caplog):
    tally = folder / "tally.json"
    tally.write_bytes(spoiled)
    for _ in range(2):
        assert store.ledger.tally("a-1") == Tally()
    said = f"the use of job a-1 is counted from now on alone: {tally} cannot be read"
    assert caplog.text.count(said) == 1
    held = Tally(times=(Allotment(since=10.0, replicas=2),))
    store.ledger.note_tally("a-1", held)
    assert store.ledger.tally("a-1") == held
    tally.write_bytes(spoiled)
    store.ledger.update(replace(store.ledger.status("a-1"), state=JobState.FAILED, ended=20.0))
    assert store.ledger.status("a-1").state is JobState.FAILED
    assert "times" not in json.loads(tally.read_bytes())


def test_a_job_whose_spec_cannot_be_read_ends_too(store, folder, caplog):
    (folder / "spec.json").write_bytes(b"\0" * 80)
    store.ledger.update(replace(store.ledger.status("a-1"), state=JobState.FAILED, ended=20.0))
    assert store.ledger.status("a-1").state is JobState.FAILED
    assert "the use of job a-1 is not counted" in caplog.text


def test_the_time_in_which_a_machine_was_off_is_no_sign_of_a_job(store, folder):
    """Before its supervisor starts, the next try writes who owns the job, and takes its locks."""
    spec, log = folder / "spec.json", folder / "log"
    for path, at in ((spec, 1000), (folder / "status.json", 1100)):
        os.utime(path, (at, at))
    assert store.ledger.last_sign("a-1") == 1100
    store.ledger.append("a-1", b"up\n")
    os.utime(log, (1200, 1200))
    store.ledger.own("a-1", owner="next", expected=None)
    store.ledger.note_tally("a-1", Tally(user="ada"))
    assert store.ledger.last_sign("a-1") == 1200
    (folder / "status.json").unlink()
    log.unlink()
    assert store.ledger.last_sign("a-1") == 1000

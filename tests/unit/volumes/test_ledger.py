import json
from dataclasses import replace

import pytest

from muster.core.errors import Corrupt, NotFound, StoreError
from muster.core.job import SecretRef
from muster.core.status import JobState


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

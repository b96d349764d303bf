import pytest

from muster.core.data import OutputTarget
from muster.core.errors import Corrupt
from muster.volumes.beginning import begin_with_last, replace_last
from muster.volumes.folder import FolderStore


def partition(work, job_id, name):
    work.seal(
        job_id, work.spec(out=OutputTarget(volume="v", partition=name)), {"out": {"x": job_id.encode()}}
    )
    work.store.commit(job_id, attempt=1)


@pytest.mark.parametrize(
    ("keep", "retires"), [(None, (6,)), (9, (6,)), (2, (1, 6)), (1, (1, 3, 6)), (0, (1, 3, 6))]
)
def test_the_base_is_replaced_and_older_ones_as_asked(work, store, keep, retires):
    for number in range(1, 8):  # 2 is of another partition, 4 is retired, 5 is pinned, 7 is retired
        if number == 2:
            partition(work, "m-2", "2013-01")
        else:
            work.run(f"a-{number}", {"x": b"%d" % number}, volume="v")
    store.retire("v@4", reason="bad")
    store.pin("v@5", reason="report")
    store.retire("v@7", reason="bad")
    base, output = replace_last(store, "v", None, name="before", keep=keep)
    assert (base.number, output.after, output.base, output.retires) == (6, 7, "before", retires)


def test_each_partition_is_replaced_by_itself(work, store):
    partition(work, "m-1", "2013-01")
    partition(work, "m-2", "2013-02")
    base, output = replace_last(store, "v", "2013-01", name="before", keep=0)
    assert (base.number, output.after, output.partition, output.retires) == (1, 1, "2013-01", (1,))
    assert replace_last(store, "v", "2013-03", name="before", keep=None) is None
    assert replace_last(store, "w", None, name="before", keep=None) is None


def test_what_comes_between_the_two_looks_is_taken(work, store, monkeypatch):
    work.run("a-1", {"x": b"1"}, volume="v")
    last = store.last

    def late(volume, partition):
        number = last(volume, partition)
        if number == 1:
            work.run("a-2", {"x": b"2"}, volume="v")
        return number

    monkeypatch.setattr(store, "last", late)
    base, output = replace_last(store, "v", None, name="before", keep=None)
    assert (base.number, output.after) == (2, 2)


@pytest.mark.parametrize("name", [None, "2013-01"])
def test_nothing_begins_anew_where_the_last_version_is_damaged_until_it_is_retired(work, store, name):
    for number in (1, 2):
        partition(work, f"m-{number}", name)
    store.retire("v@1", reason="replaced")
    record = store.layout.version("v", 2) / "RECORD.json"
    record.chmod(0o644)
    record.write_text("{")
    again = FolderStore(store.layout.root)
    with pytest.raises(Corrupt, match=r"^v@2 is damaged .*: no selector finds it; retire it"):
        begin_with_last(again, "v", name, name="before")
    again.retire("v@2", reason="torn")
    given, output = begin_with_last(again, "v", name, name="before")
    assert (given.versions, output.after) == ((), 2)

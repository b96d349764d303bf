"""A selector reads the records of the versions that it names, however many there are; and it never believes what is not true."""

import json
import random
import shutil

import pytest

from muster.core.errors import NotFound
from muster.core.job import Output
from muster.volumes import numbers, partitions
from muster.volumes.beginning import last_live
from muster.volumes.folder import FolderStore

UNREAD = 8
MANY = 5 * UNREAD
VOLUME = "v"


def named(n):
    return f"p{n:04}"


def commit(work, count, *, job_id="job", volume=VOLUME, first=0):
    """Commit many partitions at once, each with a version."""
    spec = work.spec(out=Output(volume=volume, partition="*"))
    work.seal(job_id, spec, {"out": {f"{named(n)}/x": b"%d" % n for n in range(first, first + count)}})
    work.store.commit(job_id, attempt=1)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch):
    monkeypatch.setattr(partitions, "MOST_UNREAD", UNREAD)


@pytest.fixture
def again(store):
    """A new process: nothing is in its memory."""
    return lambda: FolderStore(store.layout.root)


@pytest.fixture
def file(store):
    return store.layout.root / "hints" / VOLUME / "partitions"


def records(opened, act):
    return sum(path.endswith("RECORD.json") for path in opened(act))


def test_many_versions_are_read_once_and_then_those_that_are_named(work, store, again, opened):
    commit(work, MANY)
    assert records(opened, lambda: again().resolve(f"{VOLUME}@{named(7)}")) == MANY
    for selector, most in ((named(7), 1), ("latest", 1), (f"<{named(9)}", 9)):
        assert records(opened, lambda name=selector: again().resolve(f"{VOLUME}@{name}")) <= most + 1
    assert records(opened, lambda: again().last(VOLUME, "new")) <= UNREAD + 1
    assert len(again().resolve(f"{VOLUME}@*")) == MANY


def test_what_comes_since_is_read_beside_until_it_is_much(work, store, again, opened, file):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    before = file.read_bytes()
    commit(work, UNREAD - 1, job_id="few", first=MANY)
    wanted = f"{VOLUME}@{named(MANY + 1)}"
    assert records(opened, lambda: again().resolve(wanted)) <= UNREAD + 1
    assert file.read_bytes() == before
    commit(work, 2, job_id="more", first=MANY + UNREAD)
    again().resolve(wanted)
    assert file.read_bytes() != before
    assert records(opened, lambda: again().resolve(wanted)) <= 2


def test_a_partition_that_is_not_there_is_refused_without_a_look_at_all(work, store, again, opened):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")

    def refused():
        with pytest.raises(NotFound, match=rf"no partition of v is 'new'; there are … .*{named(MANY - 1)}: "):
            again().resolve(f"{VOLUME}@new")

    assert records(opened, refused) < 10
    assert records(opened, lambda: last_live(again(), VOLUME, "new")) < 10


def test_the_first_version_of_a_partition_is_committed_without_a_look_at_all(work, store, again, opened):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    work.seal("new", work.spec(out=Output(volume=VOLUME, partition="new", after=0)), {"out": {"x": b"1"}})
    assert records(opened, lambda: again().commit("new", attempt=1)) <= numbers.LOOK_BACK + 2


@pytest.mark.parametrize("damage", ["deleted", "empty", "cut off", "changed"])
def test_a_file_that_is_gone_or_torn_counts_as_none(work, store, again, file, damage):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    whole = file.read_bytes()
    wrong = {"empty": b"", "cut off": whole[:-9], "changed": whole.replace(b"p0007", b"p0008")}
    file.unlink() if damage == "deleted" else file.write_bytes(wrong[damage])
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].partition == named(7)
    assert file.read_bytes() == whole


def test_a_volume_that_begins_again_is_read_again(work, store, again, file):
    """A person deleted its folder, and the numbers are given once more."""
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    shutil.rmtree(store.layout.volume(VOLUME))
    commit(work, MANY, job_id="anew", first=5)
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].number == 3
    assert json.loads(file.read_bytes().partition(b"\n")[2])["job"] == "anew"


def test_one_who_may_not_write_reads_all_the_same(work, store, again, file, unprivileged):
    commit(work, MANY)
    shutil.rmtree(file.parent)
    store.layout.root.chmod(0o555)
    (store.layout.root / "hints").chmod(0o555)
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].partition == named(7)
    assert not file.exists()


def test_what_is_hidden_is_passed_over(work, store, again):
    """Beside a plain reading of everything: retired, deleted, damaged and uncommitted ones, in any order."""
    commit(work, MANY)
    dice = random.Random(23)
    for k in range(1, 4):
        commit(work, 20, job_id=f"more-{k}", first=dice.randrange(MANY))
    again().resolve(f"{VOLUME}@latest")
    commit(work, 10, job_id="last", first=dice.randrange(MANY))
    given = store.layout.numbers(VOLUME)
    for number in dice.sample(given, len(given) // 2):
        folder = store.layout.version(VOLUME, number)
        match dice.randrange(3):
            case 0:
                store.retire(f"{VOLUME}@{number}", reason="bad")
            case 1:
                store.layout.delete(folder / "data")
                (folder / "TOMBSTONE").touch()
            case 2:
                (folder / "RECORD.json").chmod(0o644)
                (folder / "RECORD.json").write_text("{")
    work.cut_off("last", VOLUME, given[-1])
    plain = {}
    for version in again().versions(VOLUME):
        if version.retired is None:
            plain[version.partition] = version
    assert len(plain) > 10
    many = again().resolve(f"{VOLUME}@*")
    assert many == tuple(plain[name] for name in sorted(plain))
    assert again().resolve(VOLUME) == (plain[max(plain)],)
    for name, version in plain.items():
        assert again().resolve(f"{VOLUME}@{name}") == (version,)


def test_runs_of_numbers_are_one_entry(work, store, file):
    found = {1: None, 2: None, 3: None, 5: None, 6: "a", 7: "a", 8: "b"}
    partitions.write(store.layout, VOLUME, partitions.Known(found, "job"))
    runs = json.loads(file.read_bytes().partition(b"\n")[2])["runs"]
    assert runs == [[1, 3, None], [5, 5, None], [6, 7, "a"], [8, 8, "b"]]
    assert partitions.read(store.layout, VOLUME) == partitions.Known(found, "job")

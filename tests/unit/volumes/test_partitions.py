"""A selector reads the records of the versions that it names, however many there are; and it never believes what is not true."""

import json
import os
import random
import shutil

import pytest

from muster.core.data import OutputTarget
from muster.core.errors import NotFound
from muster.volumes import numbers, partitions
from muster.volumes.beginning import begin_with_last, replace_last
from muster.volumes.folder import FolderStore
from muster.volumes.manifest import digest_of

UNREAD = 8
MANY = 5 * UNREAD
VOLUME = "v"


def named(n):
    return f"p{n:04}"


def commit(work, count, *, job_id="job", volume=VOLUME, first=0):
    """Commit many partitions at once, each with a version."""
    spec = work.spec(out=OutputTarget(volume=volume, partition="*"))
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


def say(file, document):
    """Write a file of partitions whose digest is right."""
    body = json.dumps(document).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"%s\n%s" % (digest_of(body).encode(), body))


def records(opened, act):
    return sum(path.endswith("RECORD.json") for path in opened(act))


def test_many_versions_are_read_once_and_then_those_that_are_named(work, store, again, opened):
    commit(work, MANY)
    assert records(opened, lambda: again().resolve(f"{VOLUME}@{named(7)}")) == MANY
    for selector, most in ((named(7), 1), ("latest", 1), (f"<{named(9)}", 9)):
        # And twice that of the last version, whose job the file names.
        assert records(opened, lambda name=selector: again().resolve(f"{VOLUME}@{name}")) <= most + 2
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
    assert records(opened, lambda: again().resolve(wanted)) <= 3


def test_a_partition_that_is_not_there_is_refused_after_a_few_records(work, store, again, opened):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")

    def refused():
        with pytest.raises(NotFound, match=rf"no partition of v is 'new'; there are … .*{named(MANY - 1)}: "):
            again().resolve(f"{VOLUME}@new")

    assert records(opened, refused) < 10


@pytest.mark.parametrize("volume", [VOLUME, "none"])
def test_where_a_version_is_the_first_nothing_is_read_for_a_message(work, store, again, opened, volume):
    commit(work, MANY)
    commit(work, 1, job_id="other", volume="other")
    again().resolve(f"{VOLUME}@latest")
    last = records(opened, lambda: again().last(volume, "new"))
    given, output = None, None

    def begin():
        nonlocal given, output
        given, output = begin_with_last(again(), volume, "new", name="before")

    assert records(opened, begin) == last
    assert (given.versions, output.after) == ((), 0)
    assert records(opened, lambda: replace_last(again(), volume, "new", name="before", keep=None)) == last


def test_the_first_version_of_a_partition_is_committed_after_a_look_at_the_newest(work, store, again, opened):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    work.seal(
        "new", work.spec(out=OutputTarget(volume=VOLUME, partition="new", after=0)), {"out": {"x": b"1"}}
    )
    assert records(opened, lambda: again().commit("new", attempt=1)) <= numbers.LOOK_BACK + 2


@pytest.mark.parametrize("damage", ["deleted", "empty", "cut off", "changed", "no text"])
def test_a_file_that_is_gone_or_torn_counts_as_none(work, store, again, file, damage):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    whole = file.read_bytes()
    wrong = {
        "empty": b"",
        "cut off": whole[:-9],
        "changed": whole.replace(b"p0007", b"p0008"),
        "no text": b"\xff" + whole,
    }
    file.unlink() if damage == "deleted" else file.write_bytes(wrong[damage])
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].partition == named(7)
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"runs": [[1, MANY, "x"]]},
        {"job": "job", "runs": []},
        {"job": "job", "runs": {"x": [1, MANY]}},
        {"job": "job", "runs": [[1, MANY]]},
        {"job": "job", "runs": [["1", "9", "x"]]},
        {"job": "job", "runs": [[1, MANY, ["x"]]]},
        {"job": "job", "runs": [[1, 10**12, "x"]]},  # the last one is no number of the volume
        {"job": "job", "runs": [[1, 10**12, "x"], [MANY, MANY, "x"], [MANY + 1, 10**12, "x"]]},
        {"job": "", "runs": [[1, MANY, "x"]]},
    ],
)
def test_a_file_of_another_shape_counts_as_none(store, file, document):
    say(file, document)
    assert partitions.read(store.layout, VOLUME, range(1, MANY + 1)) is None


def test_a_damaged_last_version_makes_no_file_count_that_names_no_job(work, store, again, file):
    commit(work, MANY)
    say(file, {"job": "", "runs": [[1, MANY, "x"]]})
    record = store.layout.version(VOLUME, MANY) / "RECORD.json"
    record.chmod(0o644)
    record.write_text("{")
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].partition == named(7)


def test_a_file_of_a_later_release_is_read_and_runs_are_cut_to_the_numbers_that_there_are(store, file):
    say(file, {"later": 1, "job": "job", "runs": [[1, 10**12, "x"], [3, 3, "y"]]})
    assert partitions.read(store.layout, VOLUME, [1, 3]) == partitions.Known({1: "x", 3: "y"}, "job")


@pytest.mark.parametrize("how", ["folder", "mode"])
def test_a_file_that_cannot_be_read_counts_as_none(work, store, again, file, unprivileged, how):
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    if how == "mode":
        file.chmod(0)
    else:
        file.unlink()
        file.mkdir()
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].partition == named(7)


def test_a_volume_that_begins_again_is_read_again(work, store, again, file):
    """A person deleted its folder. Its numbers are not given again: commits name them."""
    commit(work, MANY)
    again().resolve(f"{VOLUME}@latest")
    shutil.rmtree(store.layout.volume(VOLUME))
    commit(work, MANY, job_id="anew", first=5)
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].number == MANY + 3
    assert json.loads(file.read_bytes().partition(b"\n")[2])["job"] == "anew"


@pytest.mark.parametrize("learns", ["partitions", "records"])
def test_a_living_process_tells_nobody_what_it_remembers_of_a_volume_that_is_gone(work, store, again, learns):
    """A person deleted the volume's folder, and one commit wrote its partitions, and more, once again."""
    commit(work, MANY)
    living = again()
    if learns == "partitions":
        living.resolve(f"{VOLUME}@latest")
    else:
        living.records([f"{VOLUME}@{number}" for number in range(1, MANY + 1)])
    shutil.rmtree(store.layout.volume(VOLUME))
    commit(work, 2 * MANY, job_id="anew", first=5)
    assert living.resolve(f"{VOLUME}@latest")[0].number == 3 * MANY
    for number in (1, 3, MANY, MANY + 1, 2 * MANY):
        assert again().resolve(f"{VOLUME}@{named(number + 4)}")[0].number == MANY + number


def test_one_who_may_not_write_reads_all_the_same(work, store, again, file, unprivileged):
    commit(work, MANY)
    file.parent.chmod(0o555)
    assert again().resolve(f"{VOLUME}@{named(7)}")[0].partition == named(7)
    assert not file.exists()


def test_a_reader_makes_no_folder(work, store, again):
    """A commit of the store's own user could not write into it."""
    commit(work, MANY)
    shutil.rmtree(store.layout.root / "hints")
    again().resolve(f"{VOLUME}@latest")
    assert not (store.layout.root / "hints").exists()


def test_a_reader_writes_no_file_into_the_folder_of_another_user(work, store, again, file, monkeypatch):
    commit(work, MANY)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    again().resolve(f"{VOLUME}@latest")
    assert not file.exists()


def test_a_commit_needs_no_folder_of_hints(work, store, file, unprivileged):
    """It is another user's, as a reader of an earlier release made it."""
    commit(work, 1)
    file.parent.chmod(0o500)
    commit(work, 2, job_id="second", first=1)
    file.parent.chmod(0o000)
    commit(work, 2, job_id="third", first=3)
    assert [version.number for version in store.versions(VOLUME)] == [1, 2, 3, 4, 5]
    assert store.layout.taken(VOLUME) == {}


def test_a_first_version_that_comes_during_the_look_is_found(work, store, monkeypatch):
    newest = store.catalog.newest

    def late(volume, **given):
        if not store.layout.numbers(VOLUME):
            commit(work, 1)
        return newest(volume, **given)

    monkeypatch.setattr(store.catalog, "newest", late)
    assert store.resolve(f"{VOLUME}@latest")[0].number == 1


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


def test_a_digest_reads_the_records_of_what_has_it(work, store, again, opened):
    commit(work, MANY)
    version = store.resolve(f"{VOLUME}@{named(7)}")[0]
    wanted = f"{VOLUME}@{version.digest}"
    assert records(opened, lambda: again().resolve(wanted)) == 1
    assert again().resolve(wanted) == (version,)
    store.retire(version.address, reason="bad")
    assert again().resolve(f"{VOLUME}@{version.digest[:12]}")[0].number == version.number

    def refused():
        with pytest.raises(NotFound):
            again().resolve(f"{VOLUME}@b3:{'0' * 64}")

    assert records(opened, refused) == 1  # to say that there are some


def test_a_digest_of_many_versions_is_that_of_the_newest_that_is_there(work, store, again, opened):
    for n in range(4):
        work.seal(f"same-{n}", work.spec(out=VOLUME), {"out": {"x": b"1"}})
        store.commit(f"same-{n}", attempt=1)
    wanted = f"{VOLUME}@{store.resolve(VOLUME)[0].digest}"
    assert records(opened, lambda: again().resolve(wanted)) == 1
    store.layout.delete(store.layout.version(VOLUME, 4) / "data")
    (store.layout.version(VOLUME, 4) / "TOMBSTONE").touch()
    assert again().resolve(wanted)[0].number == 3


def test_what_a_compaction_keeps_is_looked_for_in_its_partition(work, store, again, opened):
    commit(work, MANY)
    for n in range(4):
        commit(work, 1, job_id=f"more-{n}", first=7)
    again().resolve(f"{VOLUME}@latest")
    found = None

    def replace():
        nonlocal found
        found = replace_last(again(), VOLUME, named(7), name="before", keep=1)

    # Those of the partition, the last of the volume twice, and the newest, in search of the partition's last number.
    assert records(opened, replace) <= 5 + 4
    assert found is not None
    base, output = found
    assert base.number == MANY + 4
    assert output.retires == (8, *range(MANY + 1, MANY + 3), MANY + 4)


def test_runs_of_numbers_are_one_entry(work, store, file):
    found = {1: None, 2: None, 3: None, 5: None, 6: "a", 7: "a", 8: "b"}
    file.parent.mkdir(parents=True)
    partitions.write(store.layout, VOLUME, partitions.Known(found, "job"))
    runs = json.loads(file.read_bytes().partition(b"\n")[2])["runs"]
    assert runs == [[1, 3, None], [5, 5, None], [6, 7, "a"], [8, 8, "b"]]
    assert partitions.read(store.layout, VOLUME, [*found, 9]) == partitions.Known(found, "job")

"""A version of many files, and a commit of many partitions: what a look at them reads does not grow with them.

Nothing here is a matter of time: bytes that were read, files that were opened, and memory are counted.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.volumes.service.process import Service

from muster.core.data import OutputTarget
from muster.volumes.folder import FolderStore
from muster.volumes.pages import INDEX, MOST_BYTES

SCRIPT = Path(__file__).with_name("big_version.py")
GB = 10**9
MIB = 1 << 20
A_LOOK_BYTES = 3 * MOST_BYTES  # a page or two, and records

SIZES = [
    pytest.param((20_000, 20 * MIB), marks=pytest.mark.data, id="20,000 files"),
    pytest.param((1_000_000, 200 * GB), marks=pytest.mark.soak, id="1,000,000 files of 200 GB"),
]
PARTITIONS = [
    pytest.param(1_000, marks=pytest.mark.data),
    pytest.param(5_000, marks=pytest.mark.soak),
]


def step(folder, size, *arguments):
    """Do one step in a process of its own; return what it cost."""
    command = [sys.executable, SCRIPT, folder, *map(str, size), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=7200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=SIZES)
def made(request, tmp_path_factory):
    """Two versions, and what their commits cost."""
    folder, size = tmp_path_factory.mktemp("big"), request.param
    step(folder, size, "write")
    costs = {name: step(folder, size, name) for name in ("commit", "again")}
    yield folder, size, costs
    subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def test_a_commit_takes_a_kibibyte_of_memory_for_a_file(made):
    _, (files, _), costs = made
    assert costs["commit"]["peak_bytes"] < 64 * MIB + 1024 * files
    assert costs["again"]["peak_bytes"] < 64 * MIB + 2048 * files


def test_a_look_reads_as_much_of_many_files_as_of_few(made):
    folder, size, _ = made
    index = (folder / "store/v/raw/rows/1" / INDEX).stat().st_size
    assert index < size[0] // 5
    looks = step(folder, size, "look")
    for name in ("resolve", "log"):
        assert looks[name]["read_bytes"] < 64 << 10, name
    for name in ("page", "folder", "one file"):
        assert looks[name]["read_bytes"] < 2 * index + A_LOOK_BYTES, name
    assert looks["diff"]["read_bytes"] < 2 * (index + A_LOOK_BYTES)
    assert max(look["peak_bytes"] for look in looks.values()) < 16 * MIB + 4 * index


def test_a_check_holds_the_manifest_and_no_more(made):
    folder, size, _ = made
    manifest = (folder / "store/v/raw/rows/1/MANIFEST").stat().st_size
    assert step(folder, size, "check")["peak_bytes"] < 32 * MIB + 3 * manifest


def test_one_file_over_the_service(made, tmp_path):
    folder, size, _ = made
    index = (folder / "store/v/raw/rows/1" / INDEX).stat().st_size
    with Service(tmp_path, root=folder / "store") as service:
        cost = step(folder, size, "fetch", service.url, service.token())
        most = Path(f"/proc/{service.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    file_bytes = size[1] // size[0]
    assert cost["read_bytes"] < index + A_LOOK_BYTES + 2 * file_bytes + 128 * 1024
    assert cost["peak_bytes"] < 32 * MIB + 4 * index
    assert int(most) * 1024 < 128 * MIB + 4 * index


@pytest.mark.parametrize("count", PARTITIONS)
def test_a_commit_of_many_partitions(work, opened, count):
    """Each costs what one of few costs, all become visible at once, and a look at some reads no others."""
    few = commit(work, opened, "few", count // 10)
    many = commit(work, opened, "many", count)
    assert len(many) / count <= 1.02 * len(few) / (count // 10)
    store = FolderStore(work.store.layout.root)
    assert store.count("many") == count
    assert len(opened(lambda: store.newest("many", limit=20))) < 20 * 8
    assert len(opened(lambda: store.resolve(f"many@{count // 2}"))) < 16
    assert sorted(each.partition for each in store.resolve("many@*")) == sorted(map(named, range(count)))
    assert store.resolve(f"many@{named(count - 1)}")[0].partition == named(count - 1)
    assert store.records(["many@1"])[0].siblings == ()


def commit(work, opened, volume, count):
    spec = work.spec(out=OutputTarget(volume=volume, partition="*"))
    work.seal(f"job-{volume}", spec, {"out": {f"{named(n)}/rows": b"%d" % n for n in range(count)}})
    return opened(lambda: work.store.commit(f"job-{volume}", attempt=1))


def named(number):
    return f"p-{number:05d}"

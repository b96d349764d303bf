from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from muster.core.errors import SpecError
from muster.core.replica import PartManifest
from muster.core.wire import loads
from muster.worker.seal import seal


@pytest.fixture
def replica(bench):
    return bench.replica(entrypoint="t:f", outputs=("model", "Table"))


def test_everything_staged_is_listed_by_output_and_path(replica, tmp_path: Path) -> None:
    model = tmp_path / "staging" / "model"
    (model / "a" / "empty").mkdir(parents=True)
    (model / "a" / "b.bin").write_bytes(b"123")
    (model / "a.txt").write_bytes(b"")
    (model / ".hidden name").write_bytes(b"1")
    (tmp_path / "staging" / "Table" / "part-0").write_bytes(b"12")
    part = seal(replica)
    assert part.files == {
        "Table": {"part-0": 2},
        "model": {".hidden name": 1, "a.txt": 0, "a/b.bin": 3},
    }
    assert list(part.files["model"]) == [".hidden name", "a.txt", "a/b.bin"]
    assert loads(PartManifest, Path(replica.sealed).read_text()) == part
    assert [path.name for path in (tmp_path / "sealed").iterdir()] == [
        "main-0.json"
    ]  # no half-written neighbour


def test_a_job_without_outputs_seals_as_well(bench) -> None:
    assert seal(bench.replica(entrypoint="t:f")).files == {}


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket holds 108 bytes at most
        door.bind(path.name)
        os.chdir(here)


def make_odd_name(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path) + b"\xff")).touch()


def make_dangling(path: Path) -> None:
    path.symlink_to("nothing")


def make_circle(path: Path) -> None:
    path.symlink_to(".")


def make_line_break(path: Path) -> None:
    path.with_name("odd\n").touch()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_link, "output 'model' holds a link out of it, 'deep/odd': a version keeps files, folders"),
        (make_dangling, "output 'model' holds a link to nothing, 'deep/odd'"),
        (make_circle, "output 'model' holds a link in a circle, 'deep/odd'"),
        (make_pipe, "output 'model' holds a named pipe, 'deep/odd'"),
        (make_socket, "output 'model' holds a socket, 'deep/odd'"),
        (make_odd_name, "output 'model' holds a name that is not UTF-8, 'deep/odd\\udcff'"),
        (make_line_break, "output 'model' holds a name with a control character, 'deep/odd\\n'"),
    ],
)
def test_what_no_version_keeps_is_sealed_as_refused_and_stays(
    replica, tmp_path: Path, make, message: str
) -> None:
    deep = tmp_path / "staging" / "model" / "deep"
    deep.mkdir()
    (deep / "weights").write_bytes(b"1")
    make(deep / "odd")
    part = seal(replica)
    assert [message in each for each in part.refused] == [True]
    assert part.files["model"]["deep/weights"] == 1
    assert len(list(deep.iterdir())) == 2
    assert loads(PartManifest, Path(replica.sealed).read_text()) == part


def test_links_within_an_output_are_sealed_as_what_they_name(replica, tmp_path: Path) -> None:
    model = tmp_path / "staging" / "model"
    (model / "step-1").mkdir(parents=True)
    (model / "step-1" / "weights").write_bytes(b"123")
    (model / "last.ckpt").symlink_to("step-1/../step-1/weights")
    (model / "absolute").symlink_to(model / "step-1" / "weights")
    (model / "latest").symlink_to("step-1")
    (model / "chain").symlink_to("latest/weights")
    part = seal(replica)
    names = ["absolute", "chain", "last.ckpt", "latest/weights", "step-1/weights"]
    assert (part.refused, part.files["model"]) == ((), dict.fromkeys(names, 3))
    assert {(model / name).stat().st_ino for name in names} == {(model / "step-1" / "weights").stat().st_ino}
    assert not any(path.is_symlink() for path in model.rglob("*"))


def remove(folder: Path) -> None:
    folder.rmdir()


def link_elsewhere(folder: Path) -> None:
    folder.rmdir()
    folder.symlink_to(folder.parent)


def write_a_file(folder: Path) -> None:
    folder.rmdir()
    folder.write_bytes(b"model")


@pytest.mark.parametrize("change", [remove, link_elsewhere, write_a_file])
def test_an_output_whose_folder_is_no_more_is_refused_by_name(replica, tmp_path: Path, change) -> None:
    change(tmp_path / "staging" / "model")
    with pytest.raises(SpecError, match="output 'model': its folder was removed or replaced"):
        seal(replica)
    assert not Path(replica.sealed).exists()

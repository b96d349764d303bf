"""Where waiting processes are found, what they say over a socket, and who may say it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from muster.cli.warm.messages import is_ours, receive, send
from muster.cli.warm.place import MOST, Note, WarmPlace, waiting
from muster.cli.warm.server import Imported

DEEP = "a-folder-with-a-long-name/" * 5  # an address of a socket has 107 bytes


@pytest.fixture
def place(tmp_path: Path) -> WarmPlace:
    home = tmp_path / DEEP
    home.mkdir(parents=True)
    made = WarmPlace(home / "waiting", "key")
    assert made.ready()
    return made


def test_one_process_waits_for_a_key_and_only_its_owner_enters(place: WarmPlace) -> None:
    found = place.listen()
    assert found is not None
    listening, lock = found
    with listening:
        assert place.listen() is None
        assert place.folder.stat().st_mode & 0o777 == 0o700
        client = place.connect()
        assert client is not None
        with client, listening.accept()[0] as served:
            assert is_ours(served, uid=os.getuid())
            assert not is_ours(served, uid=os.getuid() + 1)
    os.close(lock)


def test_a_folder_that_others_may_enter_or_that_leads_elsewhere_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert not WarmPlace(tmp_path / "open", "key").ready()
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert not WarmPlace(tmp_path / "link", "key").ready()
    (tmp_path / "file").touch()
    assert not WarmPlace(tmp_path / "file", "key").ready()
    assert not WarmPlace(tmp_path / "not" / "there", "key").ready()


def test_what_a_killed_process_left_is_no_obstacle(place: WarmPlace) -> None:
    found = place.listen()
    assert found is not None
    place.tell(Note(pid=4, began=1.0, runs=2, last=3.0))
    assert list(waiting(place.folder.parent)) == [Note(pid=4, began=1.0, runs=2, last=3.0)]
    mark = place.mark()
    assert place.is_here(mark)
    found[0].close()
    os.close(found[1])  # as the kernel does
    assert place.connect() is None
    again = place.listen()
    assert again is not None
    assert not place.is_here(mark)
    again[0].close()
    os.close(again[1])
    assert list(waiting(place.folder.parent)) == []
    assert list(place.folder.iterdir()) == []


def test_a_document_goes_over_with_open_files(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    told = {"argv": ["x" * 300_000], "environment": {"BYTES": "\udcff"}}
    pid = os.fork()
    if pid == 0:
        send(theirs, told, [write])
        os._exit(0)
    theirs.close()
    document, (handle,) = receive(ours)
    assert document == told
    os.write(handle, b"here")
    assert os.read(read, 9) == b"here"
    with pytest.raises(EOFError):
        receive(ours)
    os.waitpid(pid, 0)
    for each in (handle, read, write):
        os.close(each)
    ours.close()


def test_an_imported_file_that_is_edited_replaced_or_written_meanwhile_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("one")
    os.utime(path, ns=(5, 5))
    imported = Imported.now({path}, since=time.time_ns())
    assert not imported.changed()
    assert Imported.now({path}, since=4).changed(), "it was written after the imports began"
    assert Imported.now({tmp_path / "gone.py"}, since=9).changed()
    path.write_text("two")
    assert imported.changed()


def test_of_many_environments_the_ones_used_last_keep_a_process(tmp_path: Path) -> None:
    folder = tmp_path / "waiting"
    held = []
    for number in range(MOST + 2):
        place = WarmPlace(folder, f"key{number}")
        assert place.ready()
        held.append((place, place.listen()))
        place.tell(Note(pid=1, began=0.0, runs=0, last=0.0))
        os.utime(folder / f"key{number}.json", (number, number))
    assert sorted(path.stem for path in folder.glob("*.sock")) == ["key2", "key3", "key4"]
    for _, (listening, lock) in held:
        listening.close()
        os.close(lock)

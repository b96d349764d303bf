"""Where waiting processes are found, what they say over a socket, and who may say it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from muster.cli.warm.place import MOST, WarmPlace, is_ours, waiting
from muster.cli.warm.server import Imported

DEEP = "a-folder-with-a-long-name/" * 5  # an address of a socket has 107 bytes


@pytest.fixture
def place(tmp_path: Path) -> WarmPlace:
    home = tmp_path / DEEP
    home.mkdir(parents=True)
    made = WarmPlace(home / "waiting", "key")
    assert made.ready()
    return made


def test_the_last_process_waits_for_a_key_and_only_its_owner_enters(place: WarmPlace) -> None:
    with place.listen() as earlier:
        mark = place.mark()
        with place.listen() as listening:
            assert place.mark() != mark, "the earlier one sees that it is replaced"
            assert place.folder.stat().st_mode & 0o777 == 0o700
            client = place.connect()
            assert client is not None
            with client, listening.accept()[0] as served:
                assert is_ours(served, uid=os.getuid())
                assert not is_ours(served, uid=os.getuid() + 1)
            earlier.setblocking(False)
            with pytest.raises(BlockingIOError):
                earlier.accept()


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
    place.listen().close()
    assert place.connect() is None
    with place.listen():
        assert place.mark()
    assert list(waiting(place.folder.parent)) == []
    assert list(place.folder.iterdir()) == []


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
    for number in range(MOST + 2):
        place = WarmPlace(folder, f"key{number}")
        assert place.ready()
        place.listen().close()
        os.utime(place.path, (number, number))
    assert sorted(path.stem for path in folder.glob("*.sock")) == ["key2", "key3", "key4"]

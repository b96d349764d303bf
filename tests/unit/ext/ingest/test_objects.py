"""An ingest of a folder: what changed is fetched, the rest is named; a kill loses only what is under way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from muster.core.data import CARRIED


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in files
        if not path.name.startswith(".muster")
    }


def whole(before: Path, after: Path) -> dict[str, str]:
    """What the version will hold: what is taken over, and what was fetched."""
    carried = (after / CARRIED).read_text().splitlines()
    return {path: (before / path).read_text() for path in carried} | contents(after)


def test_the_first_version_is_the_whole_source(ingest: Any, source: Path, tmp_path: Path) -> None:
    told = ingest()
    assert contents(tmp_path / "target") == {"a": "1", "d/b": "22", "d/e/c": "333"}
    assert (told["files"], told["bytes"], told["fetched"], told["kept"], told["gone"]) == (3, 6, 3, 0, 0)
    assert sorted(os.listdir(tmp_path / "target")) == [".muster-ingest.jsonl", "a", "d"]  # noqa: PTH208


def test_the_last_count_is_the_whole(ingest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ingest()
    counts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("muster: ")]
    assert counts[-1] == "muster: files=3/3 bytes=6/6"


def test_nothing_new_leaves_nothing(ingest: Any, tmp_path: Path) -> None:
    ingest()
    told = ingest("again", before="target")
    assert list((tmp_path / "again").iterdir()) == []
    assert (told["files"], told["fetched"], told["kept"]) == (3, 0, 3)


def test_only_what_changed_is_fetched_and_what_is_gone_is_gone(
    ingest: Any, source: Path, tmp_path: Path
) -> None:
    ingest()
    (source / "a").write_text("other")
    (source / "new").write_text("n")
    (source / "d" / "b").unlink()
    told = ingest("again", before="target")
    assert contents(tmp_path / "again") == {"a": "other", "new": "n"}
    assert whole(tmp_path / "target", tmp_path / "again") == {"a": "other", "new": "n", "d/e/c": "333"}
    assert (told["fetched"], told["kept"], told["gone"]) == (2, 1, 1)


def test_a_file_of_which_only_the_time_changed_is_read_again(
    ingest: Any, source: Path, tmp_path: Path
) -> None:
    ingest()
    os.utime(source / "a", (1, 1))
    assert ingest("again", before="target")["fetched"] == 1


def test_only_what_is_gone_makes_a_version_of_what_is_left(ingest: Any, source: Path, tmp_path: Path) -> None:
    ingest()
    (source / "a").unlink()
    assert ingest("again", before="target")["gone"] == 1
    assert whole(tmp_path / "target", tmp_path / "again") == {"d/b": "22", "d/e/c": "333"}


def test_the_version_of_another_source_is_none_to_begin_with(
    ingest: Any, source: Path, tmp_path: Path
) -> None:
    ingest()
    told = ingest("again", before="target", source=f"file://{source}/d")
    assert contents(tmp_path / "again") == {"b": "22", "e/c": "333"}
    assert told["fetched"] == 2


def test_one_file_is_a_source_too(ingest: Any, source: Path, tmp_path: Path) -> None:
    ingest(source=f"file://{source}/d/b")
    assert contents(tmp_path / "target") == {"b": "22"}


def test_an_attempt_goes_on_from_what_the_one_before_noted(ingest: Any, source: Path, tmp_path: Path) -> None:
    from muster_ingest import listing  # type: ignore[import-not-found]
    from muster_ingest.places import identity  # type: ignore[import-not-found]

    target, url = tmp_path / "target", {"url": f"file://{source}"}
    (target / "d").mkdir(parents=True)
    (target / ".muster-parts").mkdir()
    (target / ".muster-parts" / "0").write_text("half")
    (target / "a").write_text("1")
    (target / "d" / "b").write_text("no")  # moved here when the kill came, and never noted
    (target / "left").write_text("over")
    noted = identity({"mtime": (source / "a").stat().st_mtime})
    (target / ".muster-ingest.part").write_text(
        listing.first_line(url) + listing.line("a", 1, noted) + listing.line("gone", 1, "x") + '["d/e'
    )
    assert ingest()["fetched"] == 3
    assert contents(target) == {"a": "1", "d/b": "22", "d/e/c": "333"}
    assert not (target / "left").exists()


def test_what_was_noted_and_changed_since_is_fetched_again(ingest: Any, source: Path, tmp_path: Path) -> None:
    from muster_ingest import listing  # type: ignore[import-not-found]

    target = tmp_path / "target"
    target.mkdir()
    (target / "a").write_text("0")
    (target / ".muster-ingest.part").write_text(
        listing.first_line({"url": f"file://{source}"}) + listing.line("a", 1, "at 1.0")
    )
    ingest()
    assert contents(target)["a"] == "1"


def test_a_source_that_is_empty_or_not_there_makes_no_version(
    ingest: Any, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("empty", "holds no object: nothing is committed$"),
        ("nowhere", "is not there: no such bucket, folder or object$"),
    ):
        with pytest.raises(Exception, match=said) as caught:
            ingest(source=f"file://{tmp_path}/{name}")
        assert type(caught.value).__name__ == "IngestError"
    ingest()
    for file in ("a", "d/b", "d/e/c"):
        (source / file).unlink()
    with pytest.raises(Exception, match=r"and the last version stays$"):
        ingest("again", before="target")


@pytest.mark.parametrize(("times", "done"), [(1, True), (3, False)])
def test_an_object_that_changes_while_it_is_read(
    ingest: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, done: bool
) -> None:
    from muster_ingest.places import Place  # type: ignore[import-not-found]

    fetch, left = Place.fetch, [None] * times

    def changing(self: Any, fs: Any, key: str, target: str) -> None:
        fetch(self, fs, key, target)
        if key.endswith("/a") and left:
            left.pop()
            (source / "a").write_text((source / "a").read_text() + "x")

    monkeypatch.setattr(Place, "fetch", changing)
    if done:
        ingest()
        assert contents(tmp_path / "target")["a"] == "1x"
    else:
        with pytest.raises(Exception, match="'a' changed again while it was read, 3 times over"):
            ingest()


def test_a_source_that_stays_away_ends_the_ingest_and_keeps_what_was_fetched(
    ingest: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_ingest.places import Place  # type: ignore[import-not-found]

    whole = Place.fetch

    def away(self: Any, fs: Any, key: str, target: str) -> None:
        if key.endswith("/c"):
            raise ConnectionResetError("gone")
        whole(self, fs, key, target)

    monkeypatch.setattr(Place, "fetch", away)
    why = r"does not answer, for \d+ s \(ConnectionResetError at .*/c: gone\): run again, it goes on from what was fetched"
    with pytest.raises(Exception, match=why) as caught:
        ingest(streams=1, patience_seconds=0.2)
    assert type(caught.value).__name__ == "SourceAway"
    monkeypatch.setattr(Place, "fetch", whole)
    read = []
    monkeypatch.setattr(
        Place, "fetch", lambda self, fs, key, target: (read.append(key), whole(self, fs, key, target))
    )
    ingest()
    assert [key.rpartition("/")[2] for key in read] == ["c"]


def test_each_folder_of_a_list_is_asked_for_with_patience_of_its_own(
    ingest: Any, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    whole, asked = LocalFileSystem.ls, []

    def failing(self: Any, path: str, detail: bool = False) -> Any:
        asked.append(path.removeprefix(str(source)))
        if asked.count(asked[-1]) == 1:
            raise ConnectionResetError("gone")
        return whole(self, path, detail=detail)

    monkeypatch.setattr(LocalFileSystem, "ls", failing)
    assert ingest(patience_seconds=0.1)["files"] == 3, "the list takes longer than the source may be away"
    assert asked == ["", "", "/d", "/d", "/d/e", "/d/e", "", "/d", "/d/e"], "only what failed is repeated"


def test_what_a_refused_commit_left_is_gone_on_from(ingest: Any, source: Path, tmp_path: Path) -> None:
    ingest()
    (source / "a").write_text("new")
    (source / "n").write_text("n")
    ingest("refused", before="target")
    (tmp_path / "refused" / ".muster-carried").unlink()  # as the store leaves it
    (source / "n").write_text("newer")
    told = ingest("refused", before="target")
    assert told["fetched_bytes"] == len("newer"), "only that was fetched"
    assert contents(tmp_path / "refused") == {"a": "new", "n": "newer"}


def test_a_file_comes_where_an_attempt_had_a_folder(ingest: Any, source: Path, tmp_path: Path) -> None:
    ingest("killed")
    (source / "d" / "b").unlink()
    (source / "d" / "e" / "c").unlink()
    (source / "d" / "e").rmdir()
    (source / "d").rmdir()
    (source / "d").write_text("file")
    ingest("killed")
    assert contents(tmp_path / "killed") == {"a": "1", "d": "file"}


def test_what_changed_and_went_while_it_was_read_is_gone(
    ingest: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_ingest.places import Place  # type: ignore[import-not-found]

    ingest()
    (source / "a").write_text("other")
    fetch = Place.fetch

    def going(self: Any, fs: Any, key: str, target: str) -> None:
        fetch(self, fs, key, target)
        (source / "a").unlink()

    monkeypatch.setattr(Place, "fetch", going)
    ingest("again", before="target")
    assert whole(tmp_path / "target", tmp_path / "again") == {"d/b": "22", "d/e/c": "333"}

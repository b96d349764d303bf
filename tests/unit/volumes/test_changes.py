"""Which of the author's files differ, as far as a job could tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster.volumes.changes import changed, code_changed
from muster.volumes.folder import FolderStore

Keep = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def keep(store: FolderStore, tmp_path: Path) -> Keep:
    """Keep some texts as a snapshot."""

    def keep(**texts: str) -> str:
        return store.put(
            tmp_path,
            [],
            texts={
                name.replace("__", "/").replace("INIT", "__init__") + ".py": text
                for name, text in texts.items()
            },
        )

    return keep


def test_only_the_files_that_were_read_count_where_they_are_known(keep: Keep, store: FolderStore) -> None:
    then, now = keep(etl="a = 1", idle="", train="b = 1"), keep(etl="a = 1", idle="# x", train="b = 2")
    assert code_changed(then, now, store, files=["etl.py"]) == ()
    assert code_changed(then, now, store, files=["etl.py", "train.py"]) == ("train.py",)
    assert code_changed(then, now, store) == ("idle.py", "train.py")
    assert code_changed(then, then, store) == ()
    assert code_changed(then, None, store) is None
    assert code_changed(then, "b3:" + "7" * 64, store) is None


def test_permissions_count_where_all_counts(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("true")
    then = store.put(tmp_path, ["run.sh"])
    (tmp_path / "run.sh").chmod(0o755)
    assert code_changed(then, store.put(tmp_path, ["run.sh"]), store) is None


def test_what_would_be_imported_in_a_modules_place_counts(keep: Keep, store: FolderStore) -> None:
    then, now = keep(a__etl="x = 1"), keep(a__etl="x = 1", a__etl__INIT="x = 2")
    assert code_changed(then, now, store, files=["a/etl.py"]) == ("a/etl/__init__.py",)


def test_a_folder_that_was_listed_counts_by_its_names(keep: Keep, store: FolderStore) -> None:
    then = keep(plugins__one="", etl="")
    assert code_changed(then, keep(plugins__one="# edited", etl=""), store, files=["plugins/"]) == ()
    more = keep(plugins__one="", plugins__two="", etl="")
    assert code_changed(then, more, store, files=["plugins/"]) == ("plugins/",)
    assert code_changed(then, more, store, files=["./"]) == ()
    assert code_changed(then, keep(plugins__one="", etl="", new=""), store, files=["./"]) == ("./",)


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ("import x\n\n\ndef f(): ...\n", "import x\n\ndef f(): ...\n", True),
        ("\n\n\ndef f(): ...\n", "\ndef f(): ...\n", True),
        ('A = """\n\n\n"""\n', 'A = """\n\n"""\n', False),
        ("A = [\n\n\n]\n", "A = [\n\n]\n", False),  # it means the same, and to tell that is not worth it
        ("a = 1\nb = 1\n", "a = 1\nb = 2\n", False),
        ("a = 1\n\nb = 1\n", "a = 1\n\nb = 2\n", False),
    ],
)
def test_blank_lines_above_a_decorated_function_do_not_count(then: str, now: str, same: bool) -> None:
    for name, meant in (("dag.py", same), ("rows.csv", False)):
        found = changed([name], {name: then.encode()}.get, {name: now.encode()}.get)
        assert found == (() if meant else (name,))

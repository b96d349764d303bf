import os

import pytest

from muster.core.errors import SpecError
from muster.volumes import snapshot


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "dags"
    (folder / "pkg").mkdir(parents=True)
    (folder / "dag.py").write_text("x = 1\n")
    (folder / "pkg" / "train.py").write_text("y = 2\n")
    return folder


def add(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("z")


def test_what_is_no_code_or_secret_stays_behind(folder):
    add(
        folder,
        ".git/config",
        ".env",
        "pkg/.env",
        "keys/server.pem",
        "pkg/__pycache__/train.pyc",
        ".muster/store/x",
    )
    add(folder, ".venv/bin/python", "pkg/data.csv", "notes/a.md", "pkg/keep/data.csv")
    (folder / ".musterignore").write_text("# data\n*.csv\n!pkg/keep/*.csv\nnotes/\n")
    assert snapshot.collect(folder) == [".musterignore", "dag.py", "pkg/keep/data.csv", "pkg/train.py"]


@pytest.mark.parametrize(
    "path",
    [".env.production", "pkg/tls.key", "id_rsa", "pkg/id_ed25519.pub", "a.p12", ".netrc", ".ssh/config"],
)
def test_what_usually_holds_a_secret_travels_only_where_it_is_named(folder, path):
    add(folder, path)
    assert path not in snapshot.collect(folder)
    (folder / ".musterignore").write_text(f"!{path}\n" + "!.ssh/\n" * path.startswith(".ssh"))
    assert path in snapshot.collect(folder)


def test_a_link_travels_as_what_it_leads_to(store, folder):
    (folder / "alias.py").symlink_to("pkg/train.py")
    digest = store.put(folder, snapshot.collect(folder))
    copy = store.code(digest) / "alias.py"
    assert copy.read_text() == "y = 2\n"
    assert not copy.is_symlink()


def outside(folder):
    (folder.parent / "secret").write_text("s")
    (folder / "link").symlink_to(folder.parent / "secret")


def upward(folder):
    (folder / "link").symlink_to("../../etc/passwd")


def to_ignored(folder):
    add(folder, ".env")
    (folder / "link").symlink_to(".env")


def to_folder(folder):
    (folder / "link").symlink_to("pkg")


def dangling(folder):
    (folder / "link").symlink_to("nothing")


def loop(folder):
    (folder / "link").symlink_to("link")


def pipe(folder):
    os.mkfifo(folder / "link")


def newline(folder):
    (folder / "li\nnk").write_text("")


@pytest.mark.parametrize("make", [outside, upward, to_ignored, to_folder, dangling, loop, pipe, newline])
def test_what_cannot_travel_is_refused_by_name(folder, make):
    make(folder)
    with pytest.raises(SpecError, match=r"code file .(link|li\\nnk)"):
        snapshot.collect(folder)
    (folder / ".musterignore").write_text("li*\n")
    assert snapshot.collect(folder) == [".musterignore", "dag.py", "pkg/train.py"]


@pytest.mark.parametrize("make", [outside, to_ignored, to_folder, newline])
def test_a_refusal_says_where_a_name_is_ignored(folder, make):
    make(folder)
    with pytest.raises(SpecError, match=r"name (it|the link) in \.musterignore"):
        snapshot.collect(folder)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "pkg/../dag.py", "link", "nothing", "pkg", ""])
def test_only_files_below_the_folder_are_kept(store, folder, path):
    outside(folder)
    with pytest.raises(SpecError, match="code file"):
        store.put(folder, ["dag.py", path])
    assert list((store.layout.root / "code").iterdir()) == []


def test_too_many_bytes_name_the_biggest(folder):
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(101 << 20)
    with pytest.raises(SpecError, match=r"holds 101 MiB, at most 100 travel; the biggest are 'weights.bin'"):
        snapshot.collect(folder)


def test_too_many_files(folder, monkeypatch):
    monkeypatch.setattr(snapshot, "LIMIT_FILES", 3)
    add(folder, "a", "b")
    with pytest.raises(SpecError, match="more than 3 files"):
        snapshot.collect(folder)


def test_a_folder_that_is_not_there_and_patterns_that_cannot_be_read(folder):
    with pytest.raises(SpecError, match="is not there"):
        snapshot.collect(folder / "nothing")
    (folder / ".musterignore").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="cannot be read as gitignore patterns"):
        snapshot.collect(folder)


def test_a_snapshot_cannot_be_changed(store, folder):
    code = store.code(store.put(folder, ["pkg/train.py"]))
    modes = {path.stat().st_mode & 0o222 for path in [code, *code.rglob("*")]}
    assert modes == {0}


def test_the_digest_depends_on_names_and_content_alone(store, folder, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "dag.py").write_text("x = 1\n")
    os.utime(other / "dag.py", (1, 1))
    assert store.put(other, ["dag.py"]) == store.put(folder, ["dag.py"])
    (other / "gad.py").write_text("x = 1\n")
    assert store.put(other, ["gad.py"]) != store.put(folder, ["dag.py"])

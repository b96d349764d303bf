"""Inputs are read-only for root too, for the replica alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.verdict import ExitCode
from muster.worker.code import version_folder

ALLOWED = "import sys\nfrom muster.worker.code import protect\nsys.exit(not protect([sys.argv[1]]))"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """An input in a folder of its own; skips where the kernel does not let us protect it from root."""
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "part-0").write_text("whole")
    if subprocess.run([sys.executable, "-c", ALLOWED, folder], check=False).returncode:
        pytest.skip("no mount namespaces here: not root, or a container that does not allow them")
    return folder


WRITES = """
    import os, sys
    def f(rows, out):
        refused = []
        for change in (lambda: open(rows / "part-0", "w"), lambda: open(rows / "new", "w"),
                       lambda: os.remove(rows / "part-0"), lambda: os.chmod(rows / "part-0", 0o666)):
            try:
                change()
            except OSError as error:
                refused.append(error.strerror)
        print(refused, open(rows / "part-0").read())
        (out / "copy").write_bytes((rows / "part-0").read_bytes())
"""


def test_root_cannot_change_an_input(bench, rows: Path) -> None:
    bench.code(t=WRITES)
    ended = bench.run(entrypoint="t:f", inputs={"rows": ((str(rows),), False)}, outputs=("out",))
    assert ended.code == ExitCode.SEALED
    assert f"{['Read-only file system'] * 4} whole" in ended.log
    assert [path.name for path in rows.iterdir()] == ["part-0"]


def test_nobody_else_sees_the_mounts(bench, rows: Path) -> None:
    bench.code(t=f"def f(rows):\n    print('seen', open('/proc/self/mounts').read().count(' {rows} '))")
    ended = bench.run(entrypoint="t:f", inputs={"rows": ((str(rows),), False)})
    assert "[rank 0] seen 1" in ended.lines
    assert str(rows) not in Path("/proc/self/mounts").read_text()
    (rows / "part-0").write_text("ours to change")


def test_a_command_cannot_change_one_of_several(bench, rows: Path, tmp_path: Path) -> None:
    other = tmp_path / "more rows"
    other.mkdir()
    given = {"rows": ((str(rows), str(other)), True)}
    bench.code(t="import pathlib, sys\nfor p in sys.argv[1:]: pathlib.Path(p, 'new').touch()")
    ended = bench.run(command=("python", "t.py", "{inputs.rows}"), inputs=given)
    assert ended.report.verdict.message.startswith("OSError: [Errno 30] Read-only file system")
    assert list(other.iterdir()) == []


EDITS = """
    import os
    def f(rows):
        version, refused = rows.parent, []
        for change in (lambda: os.chmod(version / "RECORD.json", 0o666), lambda: os.remove(version / "MANIFEST"),
                       lambda: open(version / "RETIRED", "w"), lambda: open(version / "RECORD.json", "w"),
                       lambda: os.rename(version, f"{version}0")):
            try:
                change()
            except OSError as error:
                refused.append(error.strerror)
        print(refused)
"""


def test_root_cannot_change_the_record_beside_an_input(bench, rows: Path) -> None:
    version = rows.parent / "7"
    version.mkdir()
    rows.rename(version / "data")
    for name in ("RECORD.json", "MANIFEST"):
        (version / name).write_text(name)
    bench.code(t=EDITS)
    ended = bench.run(entrypoint="t:f", inputs={"rows": ((str(version / "data"),), False)})
    assert f"{['Read-only file system'] * 4 + ['Device or resource busy']}" in ended.log
    assert (version / "RECORD.json").read_text() == "RECORD.json"
    assert sorted(path.name for path in version.iterdir()) == ["MANIFEST", "RECORD.json", "data"]


def test_what_is_protected_is_the_version_that_an_input_lies_in(tmp_path: Path) -> None:
    version = tmp_path / "v" / "flights" / "7"
    (version / "data" / "data").mkdir(parents=True)
    for path in ("data", "data/data"):
        assert version_folder(str(version / path)) == str(version / path)
    (version / "RECORD.json").touch()
    for path in ("data", "data/data", "data/part-0"):
        assert version_folder(str(version / path)) == str(version)

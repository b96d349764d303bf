"""Which files of the author's code a rank reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

START = """
import json, os, sys
code = sys.argv[1]
sys.path.insert(0, code)
os.chdir(sys.argv[2])
from muster.worker.entrypoint import Reads
reads = Reads(code)
reads.begin()
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name, text in {
        "loop/__init__.py": "",
        "loop/train.py": "from loop.steps import step\n",
        "loop/steps.py": "step = 1\n",
        "loop/idle.py": "",
        "loop/weights.json": "[1]",
        "loop/plugins/one.py": "",
        "loop/plugins/two.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "elsewhere").mkdir()
    return root


def read_by(code: Path, body: str) -> list[str] | None:
    """What a process that runs this has read, without what every import of the package brings."""
    text = START + dedent(body) + "\nprint(); print(json.dumps(reads.names()))"
    done = subprocess.run(
        [sys.executable, "-c", text, code, code.parent / "elsewhere"],
        capture_output=True,
        text=True,
        check=True,
    )
    names: list[str] | None = json.loads(done.stdout.splitlines()[-1])
    return names


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("import loop.train", ["loop/__init__.py", "loop/steps.py", "loop/train.py"]),
        ("__import__('importlib').import_module('loop.' + 'steps')", ["loop/__init__.py", "loop/steps.py"]),
        ("open(code + '/loop/weights.json').read()", ["loop/weights.json"]),
        ("open(code.encode() + b'/loop/../loop/weights.json').read()", ["loop/weights.json"]),
        ("os.chdir(code + '/loop'); open('weights.json').read()", ["loop/weights.json"]),
        ("from pathlib import Path; (Path(code) / 'loop/weights.json').read_text()", ["loop/weights.json"]),
        ("os.listdir(code + '/loop/plugins')", ["loop/plugins/"]),
        ("from pathlib import Path; list(Path(code, 'loop/plugins').glob('*.py'))", ["loop/plugins/"]),
        ("os.listdir(code)", ["./"]),
        (
            "import pkgutil, loop\nlist(pkgutil.iter_modules(loop.__path__))",
            ["loop/", "loop/__init__.py", "loop/plugins/"],
        ),
        (
            "try:\n    import loop.mine\nexcept ImportError:\n    pass",
            ["loop/__init__.py", "loop/mine.py", "loop/mine/__init__.py"],
        ),
        ("import json.tool, sqlite3; open('/etc/hostname').close(); os.listdir('/tmp')", []),
        ("import subprocess; subprocess.run(['true'])", []),
    ],
)
def test_what_is_read_is_named(code: Path, body: str, names: list[str]) -> None:
    assert read_by(code, body) == names
    assert read_by(code, body) == names, "from Python's caches too"


@pytest.mark.parametrize(
    "body",
    [
        "import subprocess; subprocess.run([sys.executable, '-c', 'pass'])",
        "import subprocess; subprocess.run(['cat', code + '/loop/weights.json'])",
        "import subprocess; subprocess.run('cat weights.json', shell=True, cwd=code + '/loop')",
        "os.system('true')",
    ],
)
def test_after_a_program_that_may_have_read_any_file_all_count(code: Path, body: str) -> None:
    assert read_by(code, body) is None


def test_what_a_fork_reads_is_read(code: Path) -> None:
    found = read_by(
        code,
        """
        if not (child := os.fork()):
            import loop.idle
            open(f"{code}/loop/weights.json").close()
            try:
                open(f"{code}/loop/missing.json")
            except FileNotFoundError:
                os._exit(0)
        os.waitpid(child, 0)
        """,
    )
    assert found is not None
    assert {"loop/weights.json", "loop/missing.json"} <= {*found}


def test_a_fork_tells_of_each_file_once_however_often_it_reads_it(code: Path) -> None:
    """A loader of data opens the same files for days."""
    found = read_by(
        code,
        """
        if not (child := os.fork()):
            for _ in range(1000):
                open(f"{code}/loop/weights.json").close()
                os.listdir(code)
            os._exit(0)
        os.waitpid(child, 0)
        links = {f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")}
        told, = (each for each in links if os.path.exists(each) and "memfd:reads" in os.readlink(each))
        open(f"{code}/loop/{os.stat(told).st_size}", "w").close()
        """,
    )
    assert found == ["./", "loop/21", "loop/weights.json"]

"""An image's lock is made whole or not at all, with the wheels that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.errors import ImageError
from muster.core.shipped import shipped
from muster.images.lock import lock_image, names_in, trouble

# A build backend in the package's own folder: it asks no index for anything.
BACKEND = """
import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "mylib-{version}-py3-none-any.whl"
    info = "mylib-{version}.dist-info"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("mylib.py", "VERSION = '{version}'")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: mylib\\nVersion: {version}\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def write(folder: Path, version: str) -> None:
    """Write version `version` of the package mylib beside the lock."""
    (folder / "mylib").mkdir(parents=True, exist_ok=True)
    (folder / "mylib" / "pyproject.toml").write_text(PROJECT)
    (folder / "mylib" / "backend.py").write_text(BACKEND.replace("{version}", version))


@pytest.mark.slow
def test_a_lock_that_cannot_be_made_leaves_the_wheels_of_the_one_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    write(folder, "1.0")
    (folder / "requirements.in").write_text("./mylib\n")
    lock = lock_image("own", folder, tmp_path / "uv").read_text()
    assert "./wheels/mylib-1.0-py3-none-any.whl" in lock
    before = (folder / "wheels" / "mylib-1.0-py3-none-any.whl").read_bytes()

    write(folder, "2.0")
    (folder / "requirements.in").write_text("./mylib\n!! no requirement\n")
    with pytest.raises(ImageError, match="the lock is as it was"):
        lock_image("own", folder, tmp_path / "uv")
    assert (folder / "requirements.txt").read_text() == lock
    assert [path.name for path in (folder / "wheels").iterdir()] == ["mylib-1.0-py3-none-any.whl"]
    assert (folder / "wheels" / "mylib-1.0-py3-none-any.whl").read_bytes() == before

    (folder / "requirements.in").write_text("./mylib\n")
    assert "./wheels/mylib-2.0-py3-none-any.whl" in lock_image("own", folder, tmp_path / "uv").read_text()
    assert [path.name for path in (folder / "wheels").iterdir()] == ["mylib-2.0-py3-none-any.whl"]
    assert trouble(folder) is None


def test_an_index_in_requirements_in_is_refused_since_the_lock_cannot_hold_it(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "requirements.in").write_text("--extra-index-url http://localhost:1/simple\nsix\n")
    with pytest.raises(ImageError, match=r"--extra-index-url .* name the index in UV_INDEX"):
        lock_image("own", tmp_path / "own", tmp_path / "uv")
    assert not (tmp_path / "own" / "requirements.txt").exists()


def test_an_environment_of_conda_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text("dependencies: [python=3.10]\n")
    found = trouble(tmp_path)
    assert found is not None
    assert found.startswith("it holds environment.yml, which is conda's and not read: write its packages")


@pytest.mark.parametrize(
    "line",
    [
        "--index-url http://localhost:1/simple",
        "--extra-index-url=http://localhost:1",
        "-f ./wheels",
        " -i http://x",
        "--find-links x",
        "-r other.txt",
        "--requirement other.txt",
        "--trusted-host x",
    ],
)
def test_a_lock_that_holds_an_address_is_no_lock(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(
        f"--only-binary :all:\nsix==1.16.0 \\\n    --hash=sha256:{'0' * 64}\n"
    )
    assert trouble(tmp_path) is None
    with (tmp_path / "requirements.txt").open("a") as lock:
        lock.write(f"{line}\n")
    assert f"holds {line.strip()!r}, and a lock holds no address" in (trouble(tmp_path) or "")


def test_a_lock_names_its_packages() -> None:
    lock = (shipped("images") / "ray" / "requirements.txt").read_text()
    assert {"ray", "numpy", "pandas"} <= names_in(lock)
    assert names_in(
        "Zope.Interface[x]==1 \\\n  --hash=sha256:0\n./wheels/my_own-1-py3-none-any.whl\n# six==1\n"
    ) == {
        "zope-interface",
        "my-own",
    }

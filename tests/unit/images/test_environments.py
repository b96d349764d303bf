"""Images become venvs: found by name, built once, mended when broken, and refused clearly."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.core.errors import ImageError, SpecError
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, known_images, put_image
from muster.volumes.folder import FolderStore

DIGEST = "b3:" + "ab" * 32


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    return Environments(tmp_path / "cache")


def image(folder: Path, *, lock: str = "", recipe: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(lock)
    if recipe:
        (folder / "image.toml").write_text(recipe)
    return folder


def test_an_image_is_found_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    image(tmp_path / "b" / "train")
    mine = image(tmp_path / "a" / "train")
    assert find_image("train", [tmp_path / "none", tmp_path / "a", tmp_path / "b"]) == mine


def test_the_shipped_images_come_last(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, cache=tmp_path, images=(tmp_path / "more",))
    folders = image_folders(settings, tmp_path / "dag", tmp_path / "bundle")
    assert folders[:3] == (tmp_path / "dag" / "images", tmp_path / "bundle" / "images", tmp_path / "more")
    assert (folders[3] / "python" / "requirements.txt").is_file()


def test_an_unknown_image_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    image(tmp_path / "etl")
    with pytest.raises(SpecError, match=r"'trian' is not there; known are: etl; looked.*MUSTER_IMAGES"):
        find_image("trian", [tmp_path])
    with pytest.raises(SpecError, match=r"'pyton' is not there; did you mean python\?") as caught:
        find_image("pyton", [tmp_path, shipped("images")])
    assert "airflow" not in str(caught.value).partition("looked for")[0]


def test_an_image_of_another_dag_is_told_with_where_to_move_it(tmp_path: Path) -> None:
    image(tmp_path / "dags" / "other" / "images" / "vision")
    dag = DagFolder(file=tmp_path / "dags" / "mine" / "dag.py", bundle=tmp_path / "dags")
    with pytest.raises(
        SpecError, match=r"is another Dag's own, .*/other/images/vision: move it to .*/dags/images,"
    ):
        dag.image("vision", Settings(home=tmp_path, cache=tmp_path))


def test_images_beside_the_folder_of_the_dags_are_found(tmp_path: Path) -> None:
    rooted = image(tmp_path / "images" / "vision")
    dag = DagFolder(file=tmp_path / "dags" / "mine" / "dag.py", bundle=tmp_path / "dags")
    assert dag.image("vision", Settings(home=tmp_path, cache=tmp_path)) == rooted


def test_what_could_not_be_built_leaves_nothing(environments: Environments, tmp_path: Path) -> None:
    broken = image(tmp_path / "broken", lock="no-such-package-of-all==1.0 --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(ImageError):
        environments.ensure("broken", broken, DIGEST)
    assert environments.ls() == []


def test_a_build_that_is_cancelled_leaves_nothing(environments: Environments, tmp_path: Path) -> None:
    def cancel(_: str) -> None:
        raise InterruptedError("cancelled")

    lock = "no-such-package-of-all==1.0 --hash=sha256:" + "0" * 64 + "\n"
    with pytest.raises(InterruptedError):
        environments.ensure("cut", image(tmp_path / "cut", lock=lock), DIGEST, cancel)
    assert environments.ls() == []


def test_a_lock_with_comments_and_options_of_another_tool_is_a_lock(tmp_path: Path) -> None:
    lock = (
        "--only-binary :all:\n\nx==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via -r requirements.in\n"
    )
    folder = image(tmp_path / "foreign", lock=lock)
    (folder / "requirements.in").write_text("x\n")
    assert find_image("foreign", [tmp_path]) == folder
    (folder / "requirements.txt").write_text(f"--index-url https://a.example/simple\n{lock}")
    with pytest.raises(SpecError, match=r"holds '--index-url .*, and a lock holds no address"):
        find_image("foreign", [tmp_path])


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 300, "a\nb", ""])
def test_hostile_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="image"):
        find_image(name, [tmp_path])


def test_an_image_without_a_lock_is_refused_with_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(SpecError, match="muster images lock train"):
        find_image("train", [tmp_path])


def test_a_name_means_one_folder_for_jobs_and_for_commands(tmp_path: Path) -> None:
    shadow, train = tmp_path / "a" / "train", image(tmp_path / "b" / "train")
    assert known_images([tmp_path / "a", tmp_path / "b"]) == {"train": train}
    shadow.mkdir(parents=True)
    (shadow.parent / "pictures").mkdir()
    assert known_images([tmp_path / "a", tmp_path / "b"]) == {"train": shadow}
    with pytest.raises(SpecError, match="a/train has neither"):
        find_image("train", [tmp_path / "a", tmp_path / "b"])


def test_no_job_runs_in_an_image_of_muster_itself(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="`muster images build airflow --container`"):
        find_image("airflow", [tmp_path, shipped("images")])
    mine = image(tmp_path / "airflow")
    assert find_image("airflow", [tmp_path, shipped("images")]) == mine


def test_an_image_travels_as_a_snapshot_of_its_lock_and_recipe(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    folder = image(tmp_path / "train", recipe="[build]\n")
    (folder / "Dockerfile").write_text("FROM x")
    digest = put_image(store, folder)
    assert sorted(path.name for path in store.code(digest).iterdir()) == ["image.toml", "requirements.txt"]


def test_an_environment_is_built_once_and_found_again(environments: Environments, tmp_path: Path) -> None:
    folder = image(tmp_path / "empty")
    with ThreadPoolExecutor(2) as pool:
        pythons = set(pool.map(lambda _: environments.ensure("empty", folder, DIGEST), range(2)))
    (python,) = pythons
    assert subprocess.run([python, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\n"
    made = python.stat(follow_symlinks=False).st_ino
    assert environments.ensure("empty", folder, DIGEST).stat(follow_symlinks=False).st_ino == made
    (found,) = environments.ls()
    assert (found.name, found.digest, found.complete) == ("empty", "abababababab", True)


def test_its_size_is_noted(environments: Environments, tmp_path: Path) -> None:
    python = environments.ensure("empty", image(tmp_path / "empty"), DIGEST)
    (found,) = environments.ls()
    files = [path for path in found.path.rglob("*") if not path.is_dir()]
    marker = python.parent.parent / ".muster-complete"
    assert found.size_bytes == sum(path.lstat().st_size for path in files if path != marker) > 0
    assert marker.read_text() == str(found.size_bytes)


def test_it_counts_as_built_only_once_it_is_on_disk(
    environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = image(tmp_path / "empty"), []

    def sync(home: Path) -> None:
        synced.append((home, (home / "bin" / "python").exists(), environments.find("empty", DIGEST)))

    monkeypatch.setattr("muster.images.environment.sync_all", sync)
    python = environments.ensure("empty", folder, DIGEST)
    assert synced == [(python.parents[1], True, None)]


def test_what_lies_beside_the_environments_is_not_listed(environments: Environments, tmp_path: Path) -> None:
    environments.ensure("empty-1", image(tmp_path / "empty"), DIGEST)
    for foreign in ("lost+found", "x", "tmp-", "train-abab-py3"):
        (tmp_path / "cache" / "images" / foreign).mkdir()
    (found,) = environments.ls()
    assert (found.name, found.digest, found.complete) == ("empty-1", "ab" * 6, True)


def test_a_half_built_environment_is_built_again(environments: Environments, tmp_path: Path) -> None:
    folder = image(tmp_path / "empty")
    python = environments.ensure("empty", folder, DIGEST)
    home = python.parent.parent
    (home / ".muster-complete").unlink()
    (home / "half").touch()
    assert not environments.ls()[0].complete
    assert environments.ensure("empty", folder, DIGEST) == python
    assert not (home / "half").exists()


def test_an_environment_whose_python_is_gone_is_built_again(
    environments: Environments, tmp_path: Path
) -> None:
    folder = image(tmp_path / "empty")
    python = environments.ensure("empty", folder, DIGEST)
    python.unlink()
    assert environments.ensure("empty", folder, DIGEST).exists()


def test_what_uv_said_last_is_in_the_error(environments: Environments, tmp_path: Path) -> None:
    folder = image(tmp_path / "bad", lock="!! this is no requirement\n")
    with pytest.raises(ImageError, match=r"(?s)image bad: uv failed.*Unexpected '!'.*Mend"):
        environments.ensure("bad", folder, DIGEST)


def test_a_lock_without_hashes_is_refused(environments: Environments, tmp_path: Path) -> None:
    folder = image(tmp_path / "bad", lock="six==1.17.0\n")
    with pytest.raises(ImageError, match="hash"):
        environments.ensure("bad", folder, DIGEST)


@pytest.mark.parametrize(
    "recipe",
    [
        "[build",
        "[other]\n",
        "[build]\nno_isolation='x'\n",
        "[build]\nagainst='x'\n",
        "[build.env]\nA=1\n",
        "build=1\n",
    ],
)
def test_a_recipe_that_cannot_be_read_is_refused(
    environments: Environments, tmp_path: Path, recipe: str
) -> None:
    with pytest.raises(ImageError, match=r"image bad: image\.toml"):
        environments.ensure("bad", image(tmp_path / "bad", recipe=recipe), DIGEST)


def test_the_build_is_given_up_when_progress_says_so(environments: Environments, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(_line: str) -> None:
        raise Enough

    folder = image(tmp_path / "some", lock="# one\nsix==1.17.0 --hash=sha256:00\n")
    with pytest.raises(Enough):
        environments.ensure("some", folder, DIGEST, stop)


BACKEND = """
import os, zipfile
def build_wheel(folder, config=None, metadata=None):
    import first
    with zipfile.ZipFile(os.path.join(folder, "second-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("second.py", f"home = {os.environ['HOME_OF_IMAGE']!r}")
        wheel.writestr("second-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: second\\nVersion: 1\\n")
        wheel.writestr("second-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("second-1.dist-info/RECORD", "")
    return "second-1-py3-none-any.whl"
"""
FIRST = BACKEND.replace("second", "first").replace("    import first\n", "").replace("HOME_OF_IMAGE", "PATH")


def sdist(folder: Path, name: str, backend: str) -> str:
    """A source distribution that builds itself; return its line of a lock."""
    path = folder / f"{name}-1.tar.gz"
    project = (
        f"[project]\nname='{name}'\nversion='1'\n"
        "[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"
    )
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in (
            ("pyproject.toml", project),
            ("backend.py", backend),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"),
        ):
            info = tarfile.TarInfo(f"{name}-1/{inner}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return f"{name} @ {path.as_uri()} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def test_a_package_can_be_built_against_the_rest_of_its_image(
    environments: Environments, tmp_path: Path
) -> None:
    lock = sdist(tmp_path, "second", BACKEND) + sdist(tmp_path, "first", FIRST)
    recipe = '[build]\nno_isolation = ["Second"]\n[build.env]\nHOME_OF_IMAGE = "{image}/x"\n'
    said: list[str] = []
    python = environments.ensure(
        "two", image(tmp_path / "two", lock=lock, recipe=recipe), DIGEST, said.append
    )
    shown = subprocess.run(
        [python, "-c", "import first, second; print(second.home)"], capture_output=True, check=True, text=True
    )
    assert shown.stdout.strip() == f"{python.parent.parent}/x"
    assert said == ["image two: installing 2 packages"]


def test_a_package_is_built_once_for_what_it_is_built_against(
    environments: Environments, tmp_path: Path
) -> None:
    """What uv keeps is a wheel by its source alone, whatever it was compiled against."""
    recipe = '[build]\nno_isolation = ["second"]\n%s[build.env]\nHOME_OF_IMAGE = "{image}"\n'
    second, first, third = (
        sdist(tmp_path, *each)
        for each in (("second", BACKEND), ("first", FIRST), ("third", FIRST.replace("first", "third")))
    )

    def built_in(name: str, digit: str, *lock: str, against: str = 'against = ["First"]\n') -> str:
        folder = image(tmp_path / name, lock="".join(lock), recipe=recipe % against)
        python = environments.ensure(name, folder, "b3:" + digit * 64)
        shown = [python, "-c", "import second; print(second.home)"]
        return Path(subprocess.check_output(shown, text=True).strip()).name.partition("-")[0]

    assert built_in("one", "1", second, first) == "one"
    assert built_in("more", "2", second, first, third) == "one", "one more package compiles nothing anew"
    other = sdist(tmp_path, "first", f"# another release\n{FIRST}")
    assert built_in("changed", "3", second, other) == "changed"
    assert built_in("all", "4", second, other, third, against="") == "all", "no `against`: all others count"


BUILDER = """
import sys
from pathlib import Path
from muster.images import uv
from muster.images.environment import Environments
uv.program = lambda: sys.argv[2]
root = Path(sys.argv[1])
Environments(root / "cache").ensure("train", root / "train", "b3:" + "ab" * 32)
"""


def test_what_builds_an_image_dies_with_whoever_asked_for_it(tmp_path: Path) -> None:
    image(tmp_path / "train")
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\nexec 3> {tmp_path / 'pipe'}\necho started >&3\nexec sleep 600\n")
    program.chmod(0o755)
    os.mkfifo(tmp_path / "pipe")
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, tmp_path, program])
    with (tmp_path / "pipe").open() as pipe:
        assert pipe.readline() == "started\n"
        builder.kill()
        builder.wait()
        signal.alarm(20)
        assert pipe.read() == ""  # its end: no process holds the other one any more
        signal.alarm(0)

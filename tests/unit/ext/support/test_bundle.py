"""``muster support-bundle``: what is in it, how large it may be, and that no secret is, wherever one was planted."""

from __future__ import annotations

import json
import resource
import tarfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes.api_server import api_server
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE
from tests.unit.backends.kubernetes.serving.fake_serving import World, world
from tests.unit.backends.kubernetes.serving.test_deployments import serve
from tests.unit.backends.kubernetes.site_api import kubeconfig
from tests.unit.cli.conftest import Answer, home, make_spec, muster, store

from muster.backends import base
from muster.backends.kubernetes.api.access import Access
from muster.backends.kubernetes.api.kinds import CONFIG_MAP, SECRET
from muster.backends.kubernetes.cluster_file import ClusterSettings
from muster.backends.kubernetes.place import ClusterPlace, NamedCluster
from muster.backends.local.place import MachinePlace
from muster.backends.place import Place
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.core.verdict import Cause, Verdict
from muster.ext.support import commands
from muster.ext.support.blanking import known, without_values
from muster.volumes.folder import FolderStore

__all__ = ["home", "muster", "store"]

Run = Callable[..., Answer]
PLANTED = {
    "variable": "zq9-variable-word",
    "airflow": "zq9-connection-word",
    "airflow variable": "zq9-airflow-variable",
    "own.cfg": "zq9-own-cfg-word",
    "fernet": "zq9FernetKeyWord0123=",
    "password of up": "zq9-password-of-up",
    "job's variable": "zq9-job-variable",
    "param": "zq9-param-word",
    "command": "zq9-command-word",
    "log": "zq9-log-word",
    "url": "zq9-url-word",
    "bearer": "zq9.bearer.word-0123",
    "json": "zq9-json-word",
}
AWS = "AKIAZQ9ZQ9ZQ9ZQ9ZQ9Z"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ6cTkifQ.c2lnbmF0dXJl"
LOG = f"""\
epoch 1 of 5
asking https://ann:{PLANTED["url"]}@models.example/v1
password: {PLANTED["log"]}
Authorization: Bearer {PLANTED["bearer"]}
{{"api_key": "{PLANTED["json"]}", "rows": 5}}
{AWS} {JWT}
the variable in base64: {b64encode(PLANTED["variable"].encode()).decode()}
"""


@pytest.fixture
def planted(home: Path, store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    monkeypatch.setenv("SITE_PASSWORD", PLANTED["variable"])
    monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgresql://ann:{PLANTED['airflow']}@db/x")
    monkeypatch.setenv("AIRFLOW_VAR_SITE", PLANTED["airflow variable"])
    (home / "up").mkdir(parents=True)
    (home / "up" / "own.cfg").write_text(
        f"[database]\nsql_alchemy_conn = postgresql://ann:{PLANTED['own.cfg']}@db/x\n[core]\nfernet_key = {PLANTED['fernet']}\n"
    )
    (home / "up" / "passwords.json").write_text(json.dumps({"admin": PLANTED["password of up"]}))
    spec = make_spec(
        env={"HARMLESS": PLANTED["job's variable"]},
        params={"api_token": PLANTED["param"], "note": f"--password {PLANTED['command']}"},
    )
    said = (
        LOG + f"admin is {PLANTED['password of up']}, {PLANTED['airflow']}, {PLANTED['airflow variable']}\n"
    )
    for job_id in ("train-1", "train-2"):
        store.ledger.create(job_id, spec)
        store.ledger.append(job_id, said.encode())
    verdict = Verdict(cause=Cause.USER_ERROR, message=f"token={PLANTED['log']} is refused", advice="mend it")
    status = store.ledger.status("train-1")
    store.ledger.update(replace(status, state=JobState.FAILED, ended=status.submitted, verdict=verdict))
    return store


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as bundle:
        found = {each.name: bundle.extractfile(each) for each in bundle}
        return {
            name.removeprefix("muster-support/"): file.read().decode() for name, file in found.items() if file
        }


def test_it_holds_what_helps_and_no_secret(muster: Run, planted: FolderStore, tmp_path: Path) -> None:
    done = muster("support-bundle", tmp_path / "b.tar.gz")
    assert (done.code, done.error) == (0, None)
    found = unpacked(tmp_path / "b.tar.gz")
    assert {
        "README.txt",
        "index.txt",
        "doctor.json",
        "packages.txt",
        "settings.json",
        "own.cfg",
    } <= found.keys()
    assert json.loads(found["store.json"])["volumes"] == {}
    (failed,) = [each for each in json.loads(found["jobs.json"]) if each["status"]["state"] == "failed"]
    assert failed["status"]["verdict"]["cause"] == "user error"
    assert failed["spec"]["env"] == {"HARMLESS": "***"}
    assert "epoch 1 of 5" in found["logs/train-1.log"]
    assert "logs/train-2.log" not in found  # it did not fail
    assert all(name in found["index.txt"] for name in found if name != "index.txt")
    assert "store.json" in done.out
    whole = "\n".join(found.values())
    for where, secret in {**PLANTED, "aws": AWS, "jwt": JWT}.items():
        assert secret not in whole, where
    assert b64encode(PLANTED["variable"].encode()).decode() not in whole
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0


def test_the_same_words_stand_in_what_was_collected(planted: FolderStore) -> None:
    """Else the test above would find nothing because nothing was there."""
    log = b"".join(planted.ledger.read("train-1", after=0)[:1]).decode()
    for where in ("log", "url", "bearer", "json", "airflow", "password of up"):
        assert PLANTED[where] in log


def test_one_job_alone(muster: Run, planted: FolderStore, tmp_path: Path) -> None:
    assert muster("support-bundle", tmp_path / "b.tar.gz", "--job", "train-2").code == 0
    found = unpacked(tmp_path / "b.tar.gz")
    assert "epoch 1 of 5" in found["logs/train-2.log"]
    assert [each["status"]["job_id"] for each in json.loads(found["jobs.json"])] == ["train-2"]
    assert "deployments.json" not in found


def test_it_has_a_limit(
    muster: Run, planted: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "FILE_BYTES", 500)
    monkeypatch.setattr(commands, "WHOLE_BYTES", 1_500)
    assert muster("support-bundle", tmp_path / "b.tar.gz").code == 0
    found = unpacked(tmp_path / "b.tar.gz")
    assert found["packages.txt"].startswith("(cut")
    assert "left out: the bundle would be larger" in found["index.txt"] + found["logs/train-1.log"]
    assert sum(map(len, found.values())) < 4_000


def test_of_many_jobs_the_newest_are_kept_and_the_index_says_how_many_are_not(
    muster: Run, planted: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3, 40):
        planted.ledger.create(f"train-{number}", make_spec())
    newest_first = planted.ledger.jobs()[::-1]
    monkeypatch.setattr(commands, "FILE_BYTES", 20_000)
    done = muster("support-bundle", tmp_path / "b.tar.gz")
    found = unpacked(tmp_path / "b.tar.gz")
    kept = [each["status"]["job_id"] for each in json.loads(found["jobs.json"])]
    assert 0 < len(kept) < len(newest_first)
    assert kept == newest_first[: len(kept)]
    assert f"{len(newest_first) - len(kept)} items left out" in found["index.txt"]
    assert f"{len(newest_first) - len(kept)} items left out" in " ".join(done.out.split())


def test_any_error_of_a_part_is_named_in_its_file(
    muster: Run, planted: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(place: Place) -> object:
        raise KeyError("spoiled state")

    monkeypatch.setattr(MachinePlace, "deployments", property(spoiled))
    monkeypatch.setattr(FolderStore, "volumes", spoiled)
    assert muster("support-bundle", tmp_path / "b.tar.gz").code == 0
    found = unpacked(tmp_path / "b.tar.gz")
    for name in ("deployments.json", "store.json"):
        assert found[name] == "cannot be read: KeyError: 'spoiled state'\n"
    assert json.loads(found["jobs.json"])


def test_a_job_that_is_not_there_is_named(muster: Run, planted: FolderStore, tmp_path: Path) -> None:
    assert muster("support-bundle", tmp_path / "b.tar.gz", "--job", "other").code == 0
    assert "cannot be read: NotFound: " in unpacked(tmp_path / "b.tar.gz")["jobs.json"]


def test_a_full_disk_leaves_nothing(muster: Run, planted: FolderStore, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        refused = muster("support-bundle", tmp_path / "b.tar.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refused.code, refused.error) == (1, None)
    assert "b.tar.gz cannot be written (File too large)" in " ".join(refused.err.split())
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [(["--since", "yesterday"], 2, "hours as 24h"), (["there"], 1, "name another file")],
)
def test_bad_input_is_refused(
    muster: Run, planted: FolderStore, tmp_path: Path, words: list[str], code: int, told: str
) -> None:
    (tmp_path / "there").touch()
    refused = muster("support-bundle", *words)
    assert refused.code == code
    assert told in " ".join(refused.err.split())


def test_what_cannot_be_read_is_named(muster: Run, planted: FolderStore, home: Path, tmp_path: Path) -> None:
    (home / "store" / "VOLUME.json").unlink()
    assert muster("support-bundle", tmp_path / "b.tar.gz").code == 0
    assert "cannot be read" in unpacked(tmp_path / "b.tar.gz")["store.json"]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


@pytest.fixture
def access(there: World) -> Iterator[Access]:
    with api_server(there.cluster) as server:
        yield server.near()


def test_a_cluster_s_objects_are_there_without_values_and_secrets(
    there: World, access: Access, tmp_path: Path
) -> None:
    serve(there, tokens=True)
    shown = there.deployments().make_token("lines", "shop")
    there.cluster.put(
        SECRET.document({"name": "muster-x", "namespace": NAMESPACE}, data={"a": b64encode(b"zq9").decode()})
    )
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    written = ClusterSettings(site=there.site, token="t", store_url=there.site.store_url)
    place = ClusterPlace(
        lambda: NamedCluster(written, lambda: access),
        settings=settings,
        serve_here=lambda _: there.deployments(),
        resolve=lambda name: name,
        patience_seconds=0.0,
    )
    found: dict[str, Any] = {name: collect() for name, collect in place.evidence()}
    clean = without_values(found, known(settings, {}))
    text = json.dumps(clean)
    assert [each["metadata"]["name"] for each in found["deployments-inferenceservices.json"]] == ["lines-r1"]
    (container,) = clean["deployments-inferenceservices.json"][0]["spec"]["predictor"]["containers"]
    assert {each["value"] for each in container["env"]} == {"***"}
    assert not {SECRET.name, CONFIG_MAP.name} & {each["kind"] for part in found.values() for each in part}
    assert "muster-x" not in text
    assert shown not in text


@pytest.mark.parametrize("setting", ["", "\nshape = 'round'\n"], ids=["right", "wrong"])
def test_a_cluster_s_settings_are_there_and_its_token_is_not(
    muster: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    (tmp_path / "token").write_text("zq9-store-token\n")
    kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    file = tmp_path / "cluster.toml"
    file.write_text(
        'namespace = "team"\nclaim = "store"\nstore_url = "http://127.0.0.1:1"\nimage_prefix = "registry/zq9-store-token"\n'
        f'queue = "gangs"\ntoken_file = "token"\nkubeconfig = "kubeconfig"\n{setting}'
    )
    monkeypatch.setenv("MUSTER_CLUSTER", str(file))
    monkeypatch.setattr(base, "LOOK_SECONDS", 0.0)
    assert muster("support-bundle", tmp_path / "b.tar.gz").code == 0
    found = unpacked(tmp_path / "b.tar.gz")
    assert 'image_prefix = "registry/***"' in found["place/cluster.toml"]
    assert "cannot be read" in found["place/jobs-jobsets.json"]
    assert "zq9-store-token" not in "".join(found.values())

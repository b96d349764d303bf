"""The page as Airflow's api-server mounts it: who is let in, what it answers, what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.job import Input, JobSpec, Origin, Output, Role
from muster.core.replica import Replica
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore
from muster.worker.seal import seal

DIGEST = "b3:" + "0" * 64
SCRIPT = "<script>alert(1)</script>"
ROLES = ("VIEWER", "USER", "ADMIN")
COOKIE = "_token"

Client = Any
Let = Callable[..., Client]


@pytest.fixture(scope="module")
def api_server(home: EmbeddedHome) -> Iterator[Any]:
    """Airflow's own application, with every plugin that is installed."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", ",".join(f"{r.lower()}:{r}" for r in ROLES))
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "only for the tests, and long enough for SHA-512, which wants 64 bytes")
        yield create_app("core")
    purge_cached_app()


@pytest.fixture
def let(api_server: Any) -> Let:
    """Give a client that has a role's session as a browser has it, in a cookie; None has no session."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    def client(role: str | None) -> Client:
        made = TestClient(api_server, base_url="http://testserver", follow_redirects=False)
        if role is not None:
            user = SimpleAuthManagerUser(username=role.lower(), role=role)
            made.cookies.set(COOKIE, get_auth_manager().generate_jwt(user))
        return made

    return client


@pytest.fixture
def viewer(let: Let) -> Client:
    return let("VIEWER")


def make_job(
    store: FolderStore,
    job_id: str,
    files: dict[str, bytes],
    *,
    dag_id: str = "flights",
    volume: str = "pages/report",
    inputs: tuple[Version, ...] = (),
    state: JobState = JobState.SUCCEEDED,
    verdict: Verdict | None = None,
) -> Version:
    """Commit one job of a Dag, as a backend does, and record its end."""
    spec = JobSpec(
        name=f"{dag_id}.report",
        image="etl",
        image_digest=DIGEST,
        roles=(Role(entrypoint="etl:report"),),
        inputs={f"input_{n}": Input(versions=(version.pinned,)) for n, version in enumerate(inputs)},
        outputs={"report": Output(volume=volume)},
        params={"month": SCRIPT},
        env={"TOKEN": "in-the-clear"},
        origin=Origin(instance="test", dag_id=dag_id, run_id="manual__1", task_id="report"),
    )
    store.ledger.create(job_id, spec)
    staging = store.stage(job_id)
    folder = staging.output("main", 0, "report")
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    seal(
        Replica(
            job_id=job_id,
            spec=spec,
            attempt=staging.attempt,
            role="main",
            index=0,
            code=None,
            inputs={name: ("/nowhere",) for name in spec.inputs},
            staging={"report": str(folder)},
            checkpoints=str(staging.checkpoints),
            scratch="/nowhere",
            sealed=str(staging.sealed("main", 0)),
            report="/nowhere",
        )
    )
    (version,) = store.commit(job_id, attempt=staging.attempt, metrics={"auc": 0.71})["report"]
    store.ledger.append(job_id, f"[rank 0] \x1b[31mred\x1b[0m {SCRIPT}\nsecond\n".encode())
    store.ledger.update(JobStatus(job_id=job_id, state=state, submitted=1.0, ended=3.0, verdict=verdict))
    return version


@pytest.fixture(scope="module")
def made(home: EmbeddedHome) -> dict[str, Version]:
    """A raw version, a report made from it, and one of a Dag that not everybody may read."""
    store = FolderStore(home.settings.store)
    raw = make_job(store, "page-raw-1", {"rows.parquet": b"PAR1"}, volume="pages/raw")
    card = b"<h1>card</h1><script>parent.document.title = 'mine'</script>"
    files = {
        "index.html": card,
        "plots/a b%2e.png": b"\x89PNG",
        "model.bin": bytes(range(256)) * 4096,
        "notes.HTM": b"<b>",
    }
    report = make_job(store, "page-report-1", files, inputs=(raw,))
    killed = Verdict(cause=Cause.USER_ERROR, rank=1, message=f"ValueError: {SCRIPT}", advice="mend it")
    hidden = make_job(
        store,
        "page-hidden-1",
        {"index.html": b"x"},
        dag_id="secret",
        volume="pages/hidden",
        state=JobState.FAILED,
        verdict=killed,
    )
    return {"raw": raw, "report": report, "hidden": hidden}


READS = (
    "/muster/",
    "/muster/static/app.js",
    "/muster/api/jobs",
    "/muster/api/jobs/page-report-1",
    "/muster/api/jobs/page-report-1/log",
    "/muster/api/volumes",
    "/muster/api/volumes/pages/report",
    "/muster/api/version?address=pages/report@1",
    "/muster/api/lineage?address=pages/report@1",
    "/muster/api/deployments",
    "/muster/files/pages/report@1/index.html",
)


class TestLetIn:
    """Nobody whom Airflow does not let in sees anything."""

    @pytest.mark.parametrize("path", READS)
    def test_nobody_without_a_session(self, let: Let, made: dict[str, Version], path: str) -> None:
        answer = let(None).get(path)
        if path == "/muster/":
            assert answer.status_code == 307
            assert answer.headers["location"].startswith("/auth/login?next=")
        else:
            assert answer.status_code == 401
            assert "pages/" not in answer.text

    @pytest.mark.parametrize("token", ["", "x", "a.b.c", "é"])
    def test_nobody_with_a_made_up_session(self, let: Let, token: str) -> None:
        client = let(None)
        headers = {"cookie": f"{COOKIE}={token}".encode()}
        assert client.get("/muster/api/jobs", headers=headers).status_code in (401, 403)

    @pytest.mark.parametrize("path", READS)
    @pytest.mark.parametrize("role", ROLES)
    def test_everybody_who_may_look(
        self, let: Let, made: dict[str, Version], role: str, path: str
    ) -> None:
        answer = let(role).get(path)
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]

    def test_every_route_asks(self, api_server: Any, let: Let) -> None:
        """Also one that is added and not thought of here."""
        from starlette.routing import Mount

        (mount,) = [r for r in api_server.routes if isinstance(r, Mount) and r.path == "/muster"]
        nobody = let(None)
        for route in mount.app.routes:
            path = "/muster" + route.path.replace("{", "").replace("}", "").replace(":path", "")
            for method in route.methods:
                assert nobody.request(method, path).status_code in (307, 401), (method, path)

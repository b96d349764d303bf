"""The page as Airflow's api-server mounts it: who is let in, what it answers, what it refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import searched
from tests.airflow.fresh import printed
from tests.unit.ext.usage.test_table import line
from tests.unit.volumes.service.process import Service

from muster.airflow.embedded.home import EmbeddedHome
from muster.backends.capacity import WaitingJob
from muster.backends.place import Place
from muster.backends.releases.figures import DeploymentSample
from muster.core.data import Input, OutputTarget
from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.replica import Replica
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.ext.usage import log
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.tokens import TokenKind, operator_token
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
        patch.setenv(
            "AIRFLOW__API_AUTH__JWT_SECRET",
            "only for the tests, and long enough for SHA-512, which wants 64 bytes",
        )
        # a new job is listed at once, however busy this machine is
        patch.setattr("muster.ext.page.board.SLOW_SECONDS", 3600.0)
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
    run_id: str = "manual__1",
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
        outputs={"report": OutputTarget(volume=volume)},
        params={"month": SCRIPT},
        env={"TOKEN": "in-the-clear"},
        origin=Origin(instance="test", dag_id=dag_id, run_id=run_id, task_id="report"),
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
            inputs=dict.fromkeys(spec.inputs, ("/nowhere",)),
            staging={"report": str(folder)},
            checkpoints=str(staging.checkpoints),
            scratch="/nowhere",
            sealed=str(staging.sealed("main", 0)),
            report="/nowhere",
        )
    )
    (version,) = store.commit(job_id, attempt=staging.attempt, metrics={"auc": 0.71})["report"]
    store.ledger.append(job_id, f"[rank 0] \x1b[31mred\x1b[0m {SCRIPT}\nsecond\n".encode())
    result = JobResult(outputs={"report": (version.address,)}, metrics={"auc": 0.71})
    store.ledger.update(
        JobStatus(job_id=job_id, state=state, submitted=1.0, ended=3.0, verdict=verdict, result=result)
    )
    return version


@pytest.fixture(scope="module")
def made(home: EmbeddedHome) -> dict[str, Version]:
    """A raw version, a report made from it, and one of a Dag that only some users may read."""
    store = FolderStore(home.settings.store)
    raw = make_job(store, "page-raw-1", {"rows.parquet": b"PAR1"}, volume="pages/raw")
    card = b"<h1>card</h1><script>parent.document.title = 'mine'</script>"
    files = {
        "index.html": card,
        "plots/a b.png": b"\x89PNG",
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
        inputs=(raw,),
        state=JobState.FAILED,
        verdict=killed,
    )
    for search_id, dag_id in (("page-search-1", "flights"), ("page-secret-1", "secret")):
        searched.played(store, search_id, dag_id=dag_id)
    return {"raw": raw, "report": report, "hidden": hidden}


UPKEEP = "/muster/api/upkeep"  # of a store behind a service the room is that of the claim
READS = (
    "/muster/",
    "/muster/static/app.js",
    "/muster/api/jobs",
    "/muster/api/jobs/page-report-1",
    "/muster/api/searches",
    "/muster/api/searches/page-search-1",
    "/muster/api/searches/page-search-1/trials?sort=param.rate&down=true&phase=paused",
    "/muster/api/searches/page-search-1/points?param=rate&param=momentum",
    "/muster/api/searches/page-search-1/curves",
    "/muster/api/jobs/page-report-1/log",
    "/muster/api/volumes",
    "/muster/api/volumes/pages/report",
    "/muster/api/version?address=pages/report@1",
    "/muster/api/lineage?address=pages/report@1",
    "/muster/api/deployments",
    "/muster/api/first",
    "/muster/api/runs",
    "/muster/api/run?dag=flights&run=manual__1",
    "/muster/api/jobs/page-report-1/found?text=red",
    "/muster/api/jobs/page-report-1/series",
    "/muster/api/jobs/page-report-1/whole.log",
    "/muster/api/volumes/pages/report?by=partition",
    "/muster/api/compare?version=pages/report@1&version=pages/raw@1",
    "/muster/api/queue",
    "/muster/api/dags",
    "/muster/api/usage",
    "/muster/api/usage?by=model&days=7",
    "/muster/api/usage/version?address=pages/report@1",
    "/muster/api/usage/jobs/page-report-1",
    "/muster/api/images",
    UPKEEP,
    "/muster/api/run_diff?old_dag=flights&old=manual__1&new_dag=flights&new=manual__1",
    "/muster/files/pages/report@1/index.html",
)


class TestLetIn:
    """A user whom Airflow does not let in sees nothing."""

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

    @pytest.mark.parametrize(
        ("role", "path"),
        [
            *(("VIEWER", path) for path in READS),
            *((role, READS[n]) for role in ROLES[1:] for n in (0, 3, -1)),
        ],
    )
    def test_everybody_who_may_look(self, let: Let, made: dict[str, Version], role: str, path: str) -> None:
        answer = let(role).get(path)
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]

    def test_every_route_asks(self, api_server: Any, let: Let) -> None:
        """Also one that is added and not thought of here. How many Dags are broken is told to all, as Airflow tells its health."""
        from starlette.routing import Mount

        (mount,) = [r for r in api_server.routes if isinstance(r, Mount) and r.path == "/muster"]
        stranger = let(None)
        assert stranger.get("/muster/health").json().keys() == {"broken_dags"}
        for route in mount.app.routes:
            if route.path == "/health":
                continue
            path = "/muster" + route.path.replace("{", "").replace("}", "").replace(":path", "")
            for method in route.methods:
                assert stranger.request(method, path).status_code in (307, 401), (method, path)


@pytest.mark.parametrize("paused", [False, True])
def test_runs_that_wait_in_airflow_are_told_with_what_holds_them(
    viewer: Client, made: dict[str, Version], paused: bool
) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.sdk import timezone
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    bundle = DagBundleModel(name="waits")
    dag = DagModel(dag_id="flights", bundle_name="waits", max_active_runs=1, is_paused=paused, is_stale=False)
    runs = [
        DagRun(
            dag_id="flights",
            run_id=state,
            run_type=DagRunType.MANUAL,
            state=state,
            run_after=timezone.utcnow(),
        )
        for state in ("queued", "running")
    ]
    for rows in ((bundle,), (dag,), runs):
        with create_session() as session:
            session.add_all(rows)
    try:
        (told,) = viewer.get("/muster/api/first").json()["airflow"]
    finally:
        for rows in (runs, (dag,), (bundle,)):
            with create_session() as session:
                for row in rows:
                    session.delete(session.merge(row))
    assert told == {"dag_id": "flights", "waiting": 1, "running": 1, "most": 1, "paused": paused}


def test_who_may_not_see_plugins_reads_who_gives_the_right(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_view", lambda *_, **__: False)
    answer = viewer.get("/muster/")
    assert (answer.status_code, "can read on Plugins" in answer.text) == (403, True)
    assert viewer.get("/muster/api/jobs").status_code == 403


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the auth manager refuse some questions about Dags, as one with permissions per Dag does."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def refuse(**asked: str) -> None:
        before = SimpleAuthManager.is_authorized_dag

        def decide(
            self: Any, *, method: Any, user: Any, access_entity: Any = None, details: Any = None
        ) -> bool:
            question = {"dag_id": details.id, "entity": access_entity.value, "method": method}
            if all(question[name] == value for name, value in asked.items()):
                return False
            return before(self, method=method, user=user, access_entity=access_entity, details=details)

        monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", decide)

    return refuse


class TestPermissions:
    """What belongs to a Dag is for those who may read the Dag."""

    def test_jobs_of_other_dags_are_not_listed(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        def listed() -> set[str]:
            return {job["job_id"] for job in viewer.get("/muster/api/jobs?limit=200").json()["jobs"]}

        assert {"page-report-1", "page-hidden-1"} <= listed()
        forbid(dag_id="secret")
        assert "page-report-1" in listed()
        assert "page-hidden-1" not in listed()
        assert viewer.get("/muster/api/jobs?text=hidden").json()["states"] == {}

    @pytest.mark.parametrize(
        "path",
        [
            "api/jobs/page-hidden-1",
            "api/jobs/page-hidden-1/log",
            "api/jobs/page-hidden-1/found?text=second",
            "api/jobs/page-hidden-1/series",
            "api/jobs/page-hidden-1/whole.log",
            "api/searches/page-secret-1",
            "api/searches/page-secret-1/trials",
            "api/searches/page-secret-1/points",
            "api/searches/page-secret-1/curves",
            "api/usage/jobs/page-hidden-1",
            "api/run?dag=secret&run=manual__1",
            "api/run_diff?old_dag=flights&old=manual__1&new_dag=secret&new=manual__1",
            "files/pages/hidden@1/index.html",
        ],
    )
    def test_nothing_of_such_a_job_is_read(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None], path: str
    ) -> None:
        assert viewer.get(f"/muster/{path}").status_code == 200
        forbid(dag_id="secret")
        answer = viewer.get(f"/muster/{path}")
        assert answer.status_code == 403
        assert "of secret" in answer.json()["detail"]

    def test_usage_of_other_dags_does_not_count(
        self, viewer: Client, made: dict[str, Version], store: FolderStore, forbid: Callable[..., None]
    ) -> None:
        now = time.time()
        for version, dag in (("raw", "flights"), ("hidden", "secret")):
            made_by, read = made[version].address, [made["raw"].address] if version == "hidden" else []
            held = [(now - 3600.0, now, 1, 2)]
            used = line(job_id=f"page-{version}-1", dag=dag, made=[made_by], read=read, ended=now, held=held)
            log.append(store.layout.root, used)

        def jobs(by: str) -> dict[str, int]:
            rows = viewer.get(f"/muster/api/usage?days=400&by={by}").json()["rows"]
            return {row[by]: row["jobs"] for row in rows}

        def cost(version: str) -> int:
            (row,) = viewer.get(f"/muster/api/usage/version?address={version}").json()["rows"]
            return int(row["jobs"])

        before, teams = jobs("dag"), jobs("team")
        assert (before["secret"], cost("pages/hidden@1"), cost("pages/report@1")) == (1, 2, 2)
        (row,) = viewer.get("/muster/api/usage/version?address=pages/hidden@1").json()["rows"]
        assert (row["gpu_hours_held"], row["gpu_hours_wasted"]) == (4.0, 1.0)
        forbid(dag_id="secret")
        assert jobs("dag") == {name: many for name, many in before.items() if name != "secret"}
        assert sum(jobs("team").values()) == sum(teams.values()) - 1
        assert (cost("pages/hidden@1"), cost("pages/report@1")) == (1, 2)
        assert viewer.get("/muster/api/usage?by=run").status_code == 422

    def test_a_version_of_such_a_dag_tells_no_more_than_that_it_is_there(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        found = viewer.get("/muster/api/version?address=pages/hidden@1").json()
        assert len(found["lineage"]["nodes"]) == 2
        assert found["files"] == [{"path": "index.html", "size_bytes": 1}]
        forbid(dag_id="secret")
        found = viewer.get("/muster/api/version?address=pages/hidden@1").json()
        assert (found["record"], found["files"], found["total_files"]) == (None, None, 1)
        (node,) = found["lineage"]["nodes"]
        assert (node["title"], found["lineage"]["edges"]) == ("", [])
        assert viewer.get("/muster/api/lineage?address=pages/hidden@1").json() == found["lineage"]
        (row,) = viewer.get("/muster/api/volumes/pages/hidden").json()["versions"]
        assert (row["values"], row["job_id"], row["run"]) == ({}, "", None)

    def test_logs_can_be_closed_alone(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        forbid(entity="TASK_LOGS")
        assert viewer.get("/muster/api/jobs/page-report-1").json()["may"] == {"log": False, "cancel": False}
        assert viewer.get("/muster/api/jobs/page-report-1/log").status_code == 403


OURS = {"x-muster": "1", "sec-fetch-site": "same-origin"}


class TestCancel:
    """The one thing that the page can change."""

    @pytest.fixture
    def waiting(self, store: FolderStore, request: pytest.FixtureRequest) -> Iterator[str]:
        job_id = f"page-waits-{abs(hash(request.node.name)) % 10**9}"
        spec = JobSpec(
            name="flights.wait",
            image="etl",
            image_digest=DIGEST,
            roles=(Role(entrypoint="etl:wait"),),
            origin=Origin(dag_id="flights"),
        )
        store.ledger.create(job_id, spec)
        yield job_id
        status = store.ledger.status(job_id)
        if not status.state.ended:  # no process works on it, which only this machine's backend can tell
            store.ledger.update(replace(status, state=JobState.CANCELLED, ended=status.submitted))

    def test_who_may_change_the_dag_ends_its_job(self, let: Let, waiting: str) -> None:
        client = let("USER")
        assert client.get(f"/muster/api/jobs/{waiting}").json()["may"]["cancel"]
        answer = client.post(f"/muster/api/jobs/{waiting}/cancel", headers=OURS)
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert client.post(f"/muster/api/jobs/{waiting}/cancel", headers=OURS).status_code == 200

    def test_the_verdict_and_airflows_audit_log_say_who_cancelled(
        self, let: Let, waiting: str, store: FolderStore
    ) -> None:
        from airflow.models.log import Log
        from airflow.utils.session import create_session
        from sqlalchemy import select

        client = let("USER")
        for _ in range(2):  # what has ended is not ended again
            assert client.post(f"/muster/api/jobs/{waiting}/cancel", headers=OURS).status_code == 200
        with create_session() as session:
            logs = session.scalars(select(Log).where(Log.event == "muster_cancel_job"))
            (noted,) = [each for each in logs if waiting in (each.extra or "")]
            assert noted.dag_id == "flights"
            owner = noted.owner
        verdict = store.ledger.status(waiting).verdict
        assert verdict is not None
        assert verdict.message == f"{owner} cancelled it on muster's page in Airflow"

    def test_who_may_only_look_does_not(self, viewer: Client, waiting: str, store: FolderStore) -> None:
        assert not viewer.get(f"/muster/api/jobs/{waiting}").json()["may"]["cancel"]
        answer = viewer.post(f"/muster/api/jobs/{waiting}/cancel", headers=OURS)
        assert answer.status_code == 403
        assert store.ledger.status(waiting).state is JobState.QUEUED

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"x-muster": "1", "sec-fetch-site": "cross-site"},
            {"x-muster": "1", "sec-fetch-site": "same-site"},
            {"x-muster": "1", "sec-fetch-site": "none"},
            {"x-muster": "1", "sec-fetch-site": "cross-site", "origin": "http://testserver"},
            {"x-muster": "1", "origin": "null"},
            {"x-muster": "1", "origin": "http://evil.example"},
            {"x-muster": "1", "origin": "http://testserver.evil.example"},
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "same-origin", "x-muster": "0"},
            {"content-type": "application/x-www-form-urlencoded", "origin": "http://testserver"},
        ],
    )
    def test_no_other_site_ends_one(
        self, let: Let, waiting: str, store: FolderStore, headers: dict[str, str]
    ) -> None:
        assert let("ADMIN").post(f"/muster/api/jobs/{waiting}/cancel", headers=headers).status_code == 403
        assert store.ledger.status(waiting).state is JobState.QUEUED

    @pytest.mark.parametrize(
        "headers", [{"x-muster": "1", "origin": "http://testserver"}, {"x-muster": "1"}, OURS]
    )
    def test_the_page_a_browser_too_old_and_a_script_do(
        self, let: Let, waiting: str, headers: dict[str, str]
    ) -> None:
        assert let("ADMIN").post(f"/muster/api/jobs/{waiting}/cancel", headers=headers).status_code == 200

    @pytest.mark.parametrize("method", ["get", "put", "delete", "patch"])
    def test_nothing_else_than_a_post(self, let: Let, waiting: str, store: FolderStore, method: str) -> None:
        assert (
            let("ADMIN").request(method, f"/muster/api/jobs/{waiting}/cancel", headers=OURS).status_code
            == 405
        )
        assert store.ledger.status(waiting).state is JobState.QUEUED


class TestSearches:
    """A search is its Dag's, as a job is."""

    @pytest.fixture
    def running(self, store: FolderStore, request: pytest.FixtureRequest) -> str:
        """A search with a trial whose job was never submitted."""
        search_id = f"page-searches-{abs(hash(request.node.name)) % 10**9}"
        searched.begin(store, search_id)
        searched.tell(store, search_id, searched.running({"rate": 0.01, "optimizer": "adam"}))
        return search_id

    def test_a_search_with_its_trials(self, viewer: Client, made: dict[str, Version]) -> None:
        found = viewer.get("/muster/api/searches/page-search-1").json()
        assert (found["state"], found["trials"], found["most"]) == ("succeeded", 27, 27)
        assert (found["sampler"], found["stopping"], found["seed"]) == ("random", "asha", 5)
        assert found["rungs"][0]["reached"] == 27
        assert found["importance"][0]["param"] == "rate"
        assert found["may"] == {"cancel": False, "log": True}
        told = viewer.get("/muster/api/searches/page-search-1/trials?limit=5").json()
        assert (len(told["trials"]), told["total"], told["trials"][0]["trial"]) == (
            5,
            27,
            found["best"]["trial"],
        )
        curves = viewer.get("/muster/api/searches/page-search-1/curves").json()["curves"]
        assert curves[0]["trial"] == found["best"]["trial"]
        assert [at for at, _ in curves[0]["points"]] == [1, 3, 9]

    @pytest.mark.parametrize(
        ("path", "status", "said"),
        [
            ("gone-1", 404, "no search gone-1 in this store"),
            ("gone-1/trials", 404, "no search gone-1"),
            ("NOT A JOB", 400, "NOT A JOB"),
            ("page-search-1/trials?sort=%3Cscript%3E", 400, "expected one of trial, phase"),
            ("page-search-1/trials?phase=nonsense", 422, "phase"),
            ("page-search-1/trials?limit=100000", 422, "limit"),
            ("page-search-1/points?param=nonsense", 400, "the space has rate, optimizer, momentum"),
        ],
    )
    def test_what_is_not_there_or_asked_wrongly(
        self, viewer: Client, made: dict[str, Version], path: str, status: int, said: str
    ) -> None:
        answer = viewer.get(f"/muster/api/searches/{path}")
        assert answer.status_code == status
        assert said in answer.text

    def test_searches_of_other_dags_are_not_listed(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        def listed(**asked: str) -> set[str]:
            return {
                each["search_id"]
                for each in viewer.get("/muster/api/searches", params=asked).json()["searches"]
            }

        assert {"page-search-1", "page-secret-1"} <= listed()
        assert listed(dag="secret") == listed(run="manual__1", dag="secret") == {"page-secret-1"}
        forbid(dag_id="secret")
        assert "page-search-1" in listed()
        assert listed(dag="secret") == set()
        assert "secret" not in viewer.get("/muster/api/searches").json()["dags"]

    def test_who_may_not_see_logs_sees_what_the_search_itself_knows(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        forbid(entity="TASK_LOGS")
        found = viewer.get("/muster/api/searches/page-search-1/curves").json()
        assert not found["told"]
        assert found["curves"]

    def test_who_may_change_the_dag_ends_its_search_and_the_audit_log_says_so(
        self, let: Let, running: str, store: FolderStore
    ) -> None:
        from airflow.models.log import Log
        from airflow.utils.session import create_session
        from sqlalchemy import select

        client = let("USER")
        assert client.get(f"/muster/api/searches/{running}").json()["may"]["cancel"]
        for _ in range(2):  # what has ended is not ended again
            answer = client.post(f"/muster/api/searches/{running}/cancel", headers=OURS)
            assert (answer.status_code, answer.json()["state"]) == (200, "failed")
        with create_session() as session:
            logs = session.scalars(select(Log).where(Log.event == "muster_cancel_search"))
            (noted,) = [each for each in logs if running in (each.extra or "")]
            assert (noted.dag_id, noted.task_id, noted.run_id) == ("flights", "search", "manual__1")
            owner = noted.owner
        closed = searched.events(store, running)[-1]
        assert closed.reason == f"{owner} cancelled it on muster's page in Airflow"

    @pytest.mark.parametrize(
        ("role", "headers"),
        [("VIEWER", OURS), ("ADMIN", {}), ("ADMIN", {"x-muster": "1", "sec-fetch-site": "cross-site"})],
    )
    def test_nobody_else_does(
        self, let: Let, running: str, store: FolderStore, role: str, headers: dict[str, str]
    ) -> None:
        assert let(role).post(f"/muster/api/searches/{running}/cancel", headers=headers).status_code == 403
        assert len(searched.events(store, running)) == 2

    def test_a_running_trial_says_what_it_does(self, viewer: Client, running: str) -> None:
        (trial,) = viewer.get(f"/muster/api/searches/{running}/trials").json()["trials"]
        assert (trial["phase"], trial["now"], trial["held"]) == ("running", None, [])


class TestWhatIsSaid:
    def test_a_job(self, viewer: Client, made: dict[str, Version]) -> None:
        found = viewer.get("/muster/api/jobs/page-report-1").json()
        assert (found["state"], found["name"], found["ranks"]) == ("succeeded", "flights.report", 1)
        assert found["inputs"] == {"input_0": [made["raw"].address]}
        assert found["params"] == {"month": SCRIPT}
        assert "in-the-clear" not in str(found)

    def test_a_task_is_linked(self, viewer: Client, made: dict[str, Version]) -> None:
        url = "../dags/flights/runs/manual__1/tasks/report"
        job, version = self.of_job(viewer, "page-report-1"), self.of_version(viewer, made["report"])
        assert job == version == ("flights · report", url)

    def test_a_task_of_muster_run_is_not_for_this_airflow_does_not_know_it(
        self, viewer: Client, store: FolderStore, made: dict[str, Version]
    ) -> None:
        run_id = "muster__2026-11-21T12:00:00.000001-7"
        version = make_job(store, "page-embedded-1", {"x": b"1"}, volume="pages/embedded", run_id=run_id)
        job = self.of_job(viewer, "page-embedded-1")
        assert job == self.of_version(viewer, version) == ("flights.report by muster run", None)

    @staticmethod
    def of_job(viewer: Client, job_id: str) -> tuple[str, str | None]:
        found = viewer.get(f"/muster/api/jobs/{job_id}").json()
        (listed,) = viewer.get(f"/muster/api/jobs?text={job_id}").json()["jobs"]
        assert (listed["task"], listed["task_url"]) == (found["task"], found["task_url"])
        return found["task"], found["task_url"]

    @staticmethod
    def of_version(viewer: Client, version: Version) -> tuple[str, str | None]:
        record = viewer.get(f"/muster/api/version?address={version.address}").json()["record"]
        return record["task"], record["task_url"]

    def test_a_verdict(self, viewer: Client, made: dict[str, Version]) -> None:
        verdict = viewer.get("/muster/api/jobs/page-hidden-1").json()["verdict"]
        assert (verdict["cause"], verdict["rank"], verdict["advice"]) == ("user error", 1, "mend it")

    def test_a_log_steers_no_screen(self, viewer: Client, made: dict[str, Version]) -> None:
        log = viewer.get("/muster/api/jobs/page-report-1/log").json()
        assert log["text"] == f"[rank 0] red {SCRIPT}\nsecond\n"
        assert viewer.get(f"/muster/api/jobs/page-report-1/log?after={log['next']}").json()["text"] == ""

    def test_the_end_of_a_long_log(
        self, viewer: Client, store: FolderStore, made: dict[str, Version]
    ) -> None:
        """Also of one line of 3 MB, and of bytes that are no text."""
        version = make_job(store, "page-long-1", {"x": b"1"}, volume="pages/long")
        assert version.number == 1
        store.ledger.append("page-long-1", b"\xff\x00" * 1_500_000 + b"\n" + b"last\n")
        log = viewer.get("/muster/api/jobs/page-long-1/log").json()
        assert log["text"] == "last\n"
        assert log["skipped_bytes"] == log["bytes"] - len(b"last\n")
        piece = viewer.get("/muster/api/jobs/page-long-1/log?after=1000").json()
        assert len(piece["text"]) <= piece["next"] - 1000 <= 1 << 17

    def test_jobs_by_state_and_page(self, viewer: Client, made: dict[str, Version]) -> None:
        first = viewer.get("/muster/api/jobs?limit=1&text=page-&state=succeeded").json()
        second = viewer.get("/muster/api/jobs?limit=1&text=page-&state=succeeded&offset=1").json()
        assert first["total"] == second["total"] == first["states"]["succeeded"] >= 2
        assert first["jobs"][0]["submitted"] is not None
        assert first["jobs"][0]["job_id"] != second["jobs"][0]["job_id"]

    def test_a_job_that_cannot_be_read_hides_no_other(
        self, viewer: Client, store: FolderStore, made: dict[str, Version]
    ) -> None:
        make_job(store, "page-torn-1", {"x": b"1"}, volume="pages/torn")
        (store.layout.job("page-torn-1") / "spec.json").write_text("{")
        try:
            found = viewer.get("/muster/api/jobs?text=page-&limit=200").json()
            by_id = {job["job_id"]: job for job in found["jobs"]}
            assert by_id["page-torn-1"]["state"] == "unreadable"
            assert "cannot be read" in by_id["page-torn-1"]["error"]
            assert "page-report-1" in by_id
            only = viewer.get("/muster/api/jobs?state=unreadable").json()["jobs"]
            assert [job["job_id"] for job in only] == ["page-torn-1"]
            assert viewer.get("/muster/api/jobs/page-torn-1").status_code == 503
        finally:
            store.layout.delete(store.layout.job("page-torn-1"))

    def test_volumes_and_versions(self, viewer: Client, made: dict[str, Version]) -> None:
        by_name = {each["volume"]: each for each in viewer.get("/muster/api/volumes").json()["volumes"]}
        assert by_name["pages/report"]["versions"] == 1
        assert by_name["pages/report"]["newest"]["address"] == made["report"].address
        (row,) = viewer.get("/muster/api/volumes/pages/report").json()["versions"]
        assert row["values"] == {"auc": 0.71}
        assert viewer.get("/muster/api/volumes/pages/report?before=1").json()["versions"] == []

    def test_a_version_is_served_by_what_serves_it_and_not_by_what_refused_it(
        self, api_server: Any, viewer: Client, made: dict[str, Version], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = made["report"].pinned
        states = {"answers": RevisionState.SERVING, "said-no": RevisionState.REFUSED}

        def deployment(name: str) -> DeploymentStatus:
            percent = 100 if states[name] is RevisionState.SERVING else 0
            revision = Revision(name="r1", model=model, state=states[name], percent=percent)
            return DeploymentStatus(name=name, url="", ready=True, token="1", revisions=(revision,))

        def look_at(names: list[str]) -> list[DeploymentSample]:
            return [DeploymentSample(status=deployment(name)) for name in names if name in states]

        (mount,) = [route for route in api_server.routes if getattr(route, "path", "") == "/muster"]
        with mount.app.state.opening.lent() as site:
            served = site.backend.deployments
        monkeypatch.setattr(served, "names", lambda: [*states, "just-retired"])
        monkeypatch.setattr(served, "look_at", look_at)
        found = viewer.get("/muster/api/version?address=pages/report@1").json()
        assert found["served_by"] == ["answers"]
        listed = viewer.get("/muster/api/deployments").json()["deployments"]
        assert [each["name"] for each in listed] == ["answers", "said-no"]

    def test_lineage(self, viewer: Client, made: dict[str, Version]) -> None:
        picture = viewer.get("/muster/api/lineage?address=pages/report@1").json()
        assert [node["id"] for node in picture["nodes"]] == [made["report"].address, made["raw"].address]
        (edge,) = picture["edges"]
        assert (edge["from"], edge["to"]) == (made["raw"].address, made["report"].address)
        assert picture["complete"]

    def test_a_version_whose_data_is_gone(self, viewer: Client, store: FolderStore) -> None:
        make_job(store, "page-gone-1", {"x": b"1"}, volume="pages/gone")
        make_job(store, "page-gone-2", {"x": b"2"}, volume="pages/gone")
        store.collect(volumes=["pages/gone"], keep_last=1)
        found = viewer.get("/muster/api/version?address=pages/gone@1").json()
        assert (found["deleted"], found["total_files"]) == (True, 1)
        assert found["record"]["job_id"] == "page-gone-1"
        assert viewer.get("/muster/files/pages/gone@1/x").status_code == 404

    def test_a_version_whose_data_was_taken_away_by_hand(self, viewer: Client, store: FolderStore) -> None:
        make_job(store, "page-lost-1", {"x": b"1"}, volume="pages/lost")
        store.layout.delete(store.layout.version("pages/lost", 1) / "data")
        answer = viewer.get("/muster/api/version?address=pages/lost@1")
        assert "its data is gone, and gc did not delete it" in answer.text
        store.retire("pages/lost@1", reason="gc refuses a damaged store, and other tests collect in this one")


class TestDeployments:
    """Who may change a release, and what is kept of it."""

    @pytest.fixture
    def asked(
        self, api_server: Any, made: dict[str, Version], monkeypatch: pytest.MonkeyPatch
    ) -> list[tuple[str, ...]]:
        """Have a deployment of the hidden version; note what is asked of it."""
        from muster.ext.page import routes_serving

        revision = Revision(
            name="r1", model=made["hidden"].pinned, state=RevisionState.SERVING, percent=100, ready=1
        )
        status = DeploymentStatus(name="line", url="http://x", ready=True, token="1", revisions=(revision,))
        (mount,) = [route for route in api_server.routes if getattr(route, "path", "") == "/muster"]
        with mount.app.state.opening.lent() as site:
            served = site.backend.deployments
        monkeypatch.setattr(served, "names", lambda: ["line"])
        monkeypatch.setattr(served, "look_at", lambda names: [DeploymentSample(status=status) for _ in names])
        monkeypatch.setattr(served, "deployment", lambda name: status)
        asked: list[tuple[str, ...]] = []
        monkeypatch.setattr(
            routes_serving, "give_everything", lambda _, name, one, by: asked.append((name, one, by))
        )
        monkeypatch.setattr(
            routes_serving,
            "roll_back",
            lambda _, name, by, reason, revision: asked.append((name, revision, by, reason)) or "r0",
        )
        monkeypatch.setattr(
            routes_serving,
            "bring_back",
            lambda _, name: asked.append((name, "repair")) or iter(["r1 is back"]),
        )
        monkeypatch.setattr(served, "retire", lambda name: asked.append((name, "retire")))
        return asked

    PROMOTE = "/muster/api/deployments/line/promote?revision=r1"
    ROLL_BACK = "/muster/api/deployments/line/rollback?revision=r1&reason=too%20slow"
    REPAIR = "/muster/api/deployments/line/repair"
    RETIRE = "/muster/api/deployments/line/retire"
    CHANGES = (PROMOTE, ROLL_BACK, REPAIR, RETIRE)

    def test_who_may_change_the_models_dag_does(self, let: Let, asked: list[tuple[str, ...]]) -> None:
        from airflow.models.log import Log
        from airflow.utils.session import create_session
        from sqlalchemy import select

        client = let("USER")
        assert client.get("/muster/api/deployments/line").json()["may"] == {"change": True}
        assert client.post(self.PROMOTE, headers=OURS).json() == {"serves": "r1"}
        assert client.post(self.ROLL_BACK, headers=OURS).json() == {"serves": "r0"}
        by = "user on muster's page in Airflow"
        assert [(name, one) for name, one, *_ in asked] == [("line", "r1"), ("line", "r1")]
        assert asked[1][2:] == (asked[0][2], "too slow")
        assert asked[0][2].endswith(by.partition(" ")[2])
        with create_session() as session:
            noted = session.scalars(select(Log).where(Log.event.in_(("muster_promote", "muster_roll_back"))))
            assert sorted(each.event for each in noted if "line" in (each.extra or "")) == [
                "muster_promote",
                "muster_roll_back",
            ]

    @pytest.mark.usefixtures("asked")
    def test_a_revision_of_a_retired_version_is_warned_of(
        self, let: Let, home: EmbeddedHome, made: dict[str, Version]
    ) -> None:
        client, store = let("USER"), FolderStore(home.settings.store)
        assert client.get("/muster/api/deployments/line").json()["warnings"] == {}
        store.retire(made["hidden"].address, reason="it leaks")
        (said,) = client.get("/muster/api/deployments/line").json()["warnings"].values()
        store.reinstate(made["hidden"].address)
        assert "was retired: it leaks. Release another version" in said

    def test_a_deployment_is_repaired_and_retired(self, let: Let, asked: list[tuple[str, ...]]) -> None:
        client = let("USER")
        assert client.post(self.REPAIR, headers=OURS).json() == {"done": ["r1 is back"]}
        assert client.post(self.RETIRE, headers=OURS).json() == {"retired": "line"}
        assert asked == [("line", "repair"), ("line", "retire")]
        noted = audited("muster_repair", "muster_retire_deployment")
        assert [json.loads(extra) for _, extra in noted if "line" in extra] == [{"deployment": "line"}] * 2

    @pytest.mark.parametrize("path", CHANGES)
    def test_who_may_only_look_does_not(
        self, viewer: Client, asked: list[tuple[str, ...]], path: str
    ) -> None:
        assert viewer.get("/muster/api/deployments/line").json()["may"] == {"change": False}
        assert viewer.post(path, headers=OURS).status_code == 403
        assert asked == []

    @pytest.mark.parametrize("path", CHANGES)
    def test_who_may_not_change_the_dag_of_the_model_does_not(
        self, let: Let, asked: list[tuple[str, ...]], forbid: Callable[..., None], path: str
    ) -> None:
        forbid(dag_id="secret", method="PUT")
        assert let("ADMIN").post(path, headers=OURS).status_code == 403
        assert asked == []

    @pytest.mark.parametrize("path", CHANGES)
    @pytest.mark.parametrize("headers", [{}, {"x-muster": "1", "sec-fetch-site": "cross-site"}])
    def test_no_other_site_does(
        self, let: Let, asked: list[tuple[str, ...]], path: str, headers: dict[str, str]
    ) -> None:
        assert let("ADMIN").post(path, headers=headers).status_code == 403
        assert let("ADMIN").get(path, headers=OURS).status_code in (404, 405)
        assert asked == []


def audited(*events: str) -> list[tuple[str, str]]:
    """Return event and details of each entry of Airflow's audit log, in its order."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(Log).where(Log.event.in_(events)).order_by(Log.id))
        return [(each.event, each.extra or "") for each in found]


class TestMarks:
    """Who may keep a version from gc, or hide it."""

    @pytest.fixture
    def address(self, home: EmbeddedHome, request: pytest.FixtureRequest) -> str:
        job_id = f"page-mark-{abs(hash(request.node.name)) % 10**8}"
        store = FolderStore(home.settings.store)
        return make_job(
            store, job_id, {"x": b"1"}, dag_id="secret", run_id="marks", volume="pages/marked"
        ).address

    def mark(self, client: Client, act: str, address: str, reason: str = "", headers: Any = None) -> Any:
        where = f"/muster/api/version/{act}"
        return client.post(where, params={"address": address, "reason": reason}, headers=headers or OURS)

    def test_a_version_is_pinned_hidden_and_back(self, let: Let, address: str) -> None:
        user, where = let("USER"), f"/muster/api/version?address={address}"
        assert user.get(where).json()["may"] == {"change": True}
        assert self.mark(user, "pin", address, "in the paper").json()["pins"] == ["in the paper"]
        assert self.mark(user, "unpin", address, "in the paper").json()["pins"] == []
        assert self.mark(user, "retire", address).json()["retired"] == "by user"
        assert user.get(where).json()["retired"] == "by user"
        assert self.mark(user, "reinstate", address).json()["retired"] is None
        events = ("muster_pin", "muster_unpin", "muster_retire", "muster_reinstate")
        mine = [(event, json.loads(extra)["reason"]) for event, extra in audited(*events) if address in extra]
        assert mine == list(zip(events, ["in the paper", "in the paper", "by user", "by user"], strict=True))

    def test_the_pin_of_a_deployment_is_its_own(self, let: Let, address: str, home: EmbeddedHome) -> None:
        FolderStore(home.settings.store).pin(address, reason="deployment/line")
        answer = self.mark(let("USER"), "unpin", address, "deployment/line")
        assert answer.status_code == 409
        assert "deployment line keeps" in answer.json()["detail"]
        assert self.mark(let("USER"), "unpin", address, "in the paper").status_code == 404
        refused = self.mark(let("USER"), "retire", address)
        assert refused.status_code == 409
        assert "is served by deployment line, or kept there for a rollback" in refused.json()["detail"]

    @pytest.mark.parametrize("act", ["pin", "unpin", "retire", "reinstate"])
    def test_who_may_not_change_its_dag_does_not(
        self,
        let: Let,
        viewer: Client,
        address: str,
        forbid: Callable[..., None],
        act: str,
        home: EmbeddedHome,
    ) -> None:
        assert self.mark(viewer, act, address).status_code == 403
        assert self.mark(let("ADMIN"), act, address, headers={"x-other": "1"}).status_code == 403
        assert let("ADMIN").get(f"/muster/api/version/{act}?address={address}", headers=OURS).status_code in (
            404,
            405,
        )
        forbid(dag_id="secret", method="PUT")
        assert self.mark(let("ADMIN"), act, address).status_code == 403
        (kept,) = FolderStore(home.settings.store).resolve(address)
        assert (kept.pins, kept.retired) == ((), None)

    def test_there_is_no_other_act(self, let: Let, address: str) -> None:
        assert self.mark(let("ADMIN"), "resolve", address).status_code == 422


def test_an_address_that_the_page_does_not_have_is_named(let: Let) -> None:
    answer = let("ADMIN").get("/muster/no/such<b>")
    assert answer.status_code == 404
    assert "nothing at '/muster/no/such<b>'" in answer.json()["detail"]
    assert answer.json()["detail"].endswith("it is at /muster/")
    gone = let("ADMIN").get("/muster/api/deployments/gone")
    assert (gone.status_code, gone.json()["detail"]) == (404, "no deployment 'gone'; there is none yet")


class TestUpkeep:
    def test_the_images_are_those_of_the_command(self, viewer: Client) -> None:
        found = viewer.get("/muster/api/images").json()
        assert found["here"] is True
        by_name = {each["name"]: each for each in found["images"]}
        assert by_name["train"]["digest"].startswith("b3:")
        assert "muster" not in by_name

    def test_room_last_check_and_what_jobs_keep_are_said(
        self, viewer: Client, home: EmbeddedHome, made: dict[str, Version]
    ) -> None:
        store = FolderStore(home.settings.store)
        report = store.check()
        found = viewer.get("/muster/api/upkeep").json()
        assert found["checked"]["versions"] == report.versions
        assert "free" in found["room"]["text"]
        assert found["held"] == [] or found["held"][0].keys() >= {"job_id", "outputs_bytes"}


class TestVersionsBesideEachOther:
    def test_what_was_made_of_a_version_is_seen_from_it(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        def used() -> tuple[set[str], set[str], set[str]]:
            found = viewer.get("/muster/api/version?address=pages/raw@1").json()
            nodes = {node["id"] for node in found["lineage"]["nodes"] if node["column"] < 0}
            documents = {each["address"] for each in found["documents"]}
            return {each["job_id"] for each in found["used_by"]}, nodes, documents

        jobs, nodes, documents = used()
        assert {"page-report-1", "page-hidden-1"} <= jobs
        assert {made["report"].address, made["hidden"].address} <= nodes
        assert made["report"].address in documents
        forbid(dag_id="secret")
        jobs, nodes, documents = used()
        assert "page-hidden-1" not in jobs
        assert made["hidden"].address not in nodes | documents

    def test_versions_are_compared_with_the_oldest_of_them(
        self, viewer: Client, made: dict[str, Version]
    ) -> None:
        query = "version=pages/report@1&version=pages/raw@1"
        found = viewer.get(f"/muster/api/compare?{query}").json()
        assert found["metrics"] == [["auc", [0.71, 0.71]]]
        assert found["inputs"] == [["input_0", [None, [made["raw"].address]]]]
        (difference,) = found["differences"]
        assert ["rows.parquet", 4, None] in difference["files"]["changed"]
        assert viewer.get("/muster/api/compare?version=pages/raw@1").status_code == 400

    def test_what_may_not_be_read_is_not_compared(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None]
    ) -> None:
        forbid(dag_id="secret")
        found = viewer.get("/muster/api/compare?version=pages/report@1&version=pages/hidden@1").json()
        assert found["metrics"] == [["auc", [0.71, None]]]
        assert found["differences"][0]["files"] is None
        assert viewer.get("/muster/api/rows?where=pages/hidden@1/index.html").status_code == 403
        assert viewer.get("/muster/api/code?address=pages/hidden@1").status_code == 403

    def test_a_table_that_cannot_be_read_is_named(self, viewer: Client, made: dict[str, Version]) -> None:
        answer = viewer.get("/muster/api/rows?where=pages/raw@1/rows.parquet")
        assert answer.status_code == 503
        assert "rows.parquet does not end as a Parquet file" in answer.json()["detail"]
        assert viewer.get("/muster/api/rows?where=pages/raw@1/gone.csv").status_code == 404
        assert viewer.get("/muster/api/code?address=pages/raw@1").status_code == 404


class TestRunsBesideEachOther:
    def test_two_runs_are_compared_stage_by_stage(
        self, viewer: Client, made: dict[str, Version], forbid: Callable[..., None], home: EmbeddedHome
    ) -> None:
        store = FolderStore(home.settings.store)
        make_job(store, "page-apart-1", {"x": b"1"}, run_id="apart", volume="pages/apart")
        more: Any = {"dag_id": "secret", "run_id": "apart", "volume": "pages/apart", "inputs": (made["raw"],)}
        make_job(store, "page-apart-2", {"x": b"2"}, **more)
        query = "old_dag=flights&old=apart&new_dag=secret&new=apart"
        found = viewer.get(f"/muster/api/run_diff?{query}").json()
        assert (found["old"]["dag_id"], found["new"]["dag_id"]) == ("flights", "secret")
        (stage,) = [each for each in found["stages"] if each["stage"] == "report"]
        assert {fact["name"] for fact in stage["facts"]} == {"inputs.input_0"}
        assert stage["code"] == []
        forbid(dag_id="secret")
        assert viewer.get(f"/muster/api/run_diff?{query}").status_code == 403
        gone = viewer.get("/muster/api/run_diff?old_dag=flights&old=manual__1&new_dag=flights&new=gone")
        assert gone.status_code == 404


PLANNED = """
    print("an author's code may print")
    first = JobOperator(
        task_id="first", image="python", command=["python", "-c", "print({{ params.count }})"], resources=SMALL,
        params={"count": "{{ params.count }}"},
    )
    JobOperator(task_id="huge", image="python", command=["true"], resources=Resources(memory_gib=100_000)) << first
"""


class TestPlan:
    @pytest.fixture
    def dag_id(
        self, home: EmbeddedHome, dag_folder: Path, write_dag: Callable[..., None], monkeypatch: Any
    ) -> str:
        from muster.airflow.embedded.load import load

        write_dag(PLANNED, params="{'count': Param(4, type='integer')}")
        load(dag_folder.name, home)
        monkeypatch.setenv("AIRFLOW__MUSTER__PLAN_ON_PAGE", "True")
        return dag_folder.name

    def ask(self, client: Client, dag_id: str, **more: str) -> Any:
        return client.post("/muster/api/plan", params={"dag": dag_id, **more}, headers={"X-Muster": "1"})

    def test_what_a_run_would_do_is_said_before_it(self, dag_id: str, let: Let, home: EmbeddedHome) -> None:
        user = let("USER")
        jobs = FolderStore(home.settings.store).ledger.jobs()
        assert dag_id in user.get("/muster/api/dags").json()["dags"]
        answer = self.ask(user, dag_id, params='{"count": "5"}')
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["params"] == {"count": 5}
        first, huge = found["stages"]
        assert (first["does"], first["start"]["when"]) == ("runs", "now")
        assert huge["start"]["when"] == "never"
        assert "GiB" in huge["start"]["why"]
        assert FolderStore(home.settings.store).ledger.jobs() == jobs
        wrong = self.ask(user, dag_id, params='{"coutn": 5}')
        assert (wrong.status_code, "no param 'coutn'" in wrong.json()["detail"]) == (400, True)

    def test_it_needs_the_right_to_trigger_the_dag(self, dag_id: str, let: Let) -> None:
        viewer = let("VIEWER")
        assert self.ask(viewer, dag_id).status_code == 403
        assert viewer.get("/muster/api/dags").json()["dags"] == []
        assert let("USER").post("/muster/api/plan", params={"dag": dag_id}).status_code == 403  # no header

    def test_a_dag_that_is_not_there_is_named(self, dag_id: str, let: Let) -> None:
        answer = self.ask(let("USER"), "no-such-dag")
        assert answer.status_code == 404
        assert dag_id in answer.json()["detail"]

    def test_an_api_server_that_runs_no_authors_code_plans_nothing(
        self, dag_id: str, let: Let, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__MUSTER__PLAN_ON_PAGE", "False")
        answer = self.ask(let("USER"), dag_id)
        assert answer.status_code == 400
        assert "`muster plan DAG`" in answer.json()["detail"]
        assert let("USER").get("/muster/api/dags").json()["why_not"] == answer.json()["detail"]


@pytest.mark.parametrize("path", ["/muster/api/volumes", "/muster/static/app.js"])
def test_what_the_browser_has_already_is_not_sent_again(
    viewer: Client, made: dict[str, Version], path: str
) -> None:
    first = viewer.get(path)
    again = viewer.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert viewer.get(path, headers={"if-none-match": '"other"'}).content == first.content


class TestFiles:
    """What a user wrote can do nothing to who looks at it, and nothing else is ever sent."""

    def test_a_document_is_in_a_sandbox(self, viewer: Client, made: dict[str, Version]) -> None:
        answer = viewer.get("/muster/files/pages/report@1/index.html")
        policy = [each.strip() for each in answer.headers["content-security-policy"].split(";")]
        assert "sandbox" in policy  # with nothing allowed again, neither scripts nor our origin
        assert "default-src 'none'" in policy
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize(
        ("name", "kind", "shown"),
        [
            ("notes.HTM", "text/html; charset=utf-8", "inline"),
            ("plots/a%20b.png", "image/png", "inline"),
            ("model.bin", "application/octet-stream", "attachment"),
        ],
    )
    def test_every_file_is_in_one(
        self, viewer: Client, made: dict[str, Version], name: str, kind: str, shown: str
    ) -> None:
        answer = viewer.get(f"/muster/files/pages/report@1/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-disposition"].startswith(shown)
        assert answer.headers["content-security-policy"].startswith("sandbox;")

    def test_a_part_of_a_big_one(self, viewer: Client, made: dict[str, Version]) -> None:
        answer = viewer.get("/muster/files/pages/report@1/model.bin", headers={"range": "bytes=256-511"})
        assert (answer.status_code, answer.content) == (206, bytes(range(256)))
        whole = viewer.get("/muster/files/pages/report@1/model.bin")
        assert int(whole.headers["content-length"]) == len(whole.content) == 256 * 4096
        assert (
            viewer.get(
                "/muster/files/pages/report@1/model.bin", headers={"range": "bytes=99999999-"}
            ).status_code
            == 416
        )

    def test_a_link_leads_nowhere_else(self, viewer: Client, store: FolderStore, tmp_path: Path) -> None:
        """No commit lets one in; who can write the store's folder might still leave one."""
        make_job(store, "page-links-1", {"here.txt": b"here"}, volume="pages/links")
        data = store.path("pages/links@1")
        data.chmod(0o755)
        (tmp_path / "secret.txt").write_text("secret")
        links = {
            "out.txt": tmp_path / "secret.txt",
            "up": data.parent,
            "round": Path("round"),
            "within.txt": Path("here.txt"),
        }
        for name, target in links.items():
            (data / name).symlink_to(target)
        try:
            for name in ("out.txt", "up/RECORD.json", "round", "up"):
                answer = viewer.get(f"/muster/files/pages/links@1/{name}")
                assert answer.status_code == 404, name
                assert "secret" not in answer.text
            assert viewer.get("/muster/files/pages/links@1/within.txt").content == b"here"
        finally:
            for name in links:
                (data / name).unlink()
            data.chmod(0o555)

    @pytest.mark.parametrize("name", ["plots", "no/such", "x" * 3000, "index.html/x", "MANIFEST"])
    def test_what_is_no_file_is_not_found(self, viewer: Client, made: dict[str, Version], name: str) -> None:
        assert viewer.get(f"/muster/files/pages/report@1/{name}").status_code == 404


class TestPage:
    def test_it_runs_nothing_and_asks_nobody_else(self, viewer: Client) -> None:
        answer = viewer.get("/muster/")
        policy = dict(
            each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
        assert "<script>" not in answer.text
        assert " style=" not in answer.text

    def test_its_modules_import_each_other_and_nothing_else(self, viewer: Client) -> None:
        import re
        from posixpath import join, normpath

        from muster.ext.page.app import files

        names = {name for name in files() if name.endswith(".js")}
        tabs = re.findall(r'href="static/(.*)" data-room', viewer.get("/muster/").text)
        waiting, seen = ["app.js", *tabs], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            answer = viewer.get(f"/muster/static/{name}")
            assert answer.headers["content-type"].startswith("text/javascript"), name
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", answer.text
            ), name
            assert not re.search(r"https?://(?!www\.w3\.org/)", answer.text), name
            imported = re.findall(r'\bfrom "(\..*)";$', answer.text, re.MULTILINE)
            assert len(imported) == len(re.findall(r"\bimport\b(?!\(found\.href|\(href)", answer.text)), name
            waiting += [normpath(join(name, "..", each)) for each in imported]
        assert seen == names

    def test_airflow_shows_it(self, let: Let) -> None:
        """As Airflow's UI asks for what stands in its navigation; and no plugin failed to load."""
        admin = let("ADMIN")
        plugins = {p["name"]: p for p in admin.get("/api/v2/plugins").json()["plugins"]}
        (view,) = plugins["muster"]["external_views"]
        assert (view["href"], view["url_route"], view["destination"]) == ("/muster/", "muster", "nav")
        assert admin.get("/api/v2/plugins/importErrors").json()["total_entries"] == 0

    @pytest.mark.parametrize(
        "name", ["app.py", "..%2fapp.py", "no.js", "%2e%2e/app.py", "page.css/x", "a\x00b"]
    )
    def test_nothing_else_lies_beside_it(self, viewer: Client, name: str) -> None:
        answer = viewer.get(f"/muster/static/{name.replace(chr(0), '%00')}")
        assert answer.status_code == 404


PIECES = (
    *(
        "..",
        ".",
        "",
        "/",
        "//",
        "\\",
        "%",
        "%2e%2e",
        "%00",
        "~",
        "@",
        "@1",
        "@latest",
        "@*",
        "@<2013-10",
        "@b3:",
        "@0",
    ),
    *(
        "@1/../../..",
        "@99999999999999999999",
        "etc/passwd",
        "pages/report@1",
        "index.html",
        "RECORD.json",
        "data",
        "jobs",
    ),
    *(
        "page-report-1",
        "x" * 500,
        "é",
        "\u202e",
        "\x00",
        "\n",
        "'\"",
        "<script>",
        "{}",
        "${x}",
        "$(id)",
        "null",
        "-1",
        "1e9",
    ),
    *(
        "\ud800",
        "\U0010ffff",
        "con",
        "v/pages/report/1/data/index.html",
        "store.json",
        "log",
        "cancel",
        "&a=b",
        "?",
    ),
)
ROOMS = (
    *(
        "/muster/files/",
        "/muster/files/pages/report@1/",
        "/muster/files/pages/report@1/plots/",
        "/muster/static/",
    ),
    *("/muster/api/jobs/", "/muster/api/volumes/", "/muster/api/deployments/", "/muster/api/", "/muster/"),
)
QUERIES = (
    *("address", "before", "after", "limit", "offset", "state", "text"),
    *("by", "columns", "version", "file", "where", "dag", "run", "rank"),
)


class TestFuzz:
    """Whatever is asked, the answer is no: never a fault of ours, never a file from elsewhere."""

    @pytest.fixture
    def ask(
        self, api_server: Any, let: Let
    ) -> Callable[[list[tuple[str, str, bytes]]], list[tuple[int, bytes]]]:
        """Ask as a server passes requests on: the path decoded, nothing tidied up on the way."""
        import asyncio

        cookie = f"{COOKIE}={let('ADMIN').cookies[COOKIE]}".encode()

        async def one(method: str, path: str, query: bytes) -> tuple[int, bytes]:
            sent: list[dict[str, Any]] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            headers = [(b"host", b"testserver"), (b"cookie", cookie), (b"x-muster", b"1")]
            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.4"},
                "http_version": "1.1",
                "method": method,
                "scheme": "http",
                "path": path,
                "root_path": "",
                "query_string": query,
                "headers": headers,
                "client": ("127.0.0.1", 1),
                "server": ("testserver", 80),
                "state": {},
            }
            await api_server({**scope, "raw_path": path.encode("utf-8", "surrogatepass")}, receive, send)
            return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])

        async def each(requests: list[tuple[str, str, bytes]]) -> list[tuple[int, bytes]]:
            return [await one(*request) for request in requests]

        return lambda requests: asyncio.run(each(requests))

    @pytest.mark.parametrize("many", [100, pytest.param(400, marks=pytest.mark.nightly)])
    def test_paths(self, ask: Any, made: dict[str, Version], store: FolderStore, many: int) -> None:
        import random

        choose = random.Random(4)
        paths = [room + piece for room in ROOMS for piece in PIECES]
        paths += [
            choose.choice(ROOMS)
            + choose.choice(["/", "@", ""]).join(choose.choices(PIECES, k=choose.randint(2, 7)))
            for _ in range(many)
        ]
        ours = {path.read_bytes() for path in store.path("pages/report@1").rglob("*") if path.is_file()}
        for path, (status, body) in zip(paths, ask([("GET", path, b"") for path in paths]), strict=True):
            assert status < 500, (path, status, body[:200])
            if path.startswith("/muster/files/") and status == 200:
                assert body in ours, path
            assert b"root:x:" not in body, path

    @pytest.mark.parametrize("names", [4, pytest.param(len(QUERIES), marks=pytest.mark.nightly)])
    def test_queries(self, ask: Any, made: dict[str, Version], names: int) -> None:
        import random
        from urllib.parse import quote

        choose = random.Random(5)
        paths = (
            *("jobs", "jobs/page-report-1/log", "volumes/pages/report", "version", "lineage"),
            *("run", "runs", "jobs/page-report-1/found", "compare", "code", "rows"),
        )
        values = [
            *PIECES,
            "9" * 5000,
            "a" * 100_000,
            "-9223372036854775809",
            "NaN",
            "Infinity",
            "1.5",
            "0x10",
        ]
        requests = []
        for value in values:
            for name in choose.sample(QUERIES, names):
                query = f"{name}={quote(value, safe='', errors='surrogatepass')}".encode()
                requests.append(("GET", f"/muster/api/{choose.choice(paths)}", query))
        requests += [
            ("GET", "/muster/api/jobs", b"&".join([b"limit=1"] * 20_000)),
            ("GET", "/muster/api/jobs", b"\xff=\xfe"),
        ]
        for request, (status, body) in zip(requests, ask(requests), strict=True):
            assert status < 500, (request[1], request[2][:100], body[:200])

    def test_changes(self, ask: Any, made: dict[str, Version]) -> None:
        requests = [("POST", f"/muster/api/jobs/{piece}/cancel", b"") for piece in PIECES]
        for request, (status, body) in zip(requests, ask(requests), strict=True):
            assert status < 500, (request[1], body[:200])


class Served:
    """Stands for a cluster's backend: the store is a service, and jobs are as the ledger says."""

    def __init__(self, store: ServiceStore, place: Place) -> None:
        self.store, self.place = store, place

    def status(self, job_id: str) -> JobStatus:
        return self.store.ledger.status(job_id)

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        return {status.job_id: status for status in self.store.ledger.statuses(list(job_ids))}

    def close(self) -> None: ...

    @property
    def deployments(self) -> Served:
        return self

    def kept(self, job_ids: Sequence[str] | None = None) -> tuple[WaitingJob, ...]:
        return ()

    def names(self) -> list[str]:
        return []

    def look_at(self, names: Collection[str] | None = None, *, counts: bool = True) -> list[DeploymentSample]:
        return []


@pytest.fixture(scope="module")
def service(home: EmbeddedHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A store service in front of the very store that the page reads."""
    with Service(tmp_path_factory.mktemp("service"), root=home.settings.store) as service:
        yield service


def page_token(service: Service) -> str:
    return operator_token(service.keys, lifetime_seconds=3600, kind=TokenKind.PAGE)


Sites = Callable[..., None]


@pytest.fixture
def over(api_server: Any) -> Iterator[Sites]:
    """Have the page read other stores from then on, each from when it opens one anew."""
    from starlette.routing import Mount

    from muster.airflow.page.route import Opening, Site
    from muster.ext.page.answering import Answering

    (mount,) = [r for r in api_server.routes if isinstance(r, Mount) and r.path == "/muster"]

    before = mount.app.state.opening
    with before.lent() as ours:
        place = ours.backend.place

    def go(*stores: ServiceStore) -> None:
        backends: Iterator[Any] = (Served(store, place) for store in stores)
        mount.app.state.opening = Opening(lambda: Site(at := next(backends), Answering(at)))

    yield go
    mount.app.state.opening = before


@pytest.mark.parametrize(
    "path",
    [
        *(path for path in READS if ("/api/" in path and path != UPKEEP) or "/files/" in path),
        "/muster/api/jobs?limit=1&offset=1&text=report",
        "/muster/api/jobs/page-hidden-1",
        "/muster/api/jobs/page-report-1/log?after=9",
        "/muster/api/jobs/gone",
        "/muster/api/volumes/pages/gone",
        "/muster/api/version?address=pages/hidden@1",
        "/muster/files/pages/report@1/plots/a%20b.png",
        "/muster/files/pages/report@1/model.bin",
        "/muster/files/pages/report@1/gone",
        "/muster/files/pages/report@1/../../../../etc/passwd",
    ],
)
def test_the_page_says_the_same_of_a_store_behind_a_service(
    viewer: Client, made: dict[str, Version], over: Sites, service: Service, path: str
) -> None:
    """With a token that is the page's alone."""
    ours = viewer.get(path)
    over(service.client(token=page_token(service)))
    theirs = viewer.get(path)
    assert theirs.status_code == ours.status_code
    if ours.status_code == 200:
        assert theirs.content == ours.content
        changing = {"last-modified", "etag"}  # a copy is made when it is asked for
        assert {k: v for k, v in theirs.headers.items() if k not in changing} == {
            k: v for k, v in ours.headers.items() if k not in changing
        }


def test_the_page_s_own_token_is_enough_to_mark_a_version(
    let: Let, made: dict[str, Version], over: Sites, service: Service
) -> None:
    over(service.client(token=page_token(service)))
    about = {"address": "pages/report@1", "reason": "looked at"}
    for act in ("pin", "unpin", "retire", "reinstate"):
        answer = let("ADMIN").post(f"/muster/api/version/{act}", params=about, headers=OURS)
        assert answer.status_code == 200, answer.text
    assert answer.json() == {"pins": [], "retired": None}


def test_a_store_that_refuses_the_page_is_opened_anew(
    viewer: Client,
    made: dict[str, Version],
    over: Sites,
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[ServiceStore] = []
    monkeypatch.setattr(Served, "close", lambda self: closed.append(self.store))
    with ServiceStore(service.url, token="run.out", cache=tmp_path) as stranger:
        over(stranger, service.client())
        answer = viewer.get("/muster/api/volumes")
        assert answer.status_code == 503
        assert "token" in answer.json()["detail"]
        assert viewer.get("/muster/api/volumes").status_code == 200
        assert closed == [stranger], "and the one before is let go"


def test_a_list_of_many_jobs_is_a_few_questions(
    viewer: Client,
    made: dict[str, Version],
    over: Sites,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from muster.volumes.service.connection import Connection

    asked, before = [], Connection.request

    def request(self: Connection, method: str, path: str, **how: Any) -> Any:
        asked.append(path)
        return before(self, method, path, **how)

    over(service.client())
    monkeypatch.setattr(Connection, "request", request)
    assert viewer.get("/muster/api/jobs").json()["total"] >= 3
    assert asked == ["/v1/jobs", "/v1/statuses", "/v1/specs", "/v1/statuses", "/v1/room"]
    asked.clear()
    viewer.get("/muster/api/jobs")
    assert asked == ["/v1/jobs", "/v1/statuses"], "what has ended is known"


def test_the_plugin_loads_nothing_heavy(tmp_path: Path) -> None:
    """Every process of Airflow's loads it, each parse of a Dag among them."""
    told = printed(
        "import sys, airflow.sdk, airflow.plugins_manager; before = set(sys.modules)\n"
        "import muster.ext.page.entry\n"
        "print(sorted(n for n in set(sys.modules) - before if n.split('.')[0] != 'muster'))\n"
        "print('fastapi' in set(sys.modules) - before)",
        home=tmp_path,
    )
    assert told.splitlines()[-2:] == ["[]", "False"]


def test_a_tasks_process_loads_nothing_for_what_only_components_do(tmp_path: Path) -> None:
    told = printed(
        "import sys\n"
        "from muster.airflow.attempts.listener import on_starting\n"
        "before = set(sys.modules)\n"
        "on_starting(component=object())\n"
        "print(sorted(set(sys.modules) - before))",
        home=tmp_path,
    )
    assert told.splitlines()[-1:] == ["[]"]

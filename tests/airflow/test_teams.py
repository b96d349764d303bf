"""Two teams and three users in one Airflow: what each may run, see and do; and what persons of the wrong team do not get."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import searched
from tests.airflow.conftest import Seen
from tests.airflow.test_page import COOKIE, OURS, Served, make_job, page_token
from tests.site import Site
from tests.unit.airflow.attempts.notes import Notes
from tests.unit.backends.releases.world import World
from tests.unit.volumes.service.process import Service

from muster.airflow.embedded.home import EmbeddedHome
from muster.backends.base import Backend
from muster.core.errors import SpecError, StoreError
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore

TEAMS = """
shared = ["common"]
[teams.vision]
queue = "vision"
volumes = "sight"
[teams.speech]
queue = "speech"
volumes = "lines"
"""
USERS = {"ana": ("USER", "vision"), "eve": ("VIEWER", "vision"), "ben": ("USER", "speech")}
DAGS = {"seeing": "vision", "hearing": "speech"}
Client = Any
Value = Callable[[str], str]

# What team speech has. `lines/model` is what tests.unit.backends.releases.world serves as `line`.
JOB, LIVE, SEARCH = "birdsong-1", "birdsong-live-1", "birdsong-search-1"
THEIRS: Mapping[str, str] = {
    "address": "lines/model@1",
    "where": "lines/model@1/birdsong.csv",
    "version": "volume://lines/model@1",
    "volume": "lines/model",
    "job_id": JOB,
    "live": LIVE,
    "search_id": SEARCH,
    "dag": "hearing",
    "run": "manual__birdsong",
    "name": "line",
    "revision": "r3",
}
BY_NAME = {**THEIRS, "old_dag": "hearing", "new_dag": "hearing", "old": THEIRS["run"], "new": THEIRS["run"]}
MARKS = ("birdsong", "lines/", "hearing", "speech", '"line"')
"""What none of their answers may hold, but where the request itself said it."""


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory, home: EmbeddedHome) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("site") / "teams.toml"
    file.write_text(TEAMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__MUSTER__TEAMS", str(file))
        yield file


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    made.begin_canary(by="task")
    return made


@pytest.fixture(scope="module")
def api_server(home: EmbeddedHome, teams: Path, world: World) -> Iterator[Any]:
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    users = ",".join(f"{name}:{role}:{team}" for name, (role, team) in USERS.items())
    rows = [Team(name=team) for team in ("vision", "speech")]
    with create_session() as session:
        session.add_all(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", f"{users},root:ADMIN")
        patch.setenv(
            "AIRFLOW__API_AUTH__JWT_SECRET",
            "only for the tests, and long enough for SHA-512: 64 bytes at least",
        )
        patch.setattr("muster.ext.page.board.SLOW_SECONDS", 3600.0)
        patch.setattr(Backend, "deployments", property(lambda _: world))
        app = create_app("core")
        forget(app)
        yield app
        forget(app)
    purge_cached_app()
    with create_session() as session:
        for row in rows:
            session.delete(session.merge(row))


def forget(api_server: Any) -> None:
    """Let the page open its store anew: its application is one for the process, so also other files' tests use it."""
    opening = page_of(api_server).state.opening
    with opening.lent() as site:
        opening.replace(site)


def page_of(api_server: Any) -> Any:
    from starlette.routing import Mount

    (mount,) = [each for each in api_server.routes if isinstance(each, Mount) and each.path == "/muster"]
    return mount.app


@pytest.fixture(scope="module")
def let(api_server: Any) -> Callable[[str], Client]:
    """Give a client with a user's session."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    def client(name: str) -> Client:
        role, team = USERS.get(name, ("ADMIN", ""))
        made = TestClient(api_server, base_url="http://testserver", follow_redirects=False, headers=OURS)
        user = SimpleAuthManagerUser(username=name, role=role, teams=[team] * bool(team))
        made.cookies.set(COOKIE, get_auth_manager().generate_jwt(user))
        return made

    return client


@pytest.fixture(scope="module")
def made(home: EmbeddedHome) -> Iterator[None]:
    """What each team has: Dags that Airflow knows, jobs, versions, a search."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    store = FolderStore(home.settings.store)
    files = {"birdsong.csv": b"birdsong\n1\n", "index.html": b"birdsong"}
    for job_id in (JOB, "birdsong-2", "birdsong-3"):  # what the deployment serves
        make_job(store, job_id, files, dag_id="hearing", run_id=THEIRS["run"], volume="lines/model")
    make_job(store, "sight-1", {"a.csv": b"a\n1\n"}, dag_id="seeing", volume="sight/model")
    make_job(store, "common-1", {"a.csv": b"a\n1\n"}, dag_id="hearing", volume="common/rows")
    for job_id in (JOB, "sight-1"):
        store.ledger.append(job_id, f"{job_id} said this\n".encode())
    spec = store.ledger.spec(JOB)
    store.ledger.create(LIVE, spec)
    searched.played(store, SEARCH, dag_id="hearing")
    bundle = DagBundleModel(name="teams")
    dags = [DagModel(dag_id=dag_id, bundle_name="teams", is_stale=False) for dag_id in DAGS]
    tags = [DagTag(dag_id=dag_id, name=f"team:{team}") for dag_id, team in DAGS.items()]
    for rows in ([bundle], dags, tags):
        with create_session() as session:
            session.add_all(rows)
    yield
    store.ledger.update(JobStatus(job_id=LIVE, state=JobState.CANCELLED, submitted=1.0, ended=2.0))
    for rows in (tags, dags, [bundle]):
        with create_session() as session:
            for row in rows:
                session.delete(session.merge(row))


def probes(api_server: Any) -> Iterator[tuple[str, str]]:
    """Yield method and address of requests for what is team speech's: of each route of the page, whatever its parameters."""
    for route in page_of(api_server).routes:
        if not hasattr(route, "dependant") or route.path in ("/", "/static/{name:path}"):
            continue
        flat = route.dependant
        asked = [each for each in flat.query_params if each.field_info.annotation is not bool]
        for one, other in pairs(values(flat.path_params), values(asked)):
            path = re.sub(r"{(\w+)(:\w+)?}", lambda found, one=one: one(found[1]), route.path)
            several = {each.name for each in asked if "list" in str(each.field_info.annotation)}
            named = [f"{each.name}={value}" for each in asked if (value := other(each.name))]
            named += [f"{name}=common/rows@1" for name in several]
            for method in sorted(route.methods - {"HEAD"}):
                yield method, f"/muster{path}"
                yield method, f"/muster{path}" + f"?{'&'.join(named)}" * bool(named)


def pairs(ones: list[Value], others: list[Value]) -> list[tuple[Value, Value]]:
    """Each of the one with the first of the other: the first gives each name what suits it."""
    return [*((one, others[0]) for one in ones), *((ones[0], other) for other in others)]


def values(params: list[Any]) -> list[Value]:
    """Return what gives a parameter its value, by its name: one of its pattern, what suits its name, or one of theirs."""
    patterns = {each.name: pattern for each in params if (pattern := pattern_of(each))}

    def choice(number: int, value: str | None) -> Value:
        def give(name: str) -> str:
            if name in patterns:
                words = [word for word in re.split(r"\W+", patterns[name]) if word]
                return words[number % len(words)]
            return BY_NAME.get(name, "") if value is None else value

        return give

    return [choice(*each) for each in enumerate((None, *(THEIRS.values() if params else ())))]


def pattern_of(param: Any) -> str:
    found = (getattr(each, "pattern", None) for each in param.field_info.metadata)
    return next((each for each in found if each), "")


def passed(method: str, asked: str, answer: Any) -> str:
    """Why a request of the wrong team counts as passed; empty where it does not."""
    leaked = [mark for mark in MARKS if mark in answer.text and mark.strip('"') not in asked]
    if answer.status_code < 400:
        if method != "GET":
            return "it was done"
        leaked = [mark for mark in MARKS if mark in answer.text]
    return f"it tells {leaked[0]}" if leaked else ""


def state(store: FolderStore, world: World) -> object:
    """All that a probe could change."""
    (version,) = store.resolve("lines/model@1")
    return version.pins, version.retired, store.ledger.status(LIVE), world.deployment("line")


def test_no_probe_of_the_wrong_team_passes(
    api_server: Any, let: Callable[[str], Client], made: None, home: EmbeddedHome, world: World
) -> None:
    store, wrong, asked = FolderStore(home.settings.store), [], 0
    before = state(store, world)
    for user in ("ana", "eve"):
        client = let(user)
        for method, path in dict.fromkeys(probes(api_server)):
            asked += 1
            if why := passed(method, path, answer := client.request(method, path)):
                wrong.append(f"{user} {method} {path} {answer.status_code}: {why}")
    assert (wrong, asked >= 1000) == ([], True), asked
    assert state(store, world) == before


def test_the_same_probes_pass_for_their_own_team(
    api_server: Any, let: Callable[[str], Client], made: None
) -> None:
    """So the probes are real: each route that tells something of a team tells its own user."""
    told = set()
    client = let("ben")
    for method, path in dict.fromkeys(probes(api_server)):
        if method == "GET" and passed(method, path, client.get(path)):
            told.add(re.sub(r"\?.*", "", path).split("/")[3])
    assert told >= {
        *(
            "first",
            "jobs",
            "runs",
            "run",
            "volumes",
            "version",
            "lineage",
            "compare",
            "rows",
            "version_files",
        ),
        *("deployments", "searches", "dags"),
    } | {"lines"}


@pytest.fixture(scope="module")
def service(home: EmbeddedHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A store service in front of the very store that the page reads."""
    with Service(tmp_path_factory.mktemp("service"), root=home.settings.store) as service:
        yield service


@pytest.fixture
def served(api_server: Any, service: Service) -> Iterator[Service]:
    """Have the page ask the service, with the token that is the page's own."""
    from muster.airflow.page.route import Opening, Site
    from muster.ext.page.answering import Answering

    page = page_of(api_server)
    before = page.state.opening
    with before.lent() as ours:
        place = ours.backend.place
    page.state.opening = Opening(
        lambda: Site(at := Served(service.client(token=page_token(service)), place), Answering(at))
    )
    yield service
    page.state.opening = before


TOKENS = "/muster/api/tokens"


def made_token(client: Client, **query: Any) -> dict[str, Any]:
    answer = client.post(TOKENS, params={"name": "laptop", **query})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return dict(answer.json())


def own_tokens(client: Client) -> list[dict[str, Any]]:
    return list(client.get(TOKENS).json()["tokens"])


def test_a_person_makes_a_token_with_the_rights_there_are_and_ends_it(
    let: Callable[[str], Client], made: None, served: Service
) -> None:
    ana, eve, ben, root = (let(name) for name in ("ana", "eve", "ben", "root"))
    rights = [each.get(TOKENS).json()["rights"] for each in (ana, eve, ben, root)]
    assert rights == [
        {"teams": ["vision"], "reads": True, "changes": True},
        {"teams": ["vision"], "reads": True, "changes": False},
        {"teams": ["speech"], "reads": True, "changes": True},
        {"teams": [], "reads": True, "changes": True},
    ]
    new = made_token(ben, days=7, changes=True)
    (shown,) = own_tokens(ben)
    assert (shown["name"], shown["teams"], shown["changes"], shown["used"]) == (
        "laptop",
        ["speech"],
        True,
        None,
    )
    assert new["token"] not in ben.get(TOKENS).text
    assert own_tokens(ana) == []
    theirs = served.client("ben", token=new["token"])
    assert theirs.volumes() == ["common/rows", "lines/model"]
    assert theirs.retire("lines/model@2", reason="by token").retired == "by token"
    assert theirs.reinstate("lines/model@2").retired is None
    assert [each.post(f"{TOKENS}/{new['id']}/end").status_code for each in (ana, eve)] == [404, 404]
    assert ben.post(f"{TOKENS}/{new['id']}/end").json()["ended_by"] == "ben"
    with pytest.raises(StoreError, match="was ended at"):
        theirs.volumes()


def test_a_token_never_has_more_than_its_person(
    let: Callable[[str], Client], made: None, served: Service
) -> None:
    eve = let("eve")
    assert "lets you change no team's Dags" in eve.post(TOKENS, params={"name": "x", "changes": True}).text
    mine = served.client("eve", token=made_token(eve)["token"])
    with pytest.raises(StoreError, match="does not change volume sight/model"):
        mine.pin("sight/model@1", reason="by token")
    everything = served.client("root", token=made_token(let("root"))["token"])
    assert {*everything.volumes()} >= {"lines/model", "sight/model", "common/rows"}
    assert "lines/model" not in mine.volumes()
    for wrong in ({"days": 91}, {"days": 0}, {"name": " "}, {"name": "x" * 90}):
        assert eve.post(TOKENS, params={"name": "x", **wrong}).status_code in (400, 422)
    bare = eve.post(TOKENS, params={"name": "x"}, headers={"x-muster": ""})
    assert bare.status_code == 403  # no other site's form makes one


def test_administrators_alone_see_and_end_those_of_others(
    let: Callable[[str], Client], made: None, served: Service
) -> None:
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    ana, root = let("ana"), let("root")
    new = made_token(ana, name="notebook")
    assert ana.get(TOKENS, params={"everyone": True}).status_code == 403
    assert new["id"] in {each["id"] for each in root.get(TOKENS, params={"everyone": True}).json()["tokens"]}
    assert root.post(f"{TOKENS}/{new['id']}/end").json()["user"] == "ana"
    with create_session() as session:
        rows = session.query(Log).filter(Log.event.like("muster_token_%")).all()
        notes = [(row.event, row.owner, json.loads(row.extra)) for row in rows]
    about = {"token": new["id"], "name": "notebook"}
    assert ("muster_token_make", "ana", about | {"days": "30", "changes": "False"}) in notes
    assert ("muster_token_end", "root", about | {"user": "ana"}) in notes
    assert new["token"] not in json.dumps(notes)


def test_a_viewer_of_some_dags_of_a_team_has_no_token_for_all(
    let: Callable[[str], Client], made: None, served: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with FAB's roles by Dag: where one Dag of the team is out of sight, so is a token."""
    from airflow.api_fastapi.app import get_auth_manager

    allowed = {"seeing"}

    def may(*, details: Any, **_: Any) -> bool:
        return details is not None and details.id in allowed

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", may)
    ana = let("ana")
    assert ana.get(TOKENS).json()["rights"]["teams"] == ["vision"]
    allowed = {"hearing"}
    assert ana.get(TOKENS).json()["rights"]["teams"] == ["speech"]
    allowed = set()
    refused = ana.post(TOKENS, params={"name": "x"})
    assert (refused.status_code, "lets you see no team's Dags as a whole" in refused.text) == (400, True)


def test_a_store_without_a_service_has_no_tokens(let: Callable[[str], Client], made: None) -> None:
    assert let("ana").get(TOKENS).json()["tokens"] is None
    assert let("ana").post(TOKENS, params={"name": "x"}).status_code == 400


def test_each_sees_and_changes_its_own(let: Callable[[str], Client], made: None) -> None:
    ana, eve, ben, root = (let(name) for name in ("ana", "eve", "ben", "root"))
    seen = {
        user: {each["volume"] for each in client.get("/muster/api/volumes").json()["volumes"]}
        & {"sight/model", "lines/model", "common/rows"}
        for user, client in (("ana", ana), ("eve", eve), ("ben", ben), ("root", root))
    }
    assert seen["ana"] == seen["eve"] == {"sight/model", "common/rows"}
    assert seen["ben"] == {"lines/model", "common/rows"}
    assert seen["root"] == {"lines/model", "common/rows", "sight/model"}
    pin = "/muster/api/version/pin?reason=tried&address="
    answers = [
        (c, v, c.post(pin + v).status_code)
        for c, v in product((ana, eve, ben), ("sight/model@1", "common/rows@1"))
    ]
    assert [code for _, _, code in answers] == [200, 403, 403, 403, 403, 200]
    assert ben.get("/muster/api/deployments/line").json()["may"] == {"change": True}
    assert [len(c.get("/muster/api/deployments").json()["deployments"]) for c in (ana, eve, ben)] == [0, 0, 1]


def test_a_dag_that_two_teams_claim_is_shown_to_administrators_alone(
    let: Callable[[str], Client], made: None
) -> None:
    from airflow.models.dag import DagTag
    from airflow.utils.session import create_session

    second = DagTag(dag_id="seeing", name="team:speech")
    with create_session() as session:
        session.add(second)
    try:
        codes = [let(user).get("/muster/api/jobs/sight-1").status_code for user in ("ana", "ben", "root")]
    finally:
        with create_session() as session:
            session.delete(session.merge(second))
    assert codes == [403, 403, 200]


def test_a_dag_is_of_the_team_of_its_bundle(
    let: Callable[[str], Client], made: None, home: EmbeddedHome
) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    store = FolderStore(home.settings.store)
    make_job(store, "bundled-1", {"a.csv": b"a\n1\n"}, dag_id="bundled", volume="lines/bundled")
    bundle, dag = DagBundleModel(name="hers"), DagModel(dag_id="bundled", bundle_name="hers", is_stale=False)

    def codes() -> list[int]:
        return [let(user).get("/muster/api/jobs/bundled-1").status_code for user in ("ana", "ben", "root")]

    with create_session() as session:
        session.add(bundle)
    with create_session() as session:
        session.add(dag)
    try:
        assert codes() == [200, 200, 200]
        with create_session() as session:
            session.merge(bundle).teams = [session.merge(Team(name="speech"))]
        assert codes() == [403, 200, 200]
    finally:
        for row in (dag, bundle):
            with create_session() as session:
                session.delete(session.merge(row))


BODY = """
JobOperator(task_id="first", image="python", command=["touch", "{outputs.out}/a"], outputs={"out": "sight/tried"})
JobOperator(task_id="second", image="python", command=["true"], outputs={"out": "%s"}%s)
"""


class TestRuns:
    @pytest.fixture(autouse=True)
    def of_a_folder(self, home: EmbeddedHome, dag_folder: Path) -> Iterator[None]:
        """Have the test's folder be team vision's, by the project's own document."""
        file, own = home.dags.parent / "teams.toml", f'[teams.vision]\nfolder = "{dag_folder.name}"'
        file.write_text(TEAMS.replace("[teams.vision]", own))
        yield
        file.unlink()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (("lines/tried", ""), "writes volume lines/tried, which is of team 'speech'"),
            (("sight/b", ", queue='speech'"), "names the queue 'speech', which is of team 'speech'"),
            (("sight/b", ", secrets={'A': 'environment:SPEECH'}"), "takes the secret 'environment:SPEECH'"),
        ],
    )
    def test_a_run_that_names_what_is_another_teams_submits_nothing(
        self,
        run: Any,
        write_dag: Any,
        store: FolderStore,
        seen: Seen,
        monkeypatch: pytest.MonkeyPatch,
        more: tuple[str, str],
        said: str,
    ) -> None:
        write_dag(BODY % more)
        before = {*store.ledger.jobs()}
        monkeypatch.setenv("SPEECH", "a secret")
        with pytest.raises(SpecError) as refused:
            run()
        assert said in str(refused.value)
        assert seen.started == []
        assert {*store.ledger.jobs()} == before

    @pytest.mark.parametrize(
        ("task", "said"),
        [
            (
                "DeployOperator(task_id='t', name='lines', model='sight/a', smoke=None, log=RequestLog(share=1.0))",
                "writes volume lines/predictions, which is of team 'speech'",
            ),
            (
                """SearchOperator(
    task_id="t", image="python", entrypoint="x.steps:f", outputs={"m": "sight/m"}, space={"x": uniform(0, 1)},
    metric="h", trials=1, rungs=(1,), resource="step", results="lines/table",
)""",
                "writes volume lines/table, which is of team 'speech'",
            ),
        ],
    )
    def test_what_no_job_writes_is_refused_where_the_task_runs(
        self, run: Any, write_dag: Any, dag_folder: Path, task: str, said: str
    ) -> None:
        steps = "def f(m, *, x):\n    return {'h': x}\n"
        words = "from muster.airflow import RequestLog, SearchOperator, uniform\n"
        write_dag(words + task.replace("x.steps", f"{dag_folder.name}.steps"), steps=steps)
        (stage,) = run().stages
        assert (stage.state, said in stage.message) == ("failed", True), stage.message

    def test_what_only_the_run_tells_is_judged_by_the_run(
        self, run: Any, write_dag: Any, dag_folder: Path
    ) -> None:
        body = """
JobOperator(task_id="t", image="python", command=["touch", "{outputs.out}/a"], outputs={"out": "{{ params.volume }}"})
"""
        write_dag(body, params="{'volume': 'sight/tried'}")
        assert run().succeeded
        (stage,) = run({"volume": "lines/tried"}).stages
        assert "writes volume lines/tried, which is of team 'speech'" in stage.message

    def test_a_shared_version_is_not_retired_by_a_reader(
        self, run: Any, write_dag: Any, dag_folder: Path
    ) -> None:
        (dag_folder / "expectations.json").write_text(
            '{"expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}]}'
        )
        write_dag("ValidateOperator(task_id='t', volume='common/rows@1', result_volume='sight/checked')")
        (stage,) = run().stages
        assert "retire_failed: a mark writes volume common/rows, which is of no team" in stage.message

    def test_a_plan_tells_nothing_of_another_teams(
        self, write_dag: Any, dag_folder: Path, home: EmbeddedHome, backend: Backend, made: None
    ) -> None:
        from muster.airflow.embedded.load import parse
        from muster.ext.plan.planner import Planner

        write_dag("""
JobOperator(task_id="a", image="python", command=["true"], inputs={"x": "lines/model"}, outputs={"out": "sight/a"})
GateOperator(task_id="b", volume="lines/model", require={"auc": "> 0"})
JobOperator(task_id="c", image="python", command=["true"], outputs={"out": "sight/a"})
""")
        dag = parse(dag_folder.name, home.dags)
        stages = {each.task_id: each for each in Planner(dag, {}, backend, home.settings).plan().stages}
        assert [stages[each].does.value for each in "abc"] == ["refused", "refused", "runs"]
        assert all(
            "reads volume lines/model" in stages[each].why and not stages[each].inputs for each in "ab"
        )

    def test_trials_are_counted_for_the_team(
        self, run: Any, write_dag: Any, dag_folder: Path, store: FolderStore
    ) -> None:
        steps = "def f(m, *, x):\n    print('muster: h=1 step=1', flush=True)\n    (m / 'a').touch()\n    return {'h': x}\n"
        write_dag(
            "from muster.airflow import SearchOperator, uniform\n"
            f"SearchOperator(task_id='t', image='python', entrypoint='{dag_folder.name}.steps:f', outputs={{'m': 'sight/m'}}, "
            "space={'x': uniform(0, 1)}, metric='h', trials=1, rungs=(1,), resource='step', resources=SMALL)",
            steps=steps,
        )
        before = {*store.ledger.jobs()}
        result = run()
        assert result.succeeded, result.stages[0].message
        assert {store.ledger.tally(job_id).team for job_id in {*store.ledger.jobs()} - before} == {"vision"}

    @pytest.mark.parametrize(
        ("task", "said"),
        [
            (
                "DeployOperator(task_id='t', name='sees', model='lines/model@1', smoke=None)",
                "task t reads volume lines/model, which is of team 'speech'",
            ),
            (
                "DeployOperator(task_id='t', name='sees', model='sight/a@1', smoke=SmokeRows('lines/model@1', most=2))",
                "task t reads volume lines/model, which is of team 'speech'",
            ),
            (
                "DeployOperator(task_id='t', name='line', model='sight/a@1', smoke=None)",
                "deployment line serves what is not of team 'vision'",
            ),
            (
                "RollbackOperator(task_id='t', name='line')",
                "deployment line serves what is not of team 'vision'",
            ),
        ],
    )
    def test_a_release_of_what_is_another_teams_begins_nothing(
        self,
        run: Any,
        write_dag: Any,
        store: FolderStore,
        monkeypatch: pytest.MonkeyPatch,
        task: str,
        said: str,
    ) -> None:
        world = World()
        world.begin_canary(by="task")
        monkeypatch.setattr(Backend, "deployments", property(lambda _: world))
        before = [*world.history], world.deployment("line"), {*store.ledger.jobs()}
        write_dag(f"from muster.airflow import RollbackOperator, SmokeRows\n{task}")
        (stage,) = run().stages
        assert (stage.state, said in stage.message) == ("failed", True), stage.message
        assert ([*world.history], world.deployment("line"), {*store.ledger.jobs()}) == before

    def test_a_run_of_the_team_has_its_queue_and_is_counted_for_it(
        self, run: Any, write_dag: Any, store: FolderStore
    ) -> None:
        write_dag(BODY.splitlines()[1])
        before = {*store.ledger.jobs()}
        assert run().succeeded
        (job_id,) = {*store.ledger.jobs()} - before
        assert (store.ledger.spec(job_id).queue, store.ledger.tally(job_id).team) == ("vision", "vision")


class TestDeployments:
    """`line` serves what is of team speech."""

    @pytest.fixture
    def task(self, home: EmbeddedHome, teams: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("AIRFLOW__MUSTER__TEAMS", str(teams))  # a run before drops what is set of Airflow
        world = World()
        world.begin_canary(by="task")
        dag = SimpleNamespace(dag_id="seeing", tags=("team:vision",))
        context = {"dag": dag, "task_state_store": Notes()}
        backend = SimpleNamespace(deployments=world, store=None)
        return SimpleNamespace(
            backend=backend, context=context, origin=Origin(), max_tries=2, retries=2, owner="x"
        )

    def test_another_teams_is_neither_changed_nor_asked(
        self, task: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from muster.airflow import (
            DeployOperator,
            DriftOperator,
            GateOperator,
            RollbackOperator,
            ScoreOperator,
        )
        from muster.airflow.attempts.run import TaskRun

        monkeypatch.setattr(TaskRun, "of", lambda *_: task)
        before = task.backend.deployments.deployment("line")
        deploy = DeployOperator(task_id="a", name="line", model="sight/model@1", smoke=None)
        back = RollbackOperator(task_id="b", name="line")
        gate = GateOperator(
            task_id="c", volume="sight/model", not_worse_than="champion", metric="auc", deployment="line"
        )
        score = ScoreOperator(
            task_id="d", model="deployment://line", rows="sight/rows", outputs="sight/scores"
        )
        drift = DriftOperator(task_id="e", deployment="line", report_volume="sight/drift")
        for attempt in (
            lambda: deploy.begin_release(task, never),
            lambda: back.perform(task.context),
            lambda: gate.perform(task.context),
            lambda: score.perform(task.context),
            lambda: drift.perform(task.context),
        ):
            with pytest.raises(SpecError, match="deployment line serves what is not of team 'vision'"):
                attempt()
        assert task.backend.deployments.deployment("line") == before

    def test_a_team_releases_its_own_models(self, task: Any) -> None:
        from muster.airflow import DeployOperator

        given = {"name": "new", "smoke": None}
        theirs = DeployOperator(task_id="a", model="common/model@1", **given)
        with pytest.raises(SpecError, match="deployment new would serve common/model, which is not of team"):
            theirs.begin_release(task, never)
        with pytest.raises(NotImplementedError):  # what is its own goes on
            DeployOperator(task_id="b", model="sight/model@1", **given).begin_release(task, never)


def never() -> Any:
    raise NotImplementedError


@pytest.mark.nightly
def test_a_run_of_a_bundles_dag_is_its_teams(tmp_path: Path) -> None:
    """As Airflow's own configuration and command say it: neither a tag nor a folder does."""
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundle = {"name": "dags-folder", "classpath": local, "kwargs": {}, "team_name": "speech"}
    with Site(tmp_path) as site:
        (site.folder / "teams.toml").write_text(TEAMS)
        for dag, volume in (("hears", "lines"), ("peeks", "sight")):
            site.write(dag, OF_A_BUNDLE.replace("NAME", dag).replace("VOLUME", volume))
        site.set("core", multi_team=True)
        site.up()
        site.airflow_command("teams", "create", "speech")
        site.stop()
        site.set("dag_processor", dag_bundle_config_list=json.dumps([bundle]))
        site.up()
        ended = {dag: site.wait(dag, site.trigger(dag)) for dag in ("hears", "peeks")}
        assert ended == {"hears": "success", "peeks": "failed"}
        (job,) = site.jobs()
        ledger = FolderStore(site.home / "store").ledger
        assert (ledger.spec(job).queue, ledger.tally(job).team) == ("speech", "speech")


OF_A_BUNDLE = """
from airflow.sdk import dag
from muster.airflow import JobOperator

@dag("NAME", schedule=None)
def write():
    JobOperator(task_id="write", image="python", command=["touch", "{outputs.out}/a"], outputs={"out": "VOLUME/rows"})

write()
"""

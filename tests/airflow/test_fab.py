"""The page under FAB's auth manager, whose roles decide. The lock for Airflow 3.4 has it: ``make test-airflow-34``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import product

import httpx
import pytest
from tests.site import USER, Site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("airflow.providers.fab") is None, reason="FAB is in the lock for Airflow 3.4 alone"
    ),
]
ROLES = ("Admin", "Op", "User", "Viewer")
PAGE = "/muster/"
DAG = """
from airflow.sdk import dag
from muster.airflow import JobOperator

@dag("NAME", schedule=None, tags=[])
def write():
    JobOperator(task_id="write", image="python", command=["touch", "{outputs.out}/file"], outputs={"out": "VOLUME/out"})

write()
"""
TEAMS = """
[teams.vision]
queue = "vision"
volumes = "sight"
[teams.speech]
queue = "speech"
volumes = "sound"
"""
MEMBERS = {"ana": ("vision", "sees", "sight"), "ben": ("speech", "hears", "sound")}
"""Each user's team, whose role has the user's name, with its Dag and the prefix of its volumes."""
READS = (
    "",
    "api/first",
    "api/jobs",
    "api/jobs/{job}",
    "api/jobs/{job}/log",
    "api/jobs/{job}/whole.log",
    "api/jobs/{job}/series",
    "api/runs",
    "api/volumes",
    "api/volumes/{volume}/out",
    "api/version?address={volume}/out@1",
    "api/version_files?address={volume}/out@1",
    "api/lineage?address={volume}/out@1",
    "api/deployments",
    "api/queue",
    "api/images",
    "api/upkeep",
    "api/searches",
    "api/dags",
    "api/usage",
    "api/tokens",
)
CHANGES = (
    "api/jobs/{job}/cancel",
    "api/version/pin?address={volume}/out@1&reason=tried",
    "api/plan?dag={dag}",
)
OF_ONE = (*(each for each in READS if "{" in each), *CHANGES)
"""What asks for one job, version or Dag."""


class FabSite(Site):
    """An Airflow whose users are FAB's; each has its name as its password."""

    def password(self, user: str = USER) -> str:
        return user

    def log_in(self, user: str = USER) -> None:
        if user == USER:  # as a person does who sets FAB up
            self.airflow_command(
                *("users", "create", "--username", USER, "--password", USER, "--role", "Admin"),
                *("--email", "admin@example.org", "--firstname", "an", "--lastname", "admin"),
            )
        super().log_in(user)


def add_user(admin: httpx.Client, name: str, role: str) -> None:
    user = {"username": name, "password": name, "email": f"{name}@example.org"}
    named = {"first_name": "a", "last_name": name, "roles": [{"name": role}]}
    answer = admin.post("/auth/fab/v1/users", json=user | named)
    assert answer.status_code == 200, answer.text


def add_role(admin: httpx.Client, name: str, **actions: str) -> None:
    """Add a role: the resources of each action, with a comma between."""
    pairs = [(action, resource) for action, each in actions.items() for resource in each.split(", ")]
    asked = [{"action": {"name": action}, "resource": {"name": resource}} for action, resource in pairs]
    answer = admin.post("/auth/fab/v1/roles", json={"name": name, "actions": asked})
    assert answer.status_code == 200, answer.text


def add_member(admin: httpx.Client, user: str) -> None:
    """Add a user whose role may read and edit the Dag of the user's team alone."""
    entities, dag = "Task Instances, DAG Runs", MEMBERS[user][1]
    reads = f"Plugins, Assets, Task Logs, XComs, {entities}, DAG:{dag}"
    add_role(admin, user, can_read=reads, can_edit=f"{entities}, DAG:{dag}", can_create="DAG Runs")
    add_user(admin, user, user)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabSite]:
    with FabSite(tmp_path_factory.mktemp("fab")) as site:
        site.write("hello", written("hello", "hello"))
        for team, dag, prefix in MEMBERS.values():
            site.write(dag, written(dag, prefix, f"team:{team}"))
        site.set("core", auth_manager="airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager")
        site.set("fab", cache_ttl=0)  # else a role's new permissions hold 30 s later
        site.up()
        for role in ROLES[1:]:
            add_user(site.client, role.lower(), role)
        run = site.trigger("hello")
        assert site.wait("hello", run) == "success"
        yield site


def test_the_page_is_open_to_the_roles_that_may_read_plugins(site: FabSite) -> None:
    for role in ("Admin", "Op"):
        assert set(codes(site.url, role, READS, of=hello(site)).values()) == {200}
        assert 403 not in codes(site.url, role, CHANGES, of=hello(site)).values()
    for role in ("User", "Viewer"):
        assert set(codes(site.url, role, [*READS, *CHANGES], of=hello(site)).values()) == {403}
    with asking(site.url, "Viewer") as viewer:
        assert "'can read on Plugins'" in viewer.get(PAGE).text


def test_a_viewer_who_may_read_plugins_changes_nothing(site: FabSite) -> None:
    site.airflow_command(
        "roles", "add-perms", "User", "Viewer", "-r", "Plugins", "-a", "can_read", "menu_access"
    )
    for role in ("User", "Viewer"):
        assert set(codes(site.url, role, READS, of=hello(site)).values()) == {200}
    assert 403 not in codes(site.url, "User", CHANGES, of=hello(site)).values()
    assert set(codes(site.url, "Viewer", CHANGES, of=hello(site)).values()) == {403}


@pytest.fixture(scope="module")
def teams(site: FabSite) -> Iterator[dict[str, str]]:
    """Two teams, with a user and a job of a Dag each, which alone the user's role may read and edit; give the jobs, by user."""
    runs = {dag: site.trigger(dag) for _, dag, _ in MEMBERS.values()}
    assert {site.wait(dag, run) for dag, run in runs.items()} == {"success"}
    for user in MEMBERS:
        add_member(site.client, user)
    file = site.folder / "teams.toml"
    file.write_text(TEAMS)
    yield {user: job_of(site, dag) for user, (_, dag, _) in MEMBERS.items()}
    file.unlink()


def test_a_user_of_a_teams_dag_has_what_is_the_teams(site: FabSite, teams: dict[str, str]) -> None:
    """What the role may do to one of its Dags; users with rights to all Dags have all teams'."""
    for user, (_, dag, prefix) in MEMBERS.items():
        (other,) = {*MEMBERS} - {user}
        _, other_dag, other_prefix = MEMBERS[other]
        with asking(site.url, user) as client:
            listed = client.get(f"{PAGE}api/jobs").text + client.get(f"{PAGE}api/volumes").text
            assert [each in listed for each in (teams[user], f"{prefix}/out")] == [True, True]
            assert not [each for each in (other, other_dag, f"{other_prefix}/") if each in listed]
        own = codes(site.url, user, [*READS, *CHANGES], of=(teams[user], dag, prefix))
        assert {code for code in own.values() if code >= 400} <= {409}, own
        theirs = codes(site.url, user, OF_ONE, of=(teams[other], other_dag, other_prefix))
        assert {*theirs.values()} == {403}, theirs
    for role, user in product(("Op", "Admin"), MEMBERS):
        _, dag, prefix = MEMBERS[user]
        assert {*codes(site.url, role, READS, of=(teams[user], dag, prefix)).values()} == {200}


def test_a_token_is_for_who_sees_all_dags_of_a_team(site: FabSite, teams: dict[str, str]) -> None:
    def rights(user: str) -> tuple[list[str], bool, bool, bool]:
        with asking(site.url, user) as client:
            told = client.get(f"{PAGE}api/tokens").json()
        return (
            told["rights"]["teams"],
            *(told["rights"][each] for each in ("reads", "changes")),
            told["may"]["everyone"],
        )

    assert [rights(user) for user in MEMBERS] == [
        (["vision"], True, True, False),
        (["speech"], True, True, False),
    ]
    assert [rights(role) for role in ("Op", "Admin")] == [([], True, True, True)] * 2
    assert [rights(role) for role in ("User", "Viewer")] == [
        ([], True, True, False),
        ([], True, False, False),
    ]
    some = "Plugins, Assets, Task Logs, XComs, Task Instances, DAG:hello"
    add_role(site.client, "sam", can_read=some, can_edit="Task Instances, DAG:hello")
    add_user(site.client, "sam", "sam")
    assert rights("sam") == ([], False, False, False)
    (site.folder / "teams.toml").rename(site.folder / "away.toml")
    try:  # and of a site without teams only who sees every Dag
        assert rights("sam") == ([], False, False, False)
        assert rights("Viewer") == ([], True, False, False)
    finally:
        (site.folder / "away.toml").rename(site.folder / "teams.toml")


def written(dag: str, volume: str, *tags: str) -> str:
    return DAG.replace("NAME", dag).replace("VOLUME", volume).replace("[]", repr([*tags]))


def job_of(site: FabSite, dag: str) -> str:
    (job,) = [each for each in site.jobs() if each.startswith(f"{dag}-")]
    return job


def hello(site: FabSite) -> tuple[str, str, str]:
    """The job of the Dag that is no team's, its Dag and its volume."""
    return job_of(site, "hello"), "hello", "hello"


def asking(url: str, role: str) -> httpx.Client:
    """Return a client that asks as a user of one role does from the page."""
    user = {"username": role.lower(), "password": role.lower()}
    token = httpx.post(f"{url}/auth/token", json=user, timeout=60, trust_env=False).json()["access_token"]
    headers = {"Authorization": f"Bearer {token}", "x-muster": "1"}
    return httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers)


def codes(url: str, role: str, routes: Iterable[str], *, of: tuple[str, str, str]) -> dict[str, int]:
    """Return the page's status codes for a user of one role. :param of: a job, its Dag and its volume."""
    job, dag, volume = of
    found = {}
    with asking(url, role) as client:
        for route in routes:
            path = PAGE + route.format(job=job, dag=dag, volume=volume)
            answer = client.post(path) if route in CHANGES else client.get(path)
            found[route] = answer.status_code
    return found

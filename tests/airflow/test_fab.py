"""The page under FAB's auth manager, whose roles decide. The lock for Airflow 3.4 has it: ``make test-airflow-34``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

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

@dag(schedule=None)
def hello():
    JobOperator(task_id="write", image="python", command=["touch", "{outputs.out}/file"], outputs={"out": "hello/out"})

hello()
"""
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
    "api/volumes/hello/out",
    "api/version?address=hello/out@1",
    "api/version_files?address=hello/out@1",
    "api/lineage?address=hello/out@1",
    "api/deployments",
    "api/queue",
    "api/images",
    "api/upkeep",
    "api/searches",
    "api/dags",
    "api/usage",
)
CHANGES = (
    "api/jobs/{job}/cancel",
    "api/version/pin?address=hello/out@1&reason=tried",
    "api/plan?dag=hello",
)


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabSite]:
    with FabSite(tmp_path_factory.mktemp("fab")) as site:
        site.write("hello", DAG)
        site.set("core", auth_manager="airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager")
        site.set("fab", cache_ttl=0)  # else a role's new permissions hold 30 s later
        site.up()
        for role in ROLES[1:]:
            name = role.lower()
            user = {"username": name, "password": name, "email": f"{name}@example.org"}
            named = {"first_name": "a", "last_name": name, "roles": [{"name": role}]}
            answer = site.client.post("/auth/fab/v1/users", json=user | named)
            assert answer.status_code == 200, answer.text
        run = site.trigger("hello")
        assert site.wait("hello", run) == "success"
        yield site


def test_the_page_is_open_to_the_roles_that_may_read_plugins(site: FabSite) -> None:
    for role in ("Admin", "Op"):
        assert set(codes(site, role, READS).values()) == {200}
        assert 403 not in codes(site, role, CHANGES).values()
    for role in ("User", "Viewer"):
        assert set(codes(site, role, [*READS, *CHANGES]).values()) == {403}
    with asking(site, "Viewer") as viewer:
        assert "'can read on Plugins'" in viewer.get(PAGE).text


def test_a_viewer_who_may_read_plugins_changes_nothing(site: FabSite) -> None:
    site.airflow_command(
        "roles", "add-perms", "User", "Viewer", "-r", "Plugins", "-a", "can_read", "menu_access"
    )
    for role in ("User", "Viewer"):
        assert set(codes(site, role, READS).values()) == {200}
    assert 403 not in codes(site, "User", CHANGES).values()
    assert set(codes(site, "Viewer", CHANGES).values()) == {403}


def asking(site: FabSite, role: str) -> httpx.Client:
    """Return a client that asks as a user of one role does from the page."""
    user = {"username": role.lower(), "password": role.lower()}
    token = httpx.post(f"{site.url}/auth/token", json=user, timeout=60, trust_env=False).json()[
        "access_token"
    ]
    headers = {"Authorization": f"Bearer {token}", "x-muster": "1"}
    return httpx.Client(base_url=site.url, timeout=60, trust_env=False, headers=headers)


def codes(site: FabSite, role: str, routes: Iterable[str]) -> dict[str, int]:
    """Return the page's status codes for a user of one role."""
    (job,) = site.jobs()
    found = {}
    with asking(site, role) as client:
        for route in routes:
            path = PAGE + route.format(job=job)
            answer = client.post(path) if route in CHANGES else client.get(path)
            found[route] = answer.status_code
    return found

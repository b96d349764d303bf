"""A person makes a token on the page, uses the store with it from a command, and ends it, all of it in a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.airflow.test_connection import KUBECONFIG
from tests.browser import person
from tests.e2e.author import MUSTER
from tests.site import Site
from tests.unit.volumes.service.process import Service

from muster.volumes.service.tokens import TokenKind, operator_token

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service")) as service:
        service.client().add("sight/model", service.key)
        yield service


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, service: Service) -> Iterator[Site]:
    """An Airflow whose page asks the service, with the page's own token."""
    page = operator_token(service.keys, lifetime_seconds=3600, kind=TokenKind.PAGE)
    ours = {"claim": "muster-store", "store_url": service.url}
    extras = {"kube_config": KUBECONFIG, "namespace": "team-a", "muster": ours}
    connection = {"conn_type": "kubernetes", "password": page, "extra": extras}
    with Site(tmp_path_factory.mktemp("site"), AIRFLOW_CONN_GPUS=json.dumps(connection)) as site:
        site.set("muster", connection="gpus", instance="test")
        site.up()
        yield site


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    context = person.log_in(browser, site)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert wrong == []


def typed(folder: Path, service: Service, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command, or Python, on a laptop that knows the store's address and the token alone."""
    (folder / "token").write_text(token)
    (folder / "cluster.toml").write_text(
        f'namespace = "team-a"\nclaim = "muster-store"\nstore_url = "{service.url}"\ntoken_file = "token"\n'
    )
    named = {"HOME": str(folder), "MUSTER_CLUSTER": str(folder / "cluster.toml"), "PATH": os.environ["PATH"]}
    return subprocess.run(words, env=named, cwd=folder, capture_output=True, text=True, check=False)


def test_a_token_is_made_used_and_ended(page: Page, site: Site, service: Service, tmp_path: Path) -> None:
    page.goto(f"{site.url}/plugin/muster/muster/#/tokens")
    shown = person.frame(page)
    expect(shown.get_by_text("No token was made yet.")).to_be_visible()
    shown.get_by_role("button", name="Make a token").click()
    expect(shown.get_by_role("alert")).to_contain_text("name of a token is ''")
    shown.get_by_label("Name").fill("laptop <b>")
    shown.get_by_label("may").select_option("read and change")
    shown.get_by_label("for", exact=True).select_option("7 days")
    shown.get_by_role("button", name="Make a token").click()
    secret = shown.locator(".secret")
    expect(secret).to_be_focused()
    token = secret.inner_text()
    shown.get_by_role("button", name="copy").click()
    expect(shown.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token
    person.keep(page, "token.png")

    put = typed(tmp_path, service, token, str(MUSTER), "volumes", "put", "token", "sight/put")
    assert (put.returncode, put.stdout) == (0, "volume://sight/put@1\n"), put.stderr
    code = "import muster; print((muster.version('sight/model').path).is_dir())"
    assert typed(tmp_path, service, token, sys.executable, "-c", code).stdout == "True\n"

    page.reload()
    row = shown.get_by_role("row", name="laptop <b>")
    expect(row).to_contain_text("read and change")
    expect(row).to_contain_text("ago")
    expect(row).not_to_contain_text("never")  # it was used
    expect(shown.locator(".secret")).to_have_count(0)
    assert token not in page.content() + shown.locator("body").inner_html()
    row.get_by_role("button", name="End").click()
    row.get_by_role("button", name="end it").click()
    expect(row).to_contain_text("by admin")
    refused = typed(tmp_path, service, token, str(MUSTER), "volumes", "ls")
    assert refused.returncode == 1
    assert "the token 'laptop <b>' was ended at" in refused.stderr
    assert service.client().volumes() == ["sight/model", "sight/put"]
    logs = "".join(each.read_text(errors="replace") for each in site.home.rglob("*.log"))
    assert token not in logs + site.log.read_text()
    assert token.partition(".")[2] not in logs


def test_an_administrator_ends_anothers(page: Page, site: Site, service: Service) -> None:
    from muster.volumes.service.persons import PersonRights

    service.client().make_token(
        "ben", token_name="old laptop", lifetime_seconds=60, rights=PersonRights(reads=("",))
    )
    page.goto(f"{site.url}/plugin/muster/muster/#/tokens")
    shown = person.frame(page)
    expect(shown.get_by_role("heading", name="Make one")).to_be_visible()
    expect(shown.get_by_text("old laptop")).to_have_count(0)
    shown.get_by_role("link", name="everyone's").click()
    row = shown.get_by_role("row", name="ben old laptop")
    row.get_by_role("button", name="End").click()
    row.get_by_role("button", name="end it").click()
    expect(row).to_contain_text("by admin")

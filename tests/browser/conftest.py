"""A browser with a person's session in it, and a whole Airflow to look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page
from tests.airflow.careful import careful
from tests.browser import person, small
from tests.site import Site

BROKEN = {
    "dag": """
        from airflow.sdk import dag
        from muster.airflow import GangOperator, Resources

        @dag(schedule=None)
        def broken():
            GangOperator(
                task_id="train", image="python", entrypoint="broken.train:train", replicas=2,
                resources=Resources(memory_gib=0.5),
            )

        broken()
    """,
    "train": """
        import os

        def train() -> None:
            print("reading rows")
            if os.environ["RANK"] == "1":
                raise ValueError("no rows for 2013-02 <b>")
    """,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of this module only: while it is open no other test of this process could start an event loop."""
    with person.browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        small.write(site)
        site.write("broken", BROKEN["dag"], train=BROKEN["train"])
        site.write("careful", careful(small.NAME))
        site.up()
        yield site


@pytest.fixture(scope="module")
def session(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    """Logged in, as a person does it."""
    context = person.log_in(browser, site)
    yield context
    context.close()


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """What a page has written to its console as an error."""
    return []


@pytest.fixture(scope="module")
def tab(session: BrowserContext, complaints: list[str]) -> Page:
    """One for all tests: a new one would have Airflow's page compiled again."""
    page = session.new_page()

    def note(said: ConsoleMessage) -> None:
        where = f"{said.location['url']} {said.text}"
        # a user's document may try what its sandbox forbids
        if said.type == "error" and "/muster/" in where and "/muster/files/" not in where:
            complaints.append(where)

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page


@pytest.fixture
def page(tab: Page, complaints: list[str]) -> Iterator[Page]:
    """A tab. What muster's own page writes to its console as an error fails the test."""
    complaints.clear()
    yield tab
    tab.goto("about:blank")
    assert complaints == []

"""A person before Airflow's pages: a browser, a session, and what there is to see of a canary."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, expect
from tests.browser import chromium
from tests.site import USER, Site


@contextmanager
def browser() -> Iterator[Browser]:
    """Have a browser; where none can be had the test is left out, or fails if that is asked for."""
    try:
        found = chromium.find()
    except chromium.NoChromium as error:
        if os.environ.get("MUSTER_REQUIRE_BROWSER") == "1":
            raise
        pytest.skip(str(error))
    expect.set_options(timeout=chromium.PATIENCE)
    with found.browser() as browser:
        yield browser


class Visited(Protocol):
    """An Airflow that a person can log in to."""

    url: str

    def password(self) -> str: ...


def log_in(browser: Browser, site: Visited) -> BrowserContext:
    """Begin a session at an Airflow."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(chromium.PATIENCE)
    page = context.new_page()
    page.goto(site.url)
    page.get_by_label("Username").fill(USER)
    page.locator("input[type=password]").fill(site.password())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Muster", exact=True).wait_for()
    page.close()
    return context


def frame(page: Page) -> FrameLocator:
    """Muster's page inside Airflow's."""
    return page.frame_locator("iframe")


def see_canary(page: Page, site: Site, deployment: str, *, says: str, name: str) -> None:
    """Open a deployment's page while users ask two versions of it, and keep what is seen.

    :param says: what is under way, in the page's words.
    """
    page.goto(f"{site.url}/plugin/muster/muster/#/deployments/{deployment}")
    shown = frame(page)
    expect(shown.locator("main")).to_contain_text(says)
    expect(shown.locator("svg.shares rect.coming")).to_have_count(1)
    lately = shown.get_by_role("table", name="What was answered lately")
    expect(lately.get_by_role("row")).to_have_count(3)  # both versions, below the head
    keep(page, name)


def keep(page: Page, name: str, *, full_page: bool = False) -> None:
    """Draw what a page shows into the folder that MUSTER_SCREENSHOTS names; without that nothing is drawn, which costs."""
    folder = os.environ.get("MUSTER_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / name, full_page=full_page)

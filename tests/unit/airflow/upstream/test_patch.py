"""Other packages are changed only in the releases that this was tried with, and not at all where a person says so."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from muster.airflow.upstream import fields, imports, threads, versions
from muster.airflow.upstream.patch import Patch


def patch(*tried: str) -> Patch:
    return Patch("fastapi", tried, 1.0, "make routes later")


def test_it_is_made_with_the_releases_that_it_was_tried_with() -> None:
    found = version("fastapi")
    assert patch("0.1.", found).off == ""
    assert patch("0.1.", "9.").off == f"fastapi is {found}, and it was tried with 0.1.*, 9.*"


def test_a_variable_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_PATCHES", "off")
    assert patch(version("fastapi")).off == "MUSTER_PATCHES is off"


@pytest.mark.parametrize("module", [fields, imports, threads, versions])
def test_each_is_made_here_is_worth_its_lines_and_says_what_to_report(module: object) -> None:
    found: Patch = module.PATCH  # type: ignore[attr-defined]
    assert found.off == ""
    assert found.worth_seconds >= 0.3
    assert len(found.report.split()) > 8

"""Changes to other packages are made in these tests, also where the rest of the suite runs without them."""

from __future__ import annotations

import pytest

from muster.airflow.upstream import fields, imports, threads, versions


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_PATCHES", raising=False)
    for module in (fields, imports, threads, versions):
        monkeypatch.delitem(
            module.PATCH.__dict__, "off", raising=False
        )  # looked up once, perhaps by another test

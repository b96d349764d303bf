"""What a person at a terminal sees of what is logged to a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.ports import free_port

from muster.airflow.embedded.home import ABSENCES, Terminal
from muster.core.errors import Unavailable
from muster.volumes.service import connection


@pytest.fixture
def terminal() -> Iterator[None]:
    handler, logger = Terminal(logging.WARNING), logging.getLogger(ABSENCES)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.usefixtures("terminal")
def test_a_store_that_does_not_answer_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose store was gone printed nothing for minutes."""
    monkeypatch.setattr(connection, "SAID_AFTER_SECONDS", 0.0)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable):
        connection.Connection(url, token="t", patience_seconds=0.2).request("GET", "/v1")
    assert capsys.readouterr().err.startswith(f"[muster] the store service at {url} does not answer")

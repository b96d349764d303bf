"""``muster deployments``, with a backend that serves two revisions from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.job import Pinned

Run = Callable[..., Any]


def revision(number: int, state: RevisionState, **changes: Any) -> Revision:
    model = Pinned(address=f"volume://flights/model@{number}", digest="b3:" + f"{number}" * 64)
    return Revision(name=f"r{number}", model=model, state=state, since=1_800_000_000.0, **changes)


class Serving:
    """The half of a backend that is about deployments."""

    def __init__(self) -> None:
        revisions = (
            revision(3, RevisionState.REFUSED, reason="smoke 'noon': [red]probability[/red] is 1.4\x1b[2J"),
            revision(2, RevisionState.SERVING, percent=100),
        )
        self.known = {
            "flights": DeploymentStatus(
                name="flights", url="http://127.0.0.1:8081", ready=True, token="1", revisions=revisions
            )
        }

    def deployments(self) -> list[str]:
        return sorted(self.known)

    def deployment(self, name: str) -> DeploymentStatus:
        return self.known[name]

    def retire(self, name: str) -> None:
        del self.known[name]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    backend = Serving()
    monkeypatch.setattr("muster.cli.deployments.open_backend", lambda: backend)
    return backend


@pytest.mark.usefixtures("serving")
def test_ls_names_what_serves(muster: Run) -> None:
    _, row = muster("deployments", "ls").out.splitlines()
    assert row.split()[:3] == ["flights", "serving", "flights/model@2"]
    assert row.endswith("http://127.0.0.1:8081")
    (document,) = muster("deployments", "ls", "--json").json()
    assert document["ready"] is True


@pytest.mark.usefixtures("serving")
def test_show_says_why_a_revision_was_refused(muster: Run) -> None:
    out = muster("deployments", "show", "flights").out
    refused = next(line for line in out.splitlines() if "refused" in line)
    assert refused.split()[:2] == ["r3", "flights/model@3"]
    assert refused.endswith(r"smoke 'noon': [red]probability[/red] is 1.4\x1b[2J")
    assert muster("deployments", "show", "flights", "--json").json()["revisions"][1]["percent"] == 100


def test_retire_takes_it_away(muster: Run, serving: Serving) -> None:
    assert "no longer answers" in muster("deployments", "retire", "flights").err
    assert serving.known == {}
    assert "there are none yet" in muster("deployments", "retire", "flights").err


@pytest.mark.usefixtures("serving")
def test_an_unknown_name_says_what_there_is(muster: Run) -> None:
    answer = muster("deployments", "show", "flight")
    assert (answer.code, answer.out) == (1, "")
    assert "there is flights" in answer.err

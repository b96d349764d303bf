from __future__ import annotations

import io
import os
import pty
import sys

import pytest

from muster.airflow.embedded.result import Approval
from muster.cli.stages import Asking
from muster.core.errors import SpecError

SURE = Approval(task="sure", subject="Give it?", body="5 %\nhave it", options=("Approve", "Reject"))
SEVERAL = Approval(task="which", options=("a", "b", "c"), multiple=True)


def test_a_person_types_the_answer_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    person, terminal = pty.openpty()
    shown: list[str] = []
    asking = Asking(shown.append)
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert asking.possible
        assert asking(SURE) is None, "nobody waits for the person"
        os.write(person, b"perhaps\n")
        assert asking(SURE) is None
        os.write(person, b" reject\n")
        assert asking(SURE) == ("Reject",)
    os.close(person)
    assert shown == [
        "sure asks: Give it?",
        "5 %",
        "have it",
        "type Approve or Reject:",
        "'perhaps' is no answer to task sure: its options are Approve, Reject",
    ]


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert not Asking(print).possible


def test_several_options_stand_with_commas_between() -> None:
    assert SEVERAL.chosen("C, a") == ("c", "a")
    with pytest.raises(
        SpecError, match="'d,a' is no answer to task which: its options are a, b, c, one or several"
    ):
        SEVERAL.chosen("d,a")
    with pytest.raises(SpecError, match="'Approve, Reject' is no answer"):
        SURE.chosen("Approve, Reject")

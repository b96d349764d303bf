"""Ctrl-C at any moment of a run."""

from __future__ import annotations

import signal

import pytest

from muster.airflow.embedded.execution import Interruption


def test_ctrl_c_while_a_line_is_written_is_obeyed_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    def say(_: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    interruption = Interruption(say)
    with interruption.listening():
        signal.raise_signal(signal.SIGINT)
    assert interruption
    assert "stopping: the running jobs are ended" in capfd.readouterr().err

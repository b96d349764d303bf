"""In which order hours are committed, and what is said where the container that reads them has ended."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from muster.backends.kubernetes.collecting import SocketDecoder, in_turn
from muster.core.errors import BackendError
from muster.volumes.service.spools import SpooledHour


def test_no_deployment_waits_for_all_hours_of_another() -> None:
    def hours(*words: str) -> list[SpooledHour]:
        pairs = (word.split("/") for word in words)
        return [SpooledHour(deployment=name, hour=hour) for name, hour in pairs]

    given = hours("a/1", "a/2", "a/3", "m/2", "z/1", "z/3")
    assert list(in_turn(given)) == hours("a/1", "z/1", "m/2", "a/2", "z/3", "a/3")


def test_a_reader_that_has_ended_is_told_of_each_time(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(os.fspath(place))
        door.listen()
        decoder = SocketDecoder(place)
        door.accept()[0].close()
    for _ in range(3):
        with pytest.raises(BackendError, match="the container that reads them has ended"):
            decoder("collect", order={"spool": ["x" * 10_000]})
    decoder.close()

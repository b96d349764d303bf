"""In which order hours are committed, and what is said where the container that reads them has ended."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from muster.backends.kubernetes import collecting
from muster.backends.kubernetes.collecting import SocketDecoder, in_turn
from muster.backends.request_log import NotRetired
from muster.core.errors import BackendError
from muster.core.settings import Settings
from muster.volumes.service.spools import SpooledHour

if TYPE_CHECKING:
    from muster.backends.request_log import Decoder
    from muster.volumes.service.client import ServiceStore


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


def test_files_of_an_hour_go_though_old_hours_are_not_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def commit(self, name: str, **_: Any) -> None:
            raise NotRetired(f"the requests of {name} are committed, but the disk is full")

    dropped: list[SpooledHour] = []
    spools = SimpleNamespace(fetch=lambda *_: {"a": 1}, drop=lambda hour, _: dropped.append(hour))
    monkeypatch.setattr(collecting, "Predictions", Full)
    monkeypatch.setattr(collecting, "ServiceSpools", lambda _: spools)
    settings = replace(Settings.load(), home=tmp_path)
    cluster = collecting.ClusterCollecting(
        settings, cast("ServiceStore", SimpleNamespace(connection=None)), decoder=cast("Decoder", print)
    )
    hour = SpooledHour(deployment="flights", hour="2026-11-26T07")
    with pytest.raises(NotRetired):
        cluster.commit(hour)
    assert dropped == [hour]

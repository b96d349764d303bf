"""A mirror in another cluster's store service, and one whose pod is killed while it is sent to."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster import store
from tests.cluster.inside import layout
from tests.contract.mirror_kills import KilledMirrorContract
from tests.contract.mirrored import assert_restores
from tests.contract.test_mirrors import MirrorContract, Open, Served

from muster.ext.mirrors.copying import Copying
from muster.ext.mirrors.folder import FolderHome
from muster.volumes.folder import FolderStore
from muster.volumes.service.client import ServiceStore

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

UNIQUE = secrets.token_hex(3)  # the claim keeps what was stored, and this may run again
NUMBERS = itertools.count()


class TestClusterService(KilledMirrorContract, MirrorContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Open]:
        folder = f"mirror-{UNIQUE}-{next(NUMBERS)}"
        store.deploy(layout(), folder=folder)
        Served.root = layout().claim / folder
        with ExitStack() as stores:

            def opened() -> Served:
                client = ServiceStore(
                    store.URL, token=store.operator_token(layout()), cache=tmp_path / "cache"
                )
                stores.callback(client.close)
                return Served(client)

            yield opened
        store.remove(layout())

    @pytest.fixture
    def target(self, opened: Open, tmp_path: Path) -> tuple[str, ...]:
        return ("service", store.URL, store.operator_token(layout()), str(tmp_path / "sender"))

    def test_it_goes_on_after_the_pod_was_killed(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        told = list[str]()

        def kill_now_and_then(line: str) -> None:
            told.append(line)
            if len(told) in (1, 3):
                store.kill(layout())

        assert Copying(FolderHome(source), opened(), progress=kill_now_and_then).run().whole
        assert_restores(source, opened(), tmp_path / "restored")

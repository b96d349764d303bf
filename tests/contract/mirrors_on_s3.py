"""The contract of mirrors on an object store, run by test_mirrors_on_s3.py beside the packages that it needs."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem
from tests.contract.mirrored import facts, mirror, mirror_to, spread
from tests.contract.test_mirrors import MirrorContract

from muster.core.address import pinned
from muster.core.errors import StoreError
from muster.volumes import fsck
from muster.volumes.folder import FolderStore
from muster.volumes.mirrors.base import Home
from muster.volumes.mirrors.folder import FolderHome
from muster.volumes.mirrors.open_layout import OpenHome

_BUCKETS = itertools.count()
# Of a server without threads: those that talk to S3 do not outlive a fork.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.contract.mirrored", "s3fs"])
SECRET = "not-to-be-shown"
KILLS = 100


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """An S3 server in this process."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    yield {"endpoint_url": f"http://127.0.0.1:{port}", "key": "key", "secret": SECRET}
    server.stop()


class TestS3(MirrorContract):
    @pytest.fixture
    def opened(self, options: dict[str, Any]) -> Callable[[], Home]:
        bucket = f"mirrors-{next(_BUCKETS)}"
        S3FileSystem(**options).mkdir(bucket)
        return lambda: OpenHome(f"s3://{bucket}/muster", options)

    def test_a_bucket_that_is_not_there_is_named(self, source: FolderStore, options: dict[str, Any]) -> None:
        with pytest.raises(StoreError, match=r"at s3://nowhere/muster: The specified bucket does not exist"):
            mirror(FolderHome(source), OpenHome("s3://nowhere/muster", options))

    def test_a_server_that_is_away_is_named_and_no_secret(
        self, source: FolderStore, options: dict[str, Any]
    ) -> None:
        away = {**options, "endpoint_url": "http://127.0.0.1:9"}
        with pytest.raises(
            StoreError, match=r"s3://away/muster: Could not connect to the endpoint"
        ) as raised:
            mirror(FolderHome(source), OpenHome("s3://away/muster", away))
        assert SECRET not in str(raised.value)

    @pytest.mark.nightly
    def test_whenever_it_is_killed_the_store_comes_back(
        self, source: FolderStore, options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Killed again and again, and begun anew in another bucket once it is complete; then the store's folder is lost."""
        files, expected = S3FileSystem(**options), facts(source)

        def empty() -> str:
            bucket = f"killed-{next(_BUCKETS)}"
            files.mkdir(bucket)
            return f"s3://{bucket}/muster"

        seconds, kills, url = 0.0, 0, empty()
        while kills < KILLS:
            begun = time.monotonic()
            child = _FORKS.Process(target=mirror_to, args=(url, options, source.layout.root))
            child.start()
            child.join(spread(seconds) if seconds else None)
            child.kill()
            child.join()
            assert child.exitcode in (0, -signal.SIGKILL)
            kills += child.exitcode != 0
            assert_whole(OpenHome(url, options), files, url, expected)
            if child.exitcode == 0:
                seconds, url = seconds or time.monotonic() - begun, empty()
        assert mirror(FolderHome(source), OpenHome(url, options)).whole
        source.layout.root.rename(tmp_path / "lost")
        restored = FolderStore(source.layout.root)
        assert mirror(OpenHome(url, options), FolderHome(restored), adopt=True).whole
        assert facts(restored) == expected
        assert fsck.check(restored, deep=True).clean


def assert_whole(home: OpenHome, files: S3FileSystem, url: str, expected: dict[str, Any]) -> None:
    """What is visible in a mirror is whole."""
    for (volume, number), holding in home.holdings().items():
        version, record, data = expected[pinned(volume, number)]
        documents = home.documents((volume, number))
        assert (documents.digest, documents.origin) == (version.digest, record)
        if not holding.deleted:
            assert {path: files.cat_file(f"{url}/{volume}/{number}/data/{path}") for path in data} == data
    home.close()

"""The contract of mirrors on an object store, run by test_mirrors_on_s3.py beside the packages that it needs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem
from tests.contract.mirror_kills import KilledMirrorContract
from tests.contract.mirrored import assert_restores, bytes_of, damage, fill, mirror, put
from tests.contract.test_mirrors import MirrorContract
from tests.ingest.s3 import USER, WORD, ObjectStore

from muster.core.errors import StoreError
from muster.ext.mirrors import open_files
from muster.ext.mirrors.base import Home
from muster.ext.mirrors.delta import Stretch
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.objects import MOST_PARTS, ObjectsBelow
from muster.ext.mirrors.open_layout import OpenHome
from muster.volumes.folder import FolderStore

_BUCKETS = itertools.count()
SECRET = "not-to-be-shown"


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have smaller files count as large."""
    monkeypatch.setattr(open_files, "LEAST_PATCHED_BYTES", LEAST_BYTES)


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

    def test_a_change_of_a_large_file_moves_as_much(
        self, source: FolderStore, opened: Callable[[], Home], tmp_path: Path
    ) -> None:
        moves_what_changed(source, opened, tmp_path)

    @pytest.mark.parametrize("how", ["refused", "rotten"])
    def test_where_a_change_cannot_be_moved_alone_the_file_is(
        self,
        source: FolderStore,
        opened: Callable[[], Home],
        options: dict[str, Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        how: str,
    ) -> None:
        """A store does not know the calls, or the version before is damaged where it comes from."""
        before = bytes_of("large", LEAST_BYTES)
        address = put(source, tmp_path / "put", "flights/table", {"rows": before})
        mirror(FolderHome(source), opened())
        known = S3FileSystem.call_s3
        asked = list[str]()

        def refuses(store: S3FileSystem, call: str, **given: Any) -> Any:
            asked.append(call)
            if call == "upload_part_copy":
                raise OSError("a header that you provided implies functionality that is not implemented")
            return known(store, call, **given)

        monkeypatch.setattr(S3FileSystem, "call_s3", refuses)
        put(source, tmp_path / "put", "flights/table", {"rows": before + b"1"})
        if how == "rotten":
            damage(source.path(address) / "rows", before[1:] + b"1")
        assert mirror(FolderHome(source), opened()).versions == ["volume://flights/table@2"]
        assert asked == ([*CALLS, "abort_multipart_upload"] if how == "refused" else [])
        there = S3FileSystem(**options).cat_file(
            f"{opened().where.removeprefix('s3://')}/flights/table/2/data/rows"
        )
        assert there == before + b"1"

    def test_what_the_store_cannot_copy_is_known_before_it_is_asked(
        self, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ObjectsBelow("s3://a/b", options).copies_ranges
        assert not ObjectsBelow("s3://a/b", {**options, "fixed_upload_size": True}).copies_ranges
        stretches = [
            Stretch(at * (15 << 20) + low, size, first)
            for at in range(MOST_PARTS)
            for low, size, first in ((0, 14 << 20, at * (14 << 20)), (14 << 20, 1 << 20, None))
        ]
        asked = list[str]()
        monkeypatch.setattr(S3FileSystem, "call_s3", lambda _, call, **given: asked.append(call))
        many = ObjectsBelow("s3://a/b", options)
        assert many.send_changed("rows", "new", before="old", stretches=stretches) is None
        assert asked == []


LEAST_BYTES = 12 << 20
CALLS = ("create_multipart_upload", "upload_part_copy")


def moves_what_changed(source: FolderStore, opened: Callable[[], Home], tmp_path: Path) -> None:
    """Mirror a large file, and again with a mebibyte that is put in: S3's smallest part travels."""
    before = bytes_of("large", 24 << 20)
    inserted = before[: 10 << 20] + bytes_of("new", 1 << 20) + before[10 << 20 :]
    put(source, tmp_path / "put", "flights/table", {"rows": before})
    mirror(FolderHome(source), opened())
    put(source, tmp_path / "put", "flights/table", {"rows": inserted})
    done = mirror(FolderHome(source), opened())
    assert done.whole
    assert done.sent_bytes <= 5.1 * (1 << 20)
    assert_restores(source, opened(), tmp_path / "restored")


class TestKilledOnS3(KilledMirrorContract):
    """On a server over a folder, which the killed processes ask."""

    def test_a_change_of_a_large_file_moves_as_much(
        self, source: FolderStore, opened: Callable[[], Home], tmp_path: Path
    ) -> None:
        moves_what_changed(source, opened, tmp_path)

    @pytest.fixture
    def source(self, tmp_path: Path) -> FolderStore:
        store = FolderStore(tmp_path / "source")
        fill(store, tmp_path / "put")
        return store

    @pytest.fixture
    def reached(self, tmp_path: Path) -> Iterator[dict[str, Any]]:
        with ObjectStore(tmp_path / "s3") as server:
            found = {"endpoint_url": server.url, "key": USER, "secret": WORD}
            S3FileSystem(**found).mkdir("mirrors")
            yield found

    @pytest.fixture
    def opened(self, reached: dict[str, Any]) -> Callable[[], Home]:
        return lambda: OpenHome("s3://mirrors/muster", reached)

    @pytest.fixture
    def target(self, reached: dict[str, Any]) -> tuple[str, ...]:
        return ("open", "s3://mirrors/muster", json.dumps(reached))

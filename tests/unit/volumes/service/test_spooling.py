"""What model servers of a cluster keep, as the store service hands it out: to whom, when, and never by a link."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.unit.volumes.service.process import Service

from muster.core.errors import NotFound, SpecError, StoreError
from muster.core.prediction import hour_of
from muster.volumes.service import tokens
from muster.volumes.service.spools import AT, ServiceSpools, SpooledHour
from muster.volumes.spool import HALF_MADE_SECONDS, Spool

HOUR = hour_of(time.time() - 7200)
WAITING = SpooledHour(deployment="flights", hour=HOUR)


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("keeping"), "--keep-requests") as service:
        yield service


@pytest.fixture
def spool(keeping: Service, spools: ServiceSpools) -> Iterator[Spool]:
    """The folder of a deployment, as its pods see it."""
    spools.open("flights")
    found = Spool(keeping.root, "flights")
    yield found
    for file in found.path.glob("*.spool"):
        file.unlink()


@pytest.fixture
def spools(keeping: Service) -> ServiceSpools:
    return ServiceSpools(keeping.client().connection)


def written(spool: Spool, name: str, data: bytes = b"{}\n", *, old: float = 7000) -> Path:
    file = spool.path / f"{HOUR}.1-{name}.spool"
    file.write_bytes(data)
    os.utime(file, (time.time() - old,) * 2)
    return file


def test_a_folder_is_the_deployments_alone_and_its_key_stays(spool: Spool, spools: ServiceSpools) -> None:
    key = (spool.path / "key").read_text()
    spools.open("flights")
    assert (spool.path / "key").read_text() == key
    assert len(bytes.fromhex(key)) == 32
    assert spool.path.stat().st_mode & 0o077 == 0


def test_without_anything_that_commits_none_is_opened(tmp_path: Path) -> None:
    with Service(tmp_path) as service, pytest.raises(SpecError, match=r"set serving\.requests\.image"):
        ServiceSpools(service.client().connection).open("flights")


def test_an_hour_is_fetched_and_dropped_but_for_what_has_grown(
    spool: Spool, spools: ServiceSpools, tmp_path: Path
) -> None:
    assert spools.waiting() == ()
    one, other = written(spool, "aa", b"one"), written(spool, "bb", b"two and more")
    half = spool.path / f".{HOUR}.1-cc.spool"
    half.write_bytes(b"{")
    os.utime(half, (time.time() - HALF_MADE_SECONDS - 10,) * 2)
    assert spools.waiting() == (WAITING,)
    sizes = spools.fetch(WAITING, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        one.name: b"one",
        other.name: b"two and more",
    }
    written(spool, "bb", b"two and more and more")
    spools.drop(WAITING, sizes)
    assert (one.exists(), other.exists(), half.exists()) == (False, True, False)
    assert spools.waiting() == (WAITING,)
    spools.drop(WAITING, {other.name: 21})
    with pytest.raises(NotFound, match=f"no requests of flights in {HOUR} wait"):
        spools.fetch(WAITING, tmp_path)


def test_a_link_is_not_followed(
    spool: Spool, spools: ServiceSpools, keeping: Service, tmp_path: Path
) -> None:
    """A model server writes in the folder: it must not be handed what the service alone can read."""
    (spool.path / f"{HOUR}.1-ee.spool").symlink_to(keeping.key)
    written(spool, "ff", b"mine")
    spools.fetch(WAITING, tmp_path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"mine"]


@pytest.mark.parametrize("wrong", ["x", "2026-11-26", f"{HOUR}x", "%2e%2e%2fkeys"])
def test_an_hour_that_is_none_is_refused(keeping: Service, wrong: str) -> None:
    with keeping.asking(keeping.token()) as client:
        assert client.get(f"{AT}/flights/{wrong}").status_code in (400, 404)
        assert client.post(f"{AT}/flights/{wrong}/drop", content=b"{}").status_code in (400, 404)


def test_a_jobs_token_does_not_count(keeping: Service, spools: ServiceSpools) -> None:
    token = tokens.job_token(keeping.keys, "train-1", attempt=1, lifetime_seconds=60)
    for call in (
        lambda found: found.open("flights"),
        lambda found: found.waiting(),
        lambda found: found.drop(WAITING, {}),
    ):
        with pytest.raises(StoreError, match="does not count for"):
            call(ServiceSpools(keeping.client(token=token).connection))


def test_a_release_before_has_none_and_takes_none(spools: ServiceSpools) -> None:
    answer = httpx.Response(
        404, json={"error": "SpecError", "message": "the store service knows no such call"}
    )

    class Earlier:
        def request(self, *_: object, **__: object) -> httpx.Response:
            from muster.volumes.service.refusals import read

            raise read(answer.content, status=answer.status_code, where="http://store")

    earlier = ServiceSpools(Earlier())  # type: ignore[arg-type]
    assert earlier.waiting() == ()
    with pytest.raises(SpecError, match="of an earlier release, and takes no requests"):
        earlier.open("flights")

"""What model servers of a cluster keep, as the store service hands it out: to whom, when, and never by a link."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.volumes.service.process import Service

from muster.core.errors import NotFound, SpecError, StoreError
from muster.core.prediction import hour_of
from muster.volumes.service import tokens
from muster.volumes.service.archives import ArchiveMember, pack
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


@pytest.mark.parametrize("wrong", ["link", "endless", "pipe", "folder", "short", "long"])
def test_what_a_server_puts_in_the_keys_place_is_put_aside(
    spool: Spool, spools: ServiceSpools, tmp_path: Path, wrong: str
) -> None:
    place = spool.path / "key"
    place.unlink()
    if wrong == "link":
        (tmp_path / "other").write_text("ab" * 32)
        place.symlink_to(tmp_path / "other")
    elif wrong == "endless":
        place.symlink_to("/dev/zero")
    elif wrong == "pipe":
        os.mkfifo(place)
    elif wrong == "folder":
        (place / "full").mkdir(parents=True)
    else:
        place.write_text("ab" * (31 if wrong == "short" else 33))
    spools.open("flights")
    key = place.read_text()
    assert place.is_file()
    assert not place.is_symlink()
    assert (len(bytes.fromhex(key)), key == "ab" * 32) == (32, False)
    spools.open("flights")
    assert place.read_text() == key


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


def test_an_hour_that_is_too_large_is_refused_and_named(
    spool: Spool, spools: ServiceSpools, tmp_path: Path
) -> None:
    large = written(spool, "aa")
    os.truncate(large, 10 << 40)  # it costs its server nothing
    os.utime(large, (time.time() - 7000,) * 2)
    with pytest.raises(StoreError, match=rf"predictions/flights in {HOUR} have .*largest is {large.name}"):
        spools.fetch(WAITING, tmp_path)


def test_what_cannot_be_tidied_stops_no_drop(spool: Spool, spools: ServiceSpools) -> None:
    folder = spool.path / ".a.spool"
    folder.mkdir()
    os.utime(folder, (time.time() - HALF_MADE_SECONDS - 10,) * 2)
    file = written(spool, "aa", b"one")
    spools.drop(WAITING, {file.name: 3})
    assert not file.exists()
    folder.rmdir()


def test_a_folder_of_another_name_hides_no_deployment(
    spool: Spool, spools: ServiceSpools, keeping: Service
) -> None:
    (keeping.root / "predictions" / "flights.bak").mkdir(exist_ok=True)
    written(spool, "aa")
    assert spools.waiting() == (WAITING,)


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
        lambda found: found.fetch(WAITING, keeping.root),
        lambda found: found.drop(WAITING, {}),
    ):
        with pytest.raises(StoreError, match="does not count for"):
            call(ServiceSpools(keeping.client(token=token).connection))


def test_what_was_replaced_by_a_link_since_it_was_listed_is_not_packed(
    keeping: Service, tmp_path: Path
) -> None:
    """Another container of a pod may write where a version is made ready."""
    file = tmp_path / "part.parquet"
    file.symlink_to(keeping.key)
    with pytest.raises(FileNotFoundError, match="no regular file is there"):
        list(pack([ArchiveMember(name=file.name, source=file)]))

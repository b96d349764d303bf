"""What may be written into the book of a deployment, and which version is ahead of another."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from muster.backends.releases.book import Book, BookEntry, begin, behind, older, share, withdraw
from muster.core.deployment import DeploymentSpec, Release, RevisionState
from muster.core.errors import DeploymentError, NotFound, SpecError
from muster.volumes.base import Version

DIGEST = "b3:" + "0" * 64


def version(
    number: int, partition: str | None = None, *, volume: str = "f/model", created: float = 0.0
) -> Version:
    return Version(
        volume=volume,
        number=number,
        digest=DIGEST,
        size_bytes=1,
        files=1,
        created=created,
        partition=partition,
    )


def spec(model: Version) -> DeploymentSpec:
    return DeploymentSpec(name="f", model=model.pinned, image="serve", image_digest=DIGEST)


@pytest.mark.parametrize(
    ("model", "champion", "says"),
    [
        (version(3), version(2), ""),
        (version(2), version(2), ""),
        (version(1), version(2), "@2 serves"),
        (version(9, "2013-03"), version(2, "2013-04"), "partition 2013-03 is before 2013-04"),
        (version(1, "2013-05"), version(9, "2013-04"), ""),
        (version(1, "2013-04"), version(2, "2013-04"), "@2 serves"),
        (version(3, "2013-04"), version(2, "2013-04"), ""),
        (version(1, volume="other/model"), version(2), ""),
        (version(2, created=1.0), version(1, "2013-04", created=2.0), "it was made before"),
        (version(1, created=2.0), version(2, "2013-04", created=1.0), ""),
    ],
)
def test_a_deployment_does_not_go_back_in_time(model: Version, champion: Version, says: str) -> None:
    found = older(model, champion)
    assert (says in found) if says else found == ""


MONTHS = {f"volume://f/model@{number}": version(number, f"2013-{number:02}") for number in range(1, 9)}


def resolve(address: str) -> tuple[Version]:
    if address not in MONTHS:
        raise NotFound(address)
    return (MONTHS[address],)


NEWER, LATER = "partition 2013-02 is before 2013-03, which serves", "2013-03, which serves soon"


@pytest.mark.parametrize(
    ("shares", "coming", "says"),
    [
        ({}, None, ""),
        ({1: 100}, None, ""),
        ({1: 100, 2: 0}, 2, ""),
        ({3: 100}, None, NEWER),
        ({1: 100, 3: 0}, 3, LATER),
        ({1: 95, 3: 5}, 3, LATER),
        ({1: 95, 3: 5}, None, NEWER),  # also where a person gave it that share
        ({1: 100, 3: 0, 4: 0}, None, ""),  # kept, or refused
        ({1: 100, 9: 0}, 9, ""),  # 9 was deleted by gc
    ],
)
def test_what_serves_or_will_is_ahead_and_what_was_refused_is_not(
    shares: dict[int, int], coming: int | None, says: str
) -> None:
    store: Any = SimpleNamespace(resolve=resolve, used=lambda _: 0.0)
    live = tuple(
        BookEntry(name=f"r{number}", spec=spec(version(number, f"2013-{number:02}")), since=0.0)
        for number in shares
    )
    release = Release(revision=f"r{coming}", champion=None, by="task", since=0.0) if coming else None
    percents = {f"r{number}": percent for number, percent in shares.items()}
    book = Book(name="f", live=live, shares=percents, release=release)
    found = behind(book, version(2, "2013-02"), store)
    assert (says in found) if says else found == ""
    if coming and release:
        failed = replace(book, shares={}, release=replace(release, failed="wrong"))
        assert behind(failed, version(2, "2013-02"), store) == ""


def serving() -> Book:
    """A book in which @1 serves, and @2 is on its way."""
    book, _ = begin(Book(name="f"), spec(version(1)), by="task", now=1.0)
    book = share(book, {"r1": 100}, release=None, now=2.0)
    return begin(book, spec(version(2)), by="task", now=3.0)[0]


@pytest.mark.parametrize(
    ("shares", "error", "words"),
    [
        ({"r1": 50}, SpecError, "in sum 100"),
        ({}, SpecError, "in sum 100"),
        ({"r1": 150, "r2": -50}, SpecError, "r1 cannot have 150 %"),
        ({"r1": 50, "r9": 50}, NotFound, "no revision 'r9'; there is r2, r1"),
        ({"r1": 50, "r2": 50}, DeploymentError, "there is no Gateway"),
    ],
)
def test_shares_that_must_not_be_are_refused(shares: dict[str, int], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        share(serving(), shares, release=None, only_whole="there is no Gateway", now=4.0)


def test_what_is_over_gets_no_share() -> None:
    book = share(serving(), {"r1": 100}, release=None, now=4.0)
    over = withdraw(book, "r2", state=RevisionState.REFUSED, reason="wrong", now=5.0, history=9)
    with pytest.raises(DeploymentError, match=r"r2 is not ready for traffic \(refused: wrong\)"):
        share(over, {"r1": 100, "r2": 0}, release=None, now=6.0)


def test_when_the_shares_moved_is_remembered() -> None:
    book = serving()
    assert book.moved == 2.0  # a release that begins changes no share
    assert share(book, {"r1": 100}, release=None, now=4.0).moved == 2.0
    assert share(book, {"r1": 0, "r2": 100}, release=None, now=4.0).moved == 4.0
    assert book.gaining({"r1": 50, "r2": 50}) == ["r2"]


@pytest.mark.parametrize(("used", "says"), [(0.0, "@3 serves"), (5.0, "@3 serves"), (20.0, "")])
def test_a_version_that_a_run_kept_after_the_one_that_serves_was_made_is_no_step_back(
    used: float, says: str
) -> None:
    old, new = (replace(version(number, "2013-02"), created=10.0) for number in (2, 3))
    store: Any = SimpleNamespace(resolve=lambda _: (new,), used=lambda _: used)
    book = Book(name="f", live=(BookEntry(name="r3", spec=spec(new), since=0.0),), shares={"r3": 100})
    assert behind(book, old, store) == says
    assert behind(book, replace(old, partition="2013-01"), store), "a backfill never takes over"

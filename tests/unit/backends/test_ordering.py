"""Which version is the newer one, and what is ahead of a version in a deployment."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from muster.backends.ordering import behind, older
from muster.core.deployment import Release, Revision, RevisionState
from muster.core.errors import NotFound
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
        ({1: 95, 3: 5}, None, NEWER),  # whoever gave it that share
        ({1: 100, 3: 0, 4: 0}, None, ""),  # kept, or refused
        ({1: 100, 9: 0}, 9, ""),  # 9 was deleted by gc
    ],
)
def test_what_serves_or_will_is_ahead_and_what_was_refused_is_not(
    shares: dict[int, int], coming: int | None, says: str
) -> None:
    store: Any = SimpleNamespace(resolve=resolve)
    listed = [
        Revision(
            name=f"r{number}",
            model=version(number, f"2013-{number:02}").pinned,
            state=RevisionState.READY,
            percent=percent,
        )
        for number, percent in shares.items()
    ]
    release = Release(revision=f"r{coming}", champion=None, by="task", since=0.0) if coming else None
    found = behind(store, version(2, "2013-02"), listed, release)
    assert (says in found) if says else found == ""
    if coming and release:
        failed = replace(release, failed="wrong")
        assert behind(store, version(2, "2013-02"), [one for one in listed if not one.percent], failed) == ""

"""Which version a candidate is compared with, and on which evaluation set it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.operators.gate import champion_of, trained_on
from muster.core.data import Pinned
from muster.core.deployment import DeploymentStatus, Revision, RevisionState
from muster.core.errors import NotFound, SpecError
from muster.volumes.base import Record


def deployments(**served: Any) -> Any:
    """A backend with deployments, each serving one version."""

    def deployment(name: str) -> DeploymentStatus:
        if name not in served:
            raise NotFound(name)
        model = Pinned(address=served[name], digest="b3:" + "0" * 64)
        revision = Revision(name="r1", model=model, state=RevisionState.SERVING, percent=100)
        return DeploymentStatus(name=name, url="u", ready=True, token="1", revisions=(revision,))

    return SimpleNamespace(deployment=deployment, names=lambda: sorted(served))


def test_the_champion_is_the_served_version_of_the_same_volume() -> None:
    backend = deployments(flights="volume://f/model@3", other="volume://o/model@9")
    found = champion_of(backend, "f/model", deployment=None)
    assert found is not None
    assert found.address == "volume://f/model@3"
    assert champion_of(backend, "new/model", deployment=None) is None
    assert champion_of(backend, "f/model", deployment="unborn") is None
    named = champion_of(backend, "f/model", deployment="other")
    assert named is not None
    assert named.address == "volume://o/model@9"


def test_two_champions_of_one_volume_need_a_name() -> None:
    backend = deployments(blue="volume://f/model@3", green="volume://f/model@4")
    with pytest.raises(SpecError, match="served by blue, green"):
        champion_of(backend, "f/model", deployment=None)


def test_a_champion_that_was_made_from_the_evaluation_set_is_not_compared_with() -> None:
    """A backfilled month against the model of a later one, which was trained on that month."""

    def month(number: int) -> Pinned:
        return Pinned(address=f"volume://f/features@{number}", digest=f"b3:{number:064}")

    champion = Record(
        volume="f/model",
        number=9,
        digest="b3:" + "0" * 64,
        created=0.0,
        job_id="train-1",
        output="model",
        inputs={"train": (month(1), month(2)), "test": (month(3),)},
    )
    assert trained_on(champion, [month(2)], evaluation="test") == ["volume://f/features@2"]
    assert trained_on(champion, [month(3), month(4)], evaluation="test") == []

"""The champion of a gate: the version that is served now, and whether an evaluation set is new to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.core.address import Address
from muster.core.errors import NotFound, SpecError

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.core.job import Pinned
    from muster.volumes.base import Record

CHAMPION = "champion"


def champion_of(deployments: Deployments, volume: str, *, deployment: str | None) -> Pinned | None:
    """The version that is served now: by one deployment, or by the one that serves this volume.

    :raises SpecError: several deployments serve it, each another version.
    """
    names = [deployment] if deployment else deployments.names()
    served: dict[str, Pinned] = {}
    for name in names:
        try:
            champion = deployments.deployment(name).champion
        except NotFound:
            continue
        if champion is not None and (deployment or Address.parse(champion.model.address).volume == volume):
            served[name] = champion.model
    if len({model.address for model in served.values()}) > 1:
        raise SpecError(
            f"{volume} is served by {', '.join(sorted(served))}: say with deployment= whose is meant"
        )
    return next(iter(served.values()), None)


def trained_on(champion: Record, evaluation_set: Sequence[Pinned], *, evaluation: str) -> list[str]:
    """The versions of an evaluation set that a champion was made from, other than to be evaluated on."""
    others = (versions for name, versions in champion.inputs.items() if name != evaluation)
    known = {pinned.digest for versions in others for pinned in versions}
    return [pinned.address for pinned in evaluation_set if pinned.digest in known]

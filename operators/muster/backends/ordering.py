"""Which of two versions is the newer one, and what keeps a deployment from going back in time."""

from __future__ import annotations

from collections.abc import Sequence

from muster.core.deployment import Release, Revision
from muster.core.errors import NotFound
from muster.volumes.base import Version
from muster.volumes.protocols import Store


def older(model: Version, champion: Version) -> str:
    """Say in what way a version is older than the one that serves; empty if it is not.

    Versions of another volume have no order. Partitions compare first, as text; then numbers; a
    version with a partition against one without by when they were made.
    """
    if model.volume != champion.volume or model.number == champion.number:
        return ""
    if model.partition is not None and champion.partition is not None:
        if model.partition != champion.partition:
            late = model.partition < champion.partition
            return f"partition {model.partition} is before {champion.partition}, which serves" if late else ""
    elif (model.partition is None) != (champion.partition is None):
        return (
            f"it was made before {champion.address}, which serves" if model.created < champion.created else ""
        )
    return f"@{champion.number} serves" if model.number < champion.number else ""


def behind(store: Store, model: Version, revisions: Sequence[Revision], release: Release | None) -> str:
    """Say what newer version has traffic, or is on its way to it; empty if `model` may take over."""
    coming = release.revision if release and not release.failed else None
    for revision in revisions:
        if not revision.percent and revision.name != coming:
            continue
        try:
            (other,) = store.resolve(revision.model.address)
        except NotFound:
            continue  # gc took it, so it does not serve and never will
        why = older(model, other)
        if why:
            return f"{why} soon" if revision.name == coming else why
    return ""

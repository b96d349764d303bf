"""Volumes as Airflow's assets: a commit is an event that carries version, digest and metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from muster.airflow.authoring.references import is_known
from muster.core.address import SCHEME

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.core.deployment import DeploymentStatus, Revision
    from muster.core.status import JobStatus
    from muster.volumes.base import Version
    from muster.volumes.protocols import Store

DEPLOYMENT = "deployment://"


def asset_of(volume: str) -> Asset:
    """The asset of a volume, to schedule a Dag by: the same as ``Asset("volume://flights/model")``."""
    return Asset(f"{SCHEME}{volume}")


def deployment_asset(name: str) -> Asset:
    """The asset of a deployment: the same as ``Asset("deployment://flights")``.

    Each release and each rollback is an event: its ``extra`` holds ``version``, ``digest``, ``partition`` and
    ``revision`` of what serves from then on, and ``rolled_back``, the version that was taken away, or None.
    """
    return Asset(f"{DEPLOYMENT}{name}")


def add_deployment(task: Any) -> None:
    """Add the asset of a task's deployment to its outlets, where the Dag file says its name."""
    if is_known(task.name) and deployment_asset(task.name) not in task.outlets:
        task.add_outlets([deployment_asset(task.name)])


def announce_served(
    context: Context, status: DeploymentStatus, champion: Revision | None, *, rolled_back: str | None = None
) -> None:
    """Announce the version that serves now to Dags that are scheduled by a deployment; None: it did not change."""
    asset, task = deployment_asset(status.name), context["task"]
    if champion is None:
        task.outlets = [each for each in task.outlets if each != asset]
    if asset not in task.outlets or champion is None:
        return
    context["outlet_events"][asset].extra.update(
        {
            "name": status.name,
            "version": champion.model.address,
            "digest": champion.model.digest,
            "partition": champion.model.partition,
            "revision": champion.name,
            "rolled_back": rolled_back,
        }
    )


def outlets_of(outputs: Mapping[str, Any]) -> list[Asset]:
    """The assets of all outputs whose volume stands in the Dag file."""
    volumes = {field["volume"] for field in outputs.values() if is_known(field["volume"])}
    return [asset_of(volume) for volume in sorted(volumes)]


def announce(context: Context, store: Store, status: JobStatus) -> None:
    """Fill in each volume's event for consumers: one event a volume, with its newest version on top.

    A volume that got no version has no event: a mapped task names the volumes of all its instances,
    and Airflow would announce every one of them for each.
    """
    committed: dict[str, list[Version]] = defaultdict(list)
    for version in (version for address in status.addresses for version in store.resolve(address)):
        committed[f"{SCHEME}{version.volume}"].append(version)
    task = context["task"]
    task.outlets = [each for each in task.outlets if not _is_volume(each) or each.uri in committed]
    for asset in filter(_is_volume, task.outlets):
        context["outlet_events"][asset].extra.update(_extra(committed[asset.uri], status))


def announce_nothing(context: Context) -> None:
    """Announce no volume: the task took what was made before, so no version is new."""
    task = context["task"]
    task.outlets = [each for each in task.outlets if not _is_volume(each)]


def _is_volume(outlet: Any) -> bool:
    return isinstance(outlet, Asset) and outlet.uri.startswith(SCHEME)


def _extra(versions: list[Version], status: JobStatus) -> dict[str, Any]:
    newest = versions[-1]
    return {
        "version": newest.address,
        "digest": newest.digest,
        "partition": newest.partition,
        "versions": [version.address for version in versions],
        "job_id": status.job_id,
        "metrics": dict(status.result.metrics) if status.result else {},
    }

"""Volumes as Airflow's assets: a commit is an event that carries version, digest and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from muster.airflow.authoring.references import is_known
from muster.core.address import SCHEME

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.core.status import JobStatus
    from muster.volumes.base import Store, Version


def asset_of(volume: str) -> Asset:
    """The asset of a volume, to schedule a Dag by: the same as ``Asset("volume://flights/model")``."""
    return Asset(f"{SCHEME}{volume}")


def outlets_of(outputs: Mapping[str, Mapping[str, Any]]) -> list[Asset]:
    """The assets of all outputs whose volume stands in the Dag file."""
    volumes = {field["volume"] for field in outputs.values() if is_known(field["volume"])}
    return [asset_of(volume) for volume in sorted(volumes)]


def announce(context: Context, store: Store, status: JobStatus) -> None:
    """Give each output's event what a consumer needs; one event a volume, its newest version on top."""
    assert status.result is not None
    assets = {asset.uri: asset for asset in context["task"].outlets if isinstance(asset, Asset)}
    for addresses in status.result.outputs.values():
        versions = [version for address in addresses for version in store.resolve(address)]
        asset = assets.get(f"{SCHEME}{versions[-1].volume}") if versions else None
        if asset is not None:
            context["outlet_events"][asset].extra.update(_extra(versions, status))


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

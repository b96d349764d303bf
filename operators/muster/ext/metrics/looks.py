"""One look at the store, the queues, the GPUs and the deployments, as samples. Jobs have a memory: :mod:`.jobs`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.core.address import Address
from muster.ext.metrics.samples import MOST_LABELS, Sample
from muster.volumes.base import UpkeepKind, UpkeepNote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.backends.capacity import Cards, Gpus, Queues
    from muster.backends.releases.figures import DeploymentSample
    from muster.core.deployment import DeploymentStatus, Release
    from muster.volumes.protocols import Store

MOST_VOLUMES = 500


def of_store(store: Store, clock: Callable[[], float] = time.monotonic) -> Iterator[Sample]:
    """Ask for the room, the volumes and the notes of upkeep: two short requests for each of 500 volumes at most."""
    began = clock()
    room = store.room()
    yield Sample(metric="muster_store_answer_seconds", value=clock() - began)
    yield Sample(metric="muster_store_bytes", value=room.total_bytes)
    yield Sample(metric="muster_store_free_bytes", value=room.free_bytes)
    if room.files_left is not None:
        yield Sample(metric="muster_store_free_files", value=room.files_left)
    volumes = store.volumes()
    yield Sample(metric="muster_volumes", value=len(volumes))
    for volume in volumes[:MOST_VOLUMES]:
        labels = {"volume": volume}
        yield Sample(metric="muster_volume_versions", value=store.count(volume), labels=labels)
        for version in store.newest(volume, limit=1):
            made = version.created
            yield Sample(metric="muster_volume_newest_timestamp_seconds", value=made, labels=labels)
    yield from _of_upkeep({note.work: note for note in store.upkept()})


def _of_upkeep(notes: Mapping[UpkeepKind, UpkeepNote]) -> Iterator[Sample]:
    def at(work: UpkeepKind) -> float:
        return notes[work].at if work in notes else 0.0

    for depth, work in (("quick", UpkeepKind.FSCK), ("deep", UpkeepKind.FSCK_DEEP)):
        labels = {"depth": depth}
        yield Sample(metric="muster_store_last_fsck_timestamp_seconds", value=at(work), labels=labels)
        if work in notes and (found := notes[work].checked):
            yield Sample(metric="muster_store_damaged_versions", value=found.damaged, labels=labels)
    yield Sample(metric="muster_last_gc_timestamp_seconds", value=at(UpkeepKind.GC))
    yield Sample(metric="muster_last_sweep_timestamp_seconds", value=at(UpkeepKind.SWEEP))


def line_of(named: str | None, lines: Sequence[str]) -> str:
    """Return the queue that a job stands in: the one it names, or the only one that there is.

    On one machine all jobs stand in one line, whatever queue they name.
    """
    if named in lines and named is not None:
        return named
    return lines[0] if len(lines) == 1 else named or "-"


def of_queues(found: Queues) -> Iterator[Sample]:
    """Tell each queue, and since when its oldest job waits."""
    lines = [line.name for line in found.lines]
    for line in found.lines[:MOST_LABELS]:
        for state, count in (("waiting", line.waiting), ("running", line.running)):
            labels = {"queue": line.name, "state": state}
            yield Sample(metric="muster_queue_jobs", value=count, labels=labels)
        stopped = float(bool(line.stopped))
        yield Sample(metric="muster_queue_stopped", value=stopped, labels={"queue": line.name})
    oldest: dict[str, float] = {}
    for each in found.waiting:
        queue = line_of(each.queue or None, lines)
        if queue in lines[:MOST_LABELS] or not lines:
            oldest[queue] = min(each.since, oldest.get(queue, each.since))
    for queue, since in oldest.items():
        yield Sample(metric="muster_queue_oldest_timestamp_seconds", value=since, labels={"queue": queue})


def of_gpus(found: Gpus) -> Iterator[Sample]:
    """Tell the cards of each class, and those of each team's queue."""
    for cards in found.by_class[:MOST_LABELS]:
        free = min(cards.free, _free(found.by_node, cards.name))
        for state, count in (
            ("used", cards.used),
            ("free", free),
            ("unavailable", max(0, cards.total - cards.used - free)),
        ):
            yield Sample(metric="muster_gpus", value=count, labels={"class": cards.name, "state": state})
    teams: dict[tuple[str, str], list[int]] = {}
    for share in found.shares:
        sums = teams.setdefault((share.team, share.gpu_class), [0, 0, 0])
        for index, count in enumerate((share.quota, share.used, share.borrowed)):
            sums[index] += count
    for (team, gpu_class), sums in list(teams.items())[:MOST_LABELS]:
        for state, count in zip(("quota", "used", "borrowed"), sums, strict=True):
            labels = {"team": team, "class": gpu_class, "state": state}
            yield Sample(metric="muster_team_gpus", value=count, labels=labels)


def _free(nodes: Sequence[Cards], gpu_class: str) -> int:
    return sum(node.free for node in nodes if node.gpu_class == gpu_class)


def of_deployments(found: Sequence[DeploymentSample]) -> Iterator[Sample]:
    """Tell how each deployment stands."""
    for seen in found[:MOST_LABELS]:
        yield from _of_deployment(seen.status)


def _of_deployment(status: DeploymentStatus) -> Iterator[Sample]:
    own = {"deployment": status.name}
    yield Sample(metric="muster_deployment_ready", value=float(status.ready), labels=own)
    yield Sample(metric="muster_deployment_drifted", value=float(bool(status.drift)), labels=own)
    for one in status.revisions:
        if one.state.over:
            continue
        labels, address = own | {"revision": one.name}, Address.parse(one.model.address)
        model = {"model": f"{address.volume}@{address.value}"}
        yield Sample(metric="muster_revision_traffic_percent", value=one.percent, labels=labels | model)
        for state, count in (("wanted", one.wanted), ("ready", one.ready)):
            yield Sample(metric="muster_revision_replicas", value=count, labels=labels | {"state": state})
        yield Sample(metric="muster_revision_restarts", value=one.restarts, labels=labels)
    if status.release is not None:
        labels = own | {"state": _direction(status.release)}
        since = status.release.since
        yield Sample(metric="muster_release_step_started_timestamp_seconds", value=since, labels=labels)


def _direction(release: Release) -> str:
    return "back" if release.failed else "held" if release.held else "forward"

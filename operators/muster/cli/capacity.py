"""``muster gpus`` and ``muster queue``: the cards in use, and the jobs that wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster.cli.command import Json, open_backend, open_place, open_store, room_of
from muster.cli.screen import Table, emit, note, safe, say, seconds
from muster.core.errors import NotFound
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.backends.capacity import Cards, Gpus, Line, Queues
    from muster.core.room import Room

GIB = 1 << 30


def gpus(*, as_json: Json = False) -> None:
    """Show free and used GPUs, by class, node and team.

    A card is used from the placement of its job until that job's pod or process has ended.
    A team may also borrow quota that other teams do not use.
    """
    found = open_place().capacity.gpus()
    if as_json:
        emit(_gpus_document(found))
        return
    if not found.by_node:
        note("no GPUs here")
        return
    _by_class(found)
    _by_node(found)
    _by_team(found)
    if found.unseen:
        note(f"\n{safe(found.unseen)}")


def _gpus_document(found: Gpus) -> dict[str, Any]:
    return {
        "classes": [_counted(each) for each in found.by_class],
        "nodes": [
            {**_counted(each), "class": each.gpu_class, "ready": not each.why_not, "why_not": each.why_not}
            for each in found.by_node
        ],
        "teams": plain(found.shares),
        "holders": [{"name": each.name, "used": each.used} for each in found.by_team],
        "unseen": found.unseen,
    }


def _counted(cards: Cards) -> dict[str, Any]:
    return {"name": cards.name, "total": cards.total, "used": cards.used, "free": cards.free}


def _by_class(found: Gpus) -> None:
    table = Table(["class", ">GPUs", ">used", ">free"])
    for each in found.by_class:
        table.add(each.name, each.total, each.used, each.free)
    table.show(empty="")


def _by_node(found: Gpus) -> None:
    table = Table(["node", "class", ">GPUs", ">used", ">free", "state"])
    for each in found.by_node:
        state = f"takes no jobs: {safe(each.why_not)}" if each.why_not else "ok"
        table.add(each.name, each.gpu_class, each.total, each.used, each.free, state)
    say()
    table.show(empty="")


def _by_team(found: Gpus) -> None:
    """Show each team's quota, or without quotas the cards that each namespace's pods hold."""
    table = Table(["team", "class", ">quota", ">used", ">borrowed"])
    for share in found.shares:
        if share.quota or share.used:
            table.add(share.team, share.gpu_class, share.quota, share.used, share.borrowed or None)
    if not found.shares:
        table = Table(["team", ">used"])
        for each in found.by_team:
            table.add(each.name, each.used)
    if table.rows:
        say()
        table.show(empty="")


def queue(*, as_json: Json = False) -> None:
    """Show the waiting jobs, each with its place and the reason.

    The next job to start is first. Other programs' workloads in the same queues are listed too, by the name of
    their object; last the jobs that stand in no queue yet, since they wait for a budget.
    """
    found, room = open_place().capacity.queues(), _room()
    if room is not None:  # there is a store, and it answers
        found = replace(found, waiting=(*found.waiting, *open_backend().kept()))
    if as_json:
        emit({"queues": plain(found.lines), "waiting": plain(found.waiting), "room": plain(room)})
        return
    _show_lines(found)
    if found.waiting:
        _show_waiting(found, now=time.time())
    else:
        note("nothing waits")
    if room is not None and room.warning:
        note(f"warning: {safe(room.warning)}")


def _room() -> Room | None:
    """Return the store's free space; None if there is no store yet, or it is unknown."""
    try:
        store = open_store()
    except NotFound:
        return None
    return room_of(store)


def _show_lines(found: Queues) -> None:
    table = Table(["queue", "team", ">waiting", ">running", "state"])
    for line in found.lines:
        table.add(line.name, line.team, line.waiting, line.running, _state(line))
    if table.rows:
        table.show(empty="")


def _state(line: Line) -> str:
    return f"stopped: {line.stopped}" if line.stopped else "open"


def _show_waiting(found: Queues, *, now: float) -> None:
    if found.lines:
        say()
    table = Table(["queue", ">place", "job", "name", "needs", ">waited", "why"])
    for each in found.waiting:
        place = f"{each.place.number} of {each.place.of}" if each.place else None
        waited = seconds(max(0.0, now - each.since))
        table.add(
            each.queue, place, each.job_id or each.name, each.title, needs(each.needs), waited, each.why
        )
    table.show(empty="")


def needs(amounts: Mapping[str, float]) -> str:
    """Return a job's requests in all, cards first: ``16 GPUs, 4 CPUs, 8 GiB``."""
    return ", ".join(_needs(amounts)) or "-"


def _needs(amounts: Mapping[str, float]) -> Iterator[str]:
    rest = dict(amounts)
    for name in [name for name in rest if name.rpartition("/")[2] == "gpu"]:
        cards = rest.pop(name)
        yield f"{cards:.4g} GPU{'s' * (cards != 1)}"
    if "cpu" in rest:
        cpus = rest.pop("cpu")
        yield f"{cpus:.4g} CPU{'s' * (cpus != 1)}"
    if "memory" in rest:
        yield f"{rest.pop('memory') / GIB:.4g} GiB"
    rest.pop("ephemeral-storage", None)  # requested by every pod, and never the reason that it waits
    yield from (f"{amount:.4g} {name}" for name, amount in sorted(rest.items()))

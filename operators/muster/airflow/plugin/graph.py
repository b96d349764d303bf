"""Lineage as a picture: which version stands in which column and row, and what goes into what.

Layered drawing after Sugiyama, Tagawa and Toda (1981) in its simplest form: a version's column is the
longest way from it to the one that is looked at, so that every arrow goes the same way, and within a
column each stands near the middle of what was made from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from muster.core.address import Address
from muster.volumes.lineage import Ancestor

FOLD = 6

Edge = tuple[str, str]
"""From an input to what was made from it."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One version of the picture, or several of one volume that stand for themselves no longer.

    :param column: 0 is what is looked at; what it was made from is further to the left.
    """

    id: str
    volume: str
    column: int
    label: str
    title: str = ""
    count: int = 1
    row: int = 0


def draw(found: Sequence[Ancestor], *, permitted: Callable[[str], bool]) -> dict[str, Any]:
    """Place the ancestors of a version.

    More than 6 versions of one volume in one column become one node that says how many they are.

    :param found: as :func:`muster.volumes.lineage.ancestors` yields them, the version itself first.
    :param permitted: whether the user may see what a Dag made: its task is named then.
    :return: ``nodes`` and ``edges`` as JSON values; an edge goes from an input's id to its reader's.
    """
    edges = _edges(found)
    columns = _columns([each.address for each in found], edges)
    groups: dict[tuple[int, str], list[Ancestor]] = defaultdict(list)
    for each in found:
        groups[columns[each.address], Address.parse(each.address).volume].append(each)
    nodes: list[Node] = []
    stands_for: dict[str, str] = {}
    for (column, volume), members in groups.items():
        made = (
            [_many(volume, column, members)]
            if len(members) > FOLD
            else [_one(volume, column, each, permitted) for each in members]
        )
        nodes += made
        stands_for.update({each.address: made[-1].id if len(made) == 1 else each.address for each in members})
    drawn = sorted({(stands_for[start], stands_for[end]) for start, end in edges})
    return {"nodes": [vars(node) for node in _rows(nodes, drawn)], "edges": drawn}


def _edges(found: Iterable[Ancestor]) -> list[Edge]:
    known = {each.address for each in found}
    return [
        (version.address, reader.address)
        for reader in found
        if reader.record
        for versions in reader.record.inputs.values()
        for version in versions
        if version.address in known
    ]


def _columns(addresses: Sequence[str], edges: Iterable[Edge]) -> dict[str, int]:
    """The longest way from each to the first, by Kahn's order: all readers of a version come before it."""
    inputs: dict[str, list[str]] = defaultdict(list)
    readers: dict[str, int] = dict.fromkeys(addresses, 0)
    for start, end in set(edges):
        inputs[end].append(start)
        readers[start] += 1
    columns = dict.fromkeys(addresses, 0)
    ready = [address for address in addresses if not readers[address]]
    while ready:
        here = ready.pop()
        for each in inputs[here]:
            columns[each] = max(columns[each], columns[here] + 1)
            readers[each] -= 1
            if not readers[each]:
                ready.append(each)
    return columns


def _one(volume: str, column: int, each: Ancestor, permitted: Callable[[str], bool]) -> Node:
    record = each.record
    partition = record.partition if record else None
    shown = record is not None and permitted(record.origin.dag_id)
    return Node(
        id=each.address,
        volume=volume,
        column=column,
        label=f"@{Address.parse(each.address).value}" + (f" · {partition}" if partition else ""),
        title=record.job_name if record and shown else "",
    )


def _many(volume: str, column: int, members: Sequence[Ancestor]) -> Node:
    partitions = sorted(each.record.partition for each in members if each.record and each.record.partition)
    span = f" · {partitions[0]} … {partitions[-1]}" if partitions else ""
    return Node(
        id=f"{volume}@{column}*",
        volume=volume,
        column=column,
        label=f"{len(members)} versions{span}",
        count=len(members),
    )


def _rows(nodes: Iterable[Node], edges: Iterable[Edge]) -> list[Node]:
    """Number each column's nodes from the top."""
    readers: dict[str, list[str]] = defaultdict(list)
    for start, end in edges:
        readers[start].append(end)
    columns: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        columns[node.column].append(node)
    rows: dict[str, int] = {}
    placed: list[Node] = []
    for _, members in sorted(columns.items()):
        for row, node in enumerate(
            sorted(members, key=lambda node: (_middle(node, readers, rows), node.volume))
        ):
            rows[node.id] = row
            placed.append(Node(**{**vars(node), "row": row}))
    return placed


def _middle(node: Node, readers: Mapping[str, Sequence[str]], rows: Mapping[str, int]) -> float:
    above = [rows[reader] for reader in readers[node.id] if reader in rows]
    return fmean(above) if above else 0.0

"""Lineage as a picture: the column and row of each version, and the paths of the arrows.

What a version was made from stands in the columns 1, 2, … to its left, what was made of it in -1, -2, … to its right.

Layered drawing after Sugiyama, Tagawa and Toda (1981), in its simplest form. A version's column is the
length of the longest path from it to the shown version, so every arrow goes the same way. An arrow over more
than one column gets a place in each column between, so it crosses no box. Within a column each node stands
near the middle of the versions that were made from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from muster.core.address import Address
from muster.volumes.base import Record
from muster.volumes.lineage import Ancestor

_FOLD = 6

Edge = tuple[str, str]
"""From an input to the version made from it."""

Named = Mapping[Edge, set[str]]
"""Edges, each with the names of the inputs that it stands for."""

Permitted = Callable[[str], bool]
"""Whether the user may see the versions of a Dag, by its id."""


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """One version of the picture, or several of one volume that are too many to show.

    :param column: 0 is the shown version; its inputs are further to the left.
    :param title: the job that made it, if the user may see it.
    """

    id: str
    column: int
    volume: str = ""
    label: str = ""
    title: str = ""
    count: int = 1
    row: int = 0


def draw(found: Sequence[Ancestor], *, permitted: Permitted) -> dict[str, Any]:
    """Place the ancestors of a version.

    More than 6 versions of one volume in one column become one node with their number.

    :param found: as :func:`muster.volumes.lineage.ancestors` yields them, the version itself first.
    :param permitted: whether the user may see the versions of a Dag, by its id; for other Dags neither the
        maker of a version nor its inputs are shown.
    :return: ``nodes``; ``edges``, each from an input's id to its reader's with the ``[column, row]`` of
        each place on its way, and the inputs' ``names``; and ``rows``, the length of the longest column.
    """
    return _placed(found, _edges(found, permitted), permitted)


def draw_forward(found: Sequence[Ancestor], edges: Named, *, permitted: Permitted) -> dict[str, Any]:
    """Place the descendants of a version in the columns 0, -1, -2, …, as :func:`draw` places its ancestors.

    :param found: the version itself first.
    :param edges: from each version to one that was made from it, with the names of the inputs.
    """
    picture = _placed(found, {(end, start): names for (start, end), names in edges.items()}, permitted)
    return {
        "nodes": [{**node, "column": -node["column"]} for node in picture["nodes"]],
        "edges": [
            {
                "from": edge["to"],
                "to": edge["from"],
                "by": [[-column, row] for column, row in reversed(edge["by"])],
                "names": edge["names"],
            }
            for edge in picture["edges"]
        ],
        "rows": picture["rows"],
    }


def _placed(found: Sequence[Ancestor], named: Named, permitted: Permitted) -> dict[str, Any]:
    edges = list(named)
    nodes, stands_for = _folded(found, _columns([each.address for each in found], edges), permitted)
    columns = {node.id: node.column for node in nodes}
    names: dict[Edge, set[str]] = defaultdict(set)
    for (start, end), of_edge in named.items():
        names[stands_for[start], stands_for[end]] |= of_edge
    ways = [_way(edge, columns) for edge in sorted(names)]
    places = [*nodes, *(bend for way in ways for bend in way[1:-1] if isinstance(bend, GraphNode))]
    steps = [(_id(a), _id(b)) for way in ways for a, b in pairwise(way)]
    placed = {node.id: node for node in _rows(places, steps)}
    return {
        "nodes": [vars(placed[node.id]) for node in nodes],
        "edges": [
            {
                "from": way[0],
                "to": way[-1],
                "by": [[placed[_id(b)].column, placed[_id(b)].row] for b in way[1:-1]],
                "names": sorted(names[_id(way[0]), _id(way[-1])]),
            }
            for way in ways
        ],
        "rows": 1 + max((node.row for node in placed.values()), default=0),
    }


def _edges(found: Iterable[Ancestor], permitted: Permitted) -> Named:
    known = {each.address for each in found}
    edges: dict[Edge, set[str]] = defaultdict(set)
    for reader in found:
        if reader.record and permitted(reader.record.origin.dag_id):
            for name, versions in reader.record.inputs.items():
                for version in versions:
                    if version.address in known:
                        edges[version.address, reader.address].add(name)
    return edges


def _columns(addresses: Sequence[str], edges: Iterable[Edge]) -> dict[str, int]:
    """Return the longest path from each to the first, in Kahn's order: all readers of a version come before it."""
    inputs: dict[str, list[str]] = defaultdict(list)
    readers = dict.fromkeys(addresses, 0)
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


def _folded(
    found: Iterable[Ancestor], columns: Mapping[str, int], permitted: Permitted
) -> tuple[list[GraphNode], dict[str, str]]:
    """Return the nodes, and each version's node."""
    groups: dict[tuple[int, str], list[Ancestor]] = defaultdict(list)
    for each in found:
        groups[columns[each.address], Address.parse(each.address).volume].append(each)
    nodes: list[GraphNode] = []
    stands_for: dict[str, str] = {}
    for (column, volume), members in groups.items():
        if len(members) > _FOLD:
            nodes.append(_many(volume, column, members))
            stands_for.update(dict.fromkeys((each.address for each in members), nodes[-1].id))
        else:
            nodes += [_one(volume, column, each, permitted) for each in members]
            stands_for.update({each.address: each.address for each in members})
    return nodes, stands_for


def _one(volume: str, column: int, each: Ancestor, permitted: Permitted) -> GraphNode:
    record = each.record
    partition = record.partition if record else None
    return GraphNode(
        id=each.address,
        volume=volume,
        column=column,
        label=f"@{Address.parse(each.address).value}" + (f" · {partition}" if partition else ""),
        title=_maker(record) if record and permitted(record.origin.dag_id) else "",
    )


def _maker(record: Record) -> str:
    trial = record.origin.trial
    return record.job_name + (f", trial {trial}" if trial >= 0 else "")


def _many(volume: str, column: int, members: Sequence[Ancestor]) -> GraphNode:
    partitions = sorted(each.record.partition for each in members if each.record and each.record.partition)
    return GraphNode(
        id=f"{volume}@*{column}",
        volume=volume,
        column=column,
        label=f"{len(members)} versions" + (f" · {partitions[0]} … {partitions[-1]}" if partitions else ""),
        count=len(members),
    )


def _way(edge: Edge, columns: Mapping[str, int]) -> list[str | GraphNode]:
    """Return the two ends of an arrow, and between them a bend for each column that it passes."""
    start, end = edge
    between = range(columns[start] - 1, columns[end], -1)
    return [start, *(GraphNode(id=f"{start}>{end}>{column}", column=column) for column in between), end]


def _id(stop: str | GraphNode) -> str:
    return stop if isinstance(stop, str) else stop.id


def _rows(nodes: Iterable[GraphNode], steps: Iterable[Edge]) -> list[GraphNode]:
    """Number the entries of each column from the top."""
    readers: dict[str, list[str]] = defaultdict(list)
    for start, end in steps:
        readers[start].append(end)
    columns: dict[int, list[GraphNode]] = defaultdict(list)
    for node in nodes:
        columns[node.column].append(node)
    rows: dict[str, int] = {}
    placed: list[GraphNode] = []
    for _, members in sorted(columns.items()):
        ordered = sorted(members, key=lambda node: (_middle(readers[node.id], rows), node.volume))
        rows.update({node.id: row for row, node in enumerate(ordered)})
        placed += [replace(node, row=rows[node.id]) for node in ordered]
    return placed


def _middle(readers: Iterable[str], rows: Mapping[str, int]) -> float:
    known = [rows[reader] for reader in readers if reader in rows]
    return fmean(known) if known else 0.0

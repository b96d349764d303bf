"""The picture of lineage: columns, rows, folding, and arrows that cross no box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.core.data import Pinned
from muster.core.origin import Origin
from muster.ext.page.graph import draw
from muster.volumes.base import Record
from muster.volumes.lineage import Ancestor

DIGEST = "b3:" + "0" * 64


def ancestors(made: Mapping[str, Sequence[str]], *, dag_id: str = "flights") -> list[Ancestor]:
    """Build what the store would yield; `made` maps each version to what it was made from."""
    found = []
    for depth, (name, inputs) in enumerate(made.items()):
        volume, _, number = name.partition("@")
        record = Record(
            volume=volume,
            number=int(number),
            digest=DIGEST,
            created=0.0,
            job_id="a-1",
            output="x",
            job_name=f"{dag_id}.{volume}",
            partition=f"2013-{int(number):02d}" if volume == "features" else None,
            origin=Origin(dag_id=dag_id),
            inputs={"in": tuple(Pinned(address=f"volume://{each}", digest=DIGEST) for each in inputs)},
        )
        found.append(Ancestor(address=f"volume://{name}", digest=DIGEST, depth=depth, record=record))
    return found


def drawn(made: Mapping[str, Sequence[str]], **options: Any) -> dict[str, Any]:
    return draw(ancestors(made), **{"permitted": lambda dag_id: True, **options})


def places(picture: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {node["id"].removeprefix("volume://"): (node["column"], node["row"]) for node in picture["nodes"]}


def test_one_alone() -> None:
    picture = drawn({"model@1": []})
    assert places(picture) == {"model@1": (0, 0)}
    assert (picture["edges"], picture["rows"]) == ([], 1)


def test_a_column_is_the_longest_way() -> None:
    """The report reads the features too, yet they stand before the model that was made from them."""
    picture = drawn(
        {
            "report@1": ["model@1", "features@1"],
            "model@1": ["features@1"],
            "features@1": ["raw@1"],
            "raw@1": [],
        }
    )
    assert {name: column for name, (column, _) in places(picture).items()} == {
        "report@1": 0,
        "model@1": 1,
        "features@1": 2,
        "raw@1": 3,
    }


def test_an_arrow_over_a_column_has_a_place_of_its_own_there() -> None:
    picture = drawn({"report@1": ["model@1", "features@1"], "model@1": ["features@1"], "features@1": []})
    (over,) = [edge for edge in picture["edges"] if edge["by"]]
    assert (over["from"], over["to"]) == ("volume://features@1", "volume://report@1")
    taken = [tuple(place) for edge in picture["edges"] for place in edge["by"]]
    assert taken == [(1, 1 - places(picture)["model@1"][1])]
    assert picture["rows"] == 2


def test_nothing_stands_where_something_else_does() -> None:
    many = {f"features@{n}": [f"raw@{n % 2 + 1}"] for n in range(1, 6)}
    picture = drawn({"report@1": ["model@1", *many], "model@1": list(many), **many, "raw@1": [], "raw@2": []})
    taken = [*places(picture).values(), *(tuple(p) for edge in picture["edges"] for p in edge["by"])]
    assert len(set(taken)) == len(taken)


def test_many_of_one_volume_become_one() -> None:
    months = {f"features@{n}": ["raw@1"] for n in range(1, 13)}
    picture = drawn({"model@1": list(months), **months, "raw@1": []})
    (folded,) = [node for node in picture["nodes"] if node["count"] > 1]
    assert (folded["count"], folded["label"]) == (12, "12 versions · 2013-01 … 2013-12")
    assert [(edge["from"], edge["to"]) for edge in picture["edges"]] == [
        (folded["id"], "volume://model@1"),
        ("volume://raw@1", folded["id"]),
    ]


def test_who_made_it_is_told_to_those_who_may_see_the_dag() -> None:
    def titles(permitted: bool) -> list[str]:
        return [node["title"] for node in drawn({"model@1": []}, permitted=lambda dag_id: permitted)["nodes"]]

    assert titles(True) == ["flights.model"]
    assert titles(False) == [""]
    hidden = drawn({"model@1": ["raw@1"], "raw@1": []}, permitted=lambda dag_id: False)
    assert hidden["edges"] == []


def test_a_version_that_this_store_does_not_know() -> None:
    found = [
        *ancestors({"model@1": ["gone@1"]}),
        Ancestor(address="volume://gone@1", digest=DIGEST, depth=1, record=None),
    ]
    picture = draw(found, permitted=lambda dag_id: True)
    assert places(picture) == {"model@1": (0, 0), "gone@1": (1, 0)}


def test_a_circle_ends() -> None:
    """No store holds one; a record that was tampered with might."""
    picture = drawn({"a@1": ["b@1"], "b@1": ["a@1"]})
    assert len(picture["nodes"]) == 2

"""SmokeRows: the smoke requests of a release, made of rows of a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.airflow.authoring.checks import check_count, check_file, check_some
from muster.airflow.authoring.references import VersionReference
from muster.core.deployment import SmokeRequest
from muster.core.errors import SpecError

MOST = 1000


@dataclass(frozen=True)
class SmokeRows:
    """Some rows of a version, each asked of a model before it serves.

    :param rows: the version, or versions, whose Parquet and CSV files have a column for each input of the model: ``.versions["rows"]``, a
        ``.passed`` or an address. (templated)
    :param most: how many rows are asked at most, 1 to 1000. Of Parquet files they lie at even distances, of a CSV file they are the first ones.
    :param expect: bounds for every value of an output, ``{"probability": {"min": 0, "max": 1}}``.
    """

    rows: str | VersionReference | Sequence[str | VersionReference]
    most: int = 20
    expect: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_smoke_rows(value: Any) -> Any:
    """Write them as a mapping, which Airflow can render; :func:`check_smoke` refuses what is none."""
    if not isinstance(value, SmokeRows):
        return value
    return {"rows": value.rows, "most": value.most, "expect": value.expect}


def check_smoke(value: Any) -> None:
    """Refuse what is neither a file of the Dag's folder nor rows. :raises SpecError: it says which of the three parts is wrong."""
    if not isinstance(value, Mapping):
        check_file(value)
        return
    if set(value) != {"rows", "most", "expect"}:
        raise SpecError(
            f"{dict(value)!r:.60}: expected a file such as 'smoke.json', or SmokeRows(version, most=20)"
        )
    check_some(value["rows"])
    check_count(value["most"])
    if value["most"] > MOST:
        raise SpecError(f"most is {value['most']}: a smoke test has at most {MOST} rows")
    check_expect(value["expect"])
    SmokeRequest(name="rows", inputs={"row": (0,)}, expect=value["expect"])  # refuses other bounds


def check_expect(expect: Any) -> None:
    """Refuse what are no bounds by output."""
    if not isinstance(expect, Mapping):
        raise SpecError(f"expect is {expect!r:.60}, need bounds by output")
    for output, bounds in expect.items():
        if not isinstance(bounds, Mapping) or not all(
            type(bound) in (int, float) for bound in bounds.values()
        ):
            raise SpecError(f'{output!r:.40} expects {bounds!r:.60}, need such as {{"min": 0, "max": 1}}')

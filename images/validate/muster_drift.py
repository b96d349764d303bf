"""Compares a window of predictions with the rows that a model was trained on; writes a report that needs no network.

DriftOperator runs this as a job in this image. Drift is a result, not an error: the operator reads the metrics and decides.

Per column: the population stability index (PSI), the Kolmogorov-Smirnov distance (KS) of numbers, the share of unseen values, the share of
nulls. A measure counts where it is above its limit and above what chance explains:

PSI   sum of (w - r) ln(w / r) over bins, with shares w of the window and r of the reference (Siddiqi, Credit Risk Scorecards, 2006). Without a
      shift, PSI / (1/n + 1/m) is about chi-squared with one degree of freedom less than bins (Yurdakul, Statistical Properties of Population
      Stability Index, 2018); the quantile is Wilson and Hilferty's (PNAS 17, 1931).
KS    the greatest distance of the two distribution functions; chance explains sqrt(-ln(a / 2) / 2) sqrt((n + m) / (n m)) (Smirnov, Annals of
      Mathematical Statistics 19, 1948), and less where values are equal.
unseen  chance explains -ln(a) / m: a value of that share is missing in m rows with probability a.
nulls   chance explains z sqrt(p (1 - p) (1/n + 1/m)), the two-proportion test with the pooled share p.

The level a of each test is the wanted share of false alarms divided by the number of tests (Bonferroni).
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import NormalDist
from typing import Any

import duckdb

BINS = 10
FEW_VALUES = 20
MOST_CATEGORIES = 30
OTHERS = "(others)"
_ENDINGS = {"parquet": (".parquet",), "csv": (".csv", ".csv.gz")}


class DriftError(ValueError):
    """The window cannot be compared with the reference; the message says why."""

    muster_advice = "mend what the message names and run again; earlier stages are kept"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bin or category, and the share of either side's values in it."""

    label: str
    reference: float
    window: float


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of a column.

    :param limit: from the author's limits; `chance`: what chance explains.
    """

    name: str
    value: float
    limit: float
    chance: float

    @property
    def drifted(self) -> bool:
        """Whether it is above both."""
        return self.value > self.limit and self.value > self.chance


@dataclass(frozen=True, kw_only=True)
class ColumnReport:
    """What was found of one column.

    :param not_judged: why it could not be compared; empty where it was.
    """

    name: str
    kind: str
    not_judged: str = ""
    measures: tuple[Measure, ...] = ()
    bars: tuple[Bar, ...] = field(default_factory=tuple)

    @property
    def drifted(self) -> tuple[str, ...]:
        """The measures that say so."""
        return tuple(each.name for each in self.measures if each.drifted)


def compare(
    predictions: list[Path],
    reference: list[Path],
    report: Path,
    *,
    title: str,
    begin: float,
    end: float,
    revision: str | None,
    columns: list[str] | None,
    limits: dict[str, Any],
) -> dict[str, float]:
    """Write ``report.json`` and ``docs/index.html`` into `report`.

    :param predictions: folders with rows of a request log. :param begin: seconds since the epoch; before `end`.
    :param columns: inputs to compare; None: all that the reference has, too.
    :param limits: the fields of muster's DriftLimits.
    :return: rows, reference_rows, columns, drifted and not_judged (columns), and the greatest psi, ks, unseen and nulls.
    :raises DriftError: they have no column in common, or a file cannot be read.
    """
    with duckdb.connect() as connection:
        try:
            names, rows, known = _load(connection, predictions, reference, begin, end, revision, columns)
            judged = rows >= limits["fewest_rows"]
            found = judge(connection, names, limits) if judged else []
            others = "" if rows or revision is None else _others(connection, begin, end)
        except duckdb.Error as error:
            raise DriftError(f"the rows cannot be read: {' '.join(str(error).split()):.600}") from error
    drifted = [each for each in found if each.drifted]
    about = {
        "title": title,
        "begin": begin,
        "end": end,
        "revision": revision,
        "rows": rows,
        "reference_rows": known,
        "judged": judged,
        "limits": limits,
    }
    shown = [*drifted, *(each for each in found if not each.drifted)]
    document = {**about, "columns": [{**asdict(each), "drifted": each.drifted} for each in shown]}
    (report / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (report / "docs").mkdir()
    (report / "docs" / "index.html").write_text(page(about, shown), encoding="utf-8")
    for each in drifted:
        said = ", ".join(
            f"{m.name} {m.value:.4g} > {max(m.limit, m.chance):.4g}" for m in each.measures if m.drifted
        )
        print(f"drifted: {each.name}: {said}", flush=True)
    seen = f"{rows:,} rows" if revision is None else f"{rows:,} rows of revision {revision}{others}"
    missed = [each for each in found if each.not_judged]
    for each in missed:
        print(f"not judged: {each.name}: {each.not_judged}", flush=True)
    if judged:
        named = f": {', '.join(each.name for each in drifted):.300}" if drifted else ""
        print(f"{seen}, {len(drifted)} of {len(found) - len(missed)} columns have drifted{named}", flush=True)
    else:
        print(f"{seen}: too few to judge, {limits['fewest_rows']:,} are needed", flush=True)
    greatest = {
        name: max((m.value for c in found for m in c.measures if m.name == name), default=0.0)
        for name in MEASURES
    }
    return {
        "rows": rows,
        "reference_rows": known,
        "columns": len(found),
        "drifted": len(drifted),
        "not_judged": len(missed),
        **greatest,
    }


MEASURES = ("psi", "ks", "unseen", "nulls")


def _others(connection: duckdb.DuckDBPyConnection, begin: float, end: float) -> str:
    """Say which revisions answered in the window, where the wanted one did not."""
    found = connection.execute(
        f"select distinct revision from kept where {_between(begin, end)} order by length(revision), revision"
    ).fetchall()
    names = ", ".join(name for (name,) in found[:8])
    return f" ({names} answered)" if names else ""


def _between(begin: float, end: float) -> str:
    return f"epoch(time) >= {float(begin)!r} and epoch(time) < {float(end)!r}"


def _load(
    connection: duckdb.DuckDBPyConnection,
    predictions: Sequence[Path],
    reference: Sequence[Path],
    begin: float,
    end: float,
    revision: str | None,
    columns: Sequence[str] | None,
) -> tuple[list[str], int, int]:
    """Make the tables ``w`` and ``r`` of the columns to compare; return their names and both numbers of rows."""
    parts = [str(file) for folder in predictions for file in sorted(folder.glob("*.parquet"))]
    connection.read_parquet(parts, union_by_name=True).create_view("kept")
    _view(connection, reference, "known")
    kept, known = (
        {row[0]: row[1] for row in connection.execute(f"describe {name}").fetchall()}
        for name in ("kept", "known")
    )
    names = [
        name.removeprefix("input_")
        for name in kept
        if name.startswith("input_") and name.removeprefix("input_") in known
    ]
    for name in columns or ():
        if name not in names:
            raise DriftError(f"no column {name!r} on both sides; there is {', '.join(names) or 'none'}")
    names = [name for name in names if (not columns or name in columns) and "[]" not in kept[f"input_{name}"]]
    if not names:
        raise DriftError(
            "the predictions' inputs and the reference have no column in common: the reference needs columns that are called as "
            f"the model's inputs; it has {', '.join(known):.300}"
        )
    where = _between(begin, end)
    if revision is not None:
        where += f" and revision = {_text(revision)}"
    types = {name: _common(kept[f"input_{name}"], known[name]) for name in names}
    window = ", ".join(f"{_cast(f'input_{name}', types[name])} as {_name(name)}" for name in names)
    trained = ", ".join(f"{_cast(name, types[name])} as {_name(name)}" for name in names)
    connection.execute(f"create table w as select {window} from kept where {where}")
    connection.execute(f"create table r as select {trained} from known")
    return names, _count(connection, "w"), _count(connection, "r")


def _view(connection: duckdb.DuckDBPyConnection, folders: Sequence[Path], name: str) -> None:
    found = {
        kind: [
            str(file)
            for folder in folders
            for file in sorted(folder.rglob("*"))
            if file.name.endswith(endings)
        ]
        for kind, endings in _ENDINGS.items()
    }
    if not any(found.values()):
        raise DriftError(
            f"no Parquet or CSV file in the reference, {', '.join(folder.name for folder in folders)}"
        )
    if found["parquet"]:
        connection.read_parquet(found["parquet"], union_by_name=True).create_view("parquet")
    if found["csv"]:
        connection.read_csv(found["csv"], union_by_name=True).create_view("csv")
    parts = " union all by name ".join(f"from {kind}" for kind, files in found.items() if files)
    connection.execute(f"create view {name} as {parts}")


def _common(window: str, reference: str) -> str:
    """Return the type in which both sides are compared: a number as the model got it, else text."""
    if _is_number(window) and _is_number(reference):
        return window  # 0.1 as FP32 is another number than as FP64
    return "VARCHAR"


def _is_number(kind: str) -> bool:
    return kind.startswith(
        (
            "TINY",
            "SMALL",
            "INT",
            "BIG",
            "HUGE",
            "UTINY",
            "USMALL",
            "UINT",
            "UBIG",
            "FLOAT",
            "DOUBLE",
            "DECIMAL",
            "REAL",
        )
    )


def judge(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str], limits: Mapping[str, Any]
) -> list[ColumnReport]:
    """Compare the tables ``w`` and ``r``, column by column."""
    kinds = {name: _kind(connection, name) for name in names}
    level = limits["false_alarms"] / (3 * len(names))  # each column has three tests
    return [_column(connection, name, kinds[name], limits, level) for name in names]


def _kind(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    """Return how a column is compared: ``number``, or ``category``, also of whole numbers with few values."""
    ((kind, distinct),) = connection.execute(
        f"select typeof(any_value({_name(name)})), count(distinct {_name(name)}) from r"
    ).fetchall()
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        return "number"
    return "number" if _is_number(kind) and distinct > FEW_VALUES else "category"


def _column(
    connection: duckdb.DuckDBPyConnection, name: str, kind: str, limits: Mapping[str, Any], level: float
) -> ColumnReport:
    column = _name(name)
    ((n, n_null), (m, m_null)) = (
        connection.execute(f"select count({column}), count(*) - count({column}) from {side}").fetchone()
        for side in "wr"
    )
    nulls = _nulls(n, n_null, m, m_null, limits["nulls"], level)
    if not m and n:
        return ColumnReport(name=name, kind=kind, not_judged=f"the reference has no values, the window {n:,}")
    if not n:
        return ColumnReport(name=name, kind=kind, measures=(nulls,))
    bars = _bins(connection, column) if kind == "number" else _categories(connection, column)
    counted = [(label, r, w) for label, r, w in bars]
    psi = Measure(
        name="psi",
        value=_psi([w for _, _, w in counted], [r for _, r, _ in counted]),
        limit=limits["psi"],
        chance=(1 / n + 1 / m) * chi_squared(max(len(counted) - 1, 1), level),
    )
    if kind == "number":
        distance = Measure(
            name="ks",
            value=_ks(connection, column, n, m),
            limit=limits["ks"],
            chance=math.sqrt(-math.log(level / 2) / 2) * math.sqrt((n + m) / (n * m)),
        )
    else:
        ((new,),) = connection.execute(
            f"select count(*) from w where {column} is not null and {column} not in (select {column} from r where {column} is not null)"
        ).fetchall()
        distance = Measure(name="unseen", value=new / n, limit=limits["unseen"], chance=-math.log(level) / m)
    shown = tuple(Bar(label=label, reference=r / m, window=w / n) for label, r, w in counted)
    return ColumnReport(name=name, kind=kind, measures=(psi, distance, nulls), bars=shown)


def _psi(window: Sequence[int], reference: Sequence[int]) -> float:
    """PSI of two lists of counts; an empty bin counts as half a row, so that the logarithm is finite."""
    w, r = ([max(count, 0.5) for count in side] for side in (window, reference))
    return sum(
        (a / sum(w) - b / sum(r)) * math.log((a / sum(w)) / (b / sum(r))) for a, b in zip(w, r, strict=True)
    )


def _ks(connection: duckdb.DuckDBPyConnection, column: str, n: int, m: int) -> float:
    ((distance,),) = connection.execute(
        f"""
        with both_sides as (
            select {column} as v, count(*) as w, 0 as r from w where v is not null group by all
            union all select {column}, 0, count(*) from r where {column} is not null group by all
        ), values_of as (select v, sum(w) as w, sum(r) as r from both_sides group by v)
        select max(abs(below_w / {n} - below_r / {m})) from (
            select sum(w) over (order by v) as below_w, sum(r) over (order by v) as below_r from values_of
        )
        """
    ).fetchall()
    return float(distance)


def _bins(connection: duckdb.DuckDBPyConnection, column: str) -> list[tuple[str, int, int]]:
    """Return label and both counts of bins between the reference's deciles; equal deciles are one."""
    tenths = [k / BINS for k in range(1, BINS)]
    ((edges,),) = connection.execute(f"select quantile_disc({column}, {tenths}) from r").fetchall()
    edges = sorted(set(map(float, edges)))
    number = " + ".join(f"({column} > {edge!r})::int" for edge in edges)
    counts = {
        side: dict(
            connection.execute(
                f"select {number}, count(*) from {side} where {column} is not null group by all"
            ).fetchall()
        )
        for side in "wr"
    }
    labels = [f"≤ {edges[0]:.4g}", *(f"≤ {edge:.4g}" for edge in edges[1:]), f"> {edges[-1]:.4g}"]
    return [(label, counts["r"].get(i, 0), counts["w"].get(i, 0)) for i, label in enumerate(labels)]


def _categories(connection: duckdb.DuckDBPyConnection, column: str) -> list[tuple[str, int, int]]:
    """Return value and both counts of the reference's most frequent values, and of all others together."""
    counts = {
        side: dict(
            connection.execute(
                f"select {column}::varchar, count(*) from {side} where {column} is not null group by all order by 2 desc, 1"
            ).fetchall()
        )
        for side in "rw"
    }
    named = list(counts["r"])[:MOST_CATEGORIES]
    bars = [(name, counts["r"][name], counts["w"].get(name, 0)) for name in named]
    rest = [sum(count for name, count in counts[side].items() if name not in named) for side in "rw"]
    return [*bars, (OTHERS, rest[0], rest[1])] if any(rest) else bars


def _nulls(n: int, n_null: int, m: int, m_null: int, limit: float, level: float) -> Measure:
    window, reference = n + n_null, m + m_null
    if not window or not reference:
        return Measure(name="nulls", value=0.0, limit=limit, chance=1.0)
    pooled = (n_null + m_null) / (window + reference)
    z = NormalDist().inv_cdf(1 - level)
    return Measure(
        name="nulls",
        value=max(n_null / window - m_null / reference, 0.0),
        limit=limit,
        chance=z * math.sqrt(pooled * (1 - pooled) * (1 / window + 1 / reference)),
    )


def chi_squared(freedom: int, level: float) -> float:
    """Return the value that chi-squared exceeds with probability `level`, by Wilson and Hilferty."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + NormalDist().inv_cdf(1 - level) * math.sqrt(part)) ** 3


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    ((rows,),) = connection.execute(f"select count(*) from {table}").fetchall()
    return int(rows)


def _cast(column: str, kind: str) -> str:
    value = f"{_name(column)}::{kind}"
    # JSON has no NaN; in a reference it stands for a missing value
    return (
        f"case when isnan({_name(column)}::double) then null else {value} end"
        if kind in ("FLOAT", "DOUBLE")
        else value
    )


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; } td, th { border-bottom: 1px solid #8884; padding: .3rem 1rem .3rem 0; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } .drifted { color: light-dark(#cf222e, #ff7b72); font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 10px; } .r { fill: #9aa3ad; } .w { fill: #2563a8; }
section { border-top: 1px solid #8884; }
"""


def page(about: Mapping[str, Any], columns: Sequence[ColumnReport]) -> str:
    """Return the report as a page without scripts or links: what drifted first, each column with its picture."""
    drifted, judged = (
        sum(bool(each.drifted) for each in columns),
        sum(not each.not_judged for each in columns),
    )
    if not about["judged"]:
        head = f"{about['rows']:,} rows are too few to judge; needed are {about['limits']['fewest_rows']:,}"
    elif drifted:
        head = f"{drifted} of {judged} columns have drifted"
    else:
        head = f"no drift in {judged} columns"
    spans = " to ".join(
        datetime.fromtimestamp(about[word], timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        for word in ("begin", "end")
    )
    of = f", revision {about['revision']}" if about["revision"] else ""
    rows = (
        f"{about['rows']:,} rows asked {spans}{of}, beside {about['reference_rows']:,} rows of the reference"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(about['title'])}: drift</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(about['title'])}: {html.escape(head)}</h1><p>{html.escape(rows)}</p>"
        f'<p><svg viewBox="0 0 300 14" style="max-width:20rem"><rect class="r" width="10" height="10"/><text x="16" y="9">reference</text>'
        '<rect class="w" x="90" width="10" height="10"/><text x="106" y="9">predictions</text></svg></p>'
        + "".join(map(_section, columns))
        + "</body></html>\n"
    )


def _section(column: ColumnReport) -> str:
    rows = "".join(
        f'<tr><td class="{"drifted" if m.drifted else ""}">{m.name}</td>'
        + "".join(f'<td class="number">{value:.4g}</td>' for value in (m.value, m.limit, m.chance))
        + "</tr>"
        for m in column.measures
    )
    title = html.escape(column.name)
    mark = ' <span class="drifted">drifted</span>' if column.drifted else ""
    if column.not_judged:
        return f"<section><h2>{title} not judged</h2><p>{html.escape(column.not_judged)}</p></section>"
    return (
        f"<section><h2>{title}{mark}</h2>{_picture(column.bars)}<table><tr><th>measure</th><th>found</th>"
        f"<th>limit</th><th>chance explains</th></tr>{rows}</table></section>"
    )


def _picture(bars: Sequence[Bar]) -> str:
    """Draw the shares of both sides, bar by bar."""
    if not bars:
        return "<p>no values to draw</p>"
    top = max(max(bar.reference, bar.window) for bar in bars) or 1.0
    width, height = 900.0, 160.0
    step = width / len(bars)
    drawn = []
    for i, bar in enumerate(bars):
        for k, (kind, share) in enumerate((("r", bar.reference), ("w", bar.window))):
            tall = share / top * (height - 30)
            drawn.append(
                f'<rect class="{kind}" x="{i * step + step * (0.1 + 0.4 * k):.1f}" y="{height - 20 - tall:.1f}" '
                f'width="{step * 0.38:.1f}" height="{tall:.1f}"><title>{html.escape(bar.label)}: {share:.2%}</title></rect>'
            )
        label = html.escape(f"{bar.label:.12}")
        drawn.append(
            f'<text x="{(i + 0.5) * step:.1f}" y="{height - 6:.0f}" text-anchor="middle">{label}</text>'
        )
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img">{"".join(drawn)}</svg>'

"""The page's routes of volumes: lists, one version with its lineage, comparison, code, rows and files.

Any job may have written the file of which rows are shown, and Airflow's API server reads it: what a file can take of memory
and time is bounded before it is taken.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from itertools import islice
from pathlib import Path as FilePath
from typing import IO, Annotated, Any, AnyStr

from fastapi import APIRouter, Depends, Path as PathParameter, Query, Request
from fastapi.responses import HTMLResponse, Response

from muster.airflow.page.access import UserRights, Who, assets, same_site
from muster.airflow.page.route import Here, Json, Limit, Offset, Site, Text
from muster.airflow.site import mlflow_url
from muster.airflow.upstream.internals import DagAccessEntity
from muster.backends.releases.book import check_marks
from muster.backends.tracking import run_link, shown_run
from muster.core.address import SCHEME, pinned
from muster.core.deployment import DeploymentStatus
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.core.names import check_digest, check_volume
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.shipped import install
from muster.core.text import as_shown, one_line, shortened
from muster.ext.page import snapshots, versions
from muster.ext.page.answering import Served
from muster.ext.page.board import Board, Jobs
from muster.ext.page.graph import Permitted
from muster.ext.page.uses import Uses, documents_of, used_by
from muster.volumes.base import Record
from muster.volumes.documents import HEADERS, parse, show
from muster.volumes.parquet import MOST_COLUMNS, NAME, read_schema


def addressed(request: Request, who: Who) -> None:
    """Refuse an address of a volume that the user may not see, whichever parameter of a route it is."""
    asked, parts = request.query_params, request.path_params
    given = [value for name in ("address", "where", "version") for value in asked.getlist(name)]
    given += [parts[name] for name in ("name", "where") if name in parts]
    for each in given:
        who.need_volume(each.removeprefix(SCHEME).partition("@")[0])


api = APIRouter(default_response_class=Json, dependencies=[assets, Depends(addressed)])
documents = APIRouter(prefix="/files", dependencies=[assets, Depends(addressed)])

_MARKS = ("pin", "unpin", "retire", "reinstate")
"""What a person may do to a version, by the call of the store."""

_OF_DEPLOYMENT = "deployment/"
"""What begins the pin of a version that a deployment keeps."""

Act = Annotated[str, PathParameter(pattern=f"^({'|'.join(_MARKS)})$")]
Reason = Annotated[str, Query(max_length=400)]
Path = Annotated[str, Query(max_length=1000)]
Columns = Annotated[str, Query(max_length=4000)]
Several = Annotated[list[str] | None, Query(max_length=8)]
Before = Annotated[int | None, Query(ge=0, le=10**15)]


@api.get("/volumes")
def volumes(here: Here, who: Who) -> Json:
    """Return every volume that the user may see, with its newest version."""
    store = here.backend.store
    return Json({"volumes": versions.volumes(store, filter(who.may_volume, store.volumes()))})


@api.get("/volumes/{name:path}")
def volume(
    here: Here,
    who: Who,
    name: str,
    before: Before = None,
    limit: Limit = 50,
    by: Annotated[str, Query(pattern="^(number|partition)$")] = "number",
    columns: Columns = "",
) -> Json:
    """Return the newest versions of a volume, those before a number, or the newest of each partition."""
    look = versions.VersionsQuery(
        before=before,
        limit=limit,
        by_partition=by == "partition",
        columns=[each for each in columns.split(",") if each][: versions.MOST_CHOSEN],
    )
    return Json(versions.versions(here.backend.store, check_volume(name), look, permitted=who.may))


@api.get("/version")
def version(here: Here, jobs: Jobs, served: Served, who: Who, address: Text) -> Json:
    """Return one version, by any address that names one, the deployments that serve it, and what belongs to it."""
    store, readable = here.backend.store, _readable(who)
    found = versions.version(store, address, permitted=who.may, readable=readable)
    exact, uses = found["address"], _uses(jobs, who)
    record = store.record(exact)
    return Json(
        {
            **found,
            "lineage": versions.lineage(store, exact, uses, permitted=who.may),
            "documents": documents_of(store, uses, exact, record, readable=readable),
            "used_by": used_by(uses, exact),
            "served_by": [
                each.name for each in served.statuses() if _serves(each, exact) and who.may_deployment(each)
            ],
            **(_tracked(here, record.job_id) if who.may(record.origin.dag_id) else {}),
            "may": {"change": _may_change(who, record)},
        }
    )


@api.post("/version/{act}", dependencies=[Depends(same_site)])
def mark(here: Here, who: Who, act: Act, address: Text, reason: Reason = "") -> Json:
    """Keep a version from gc, hide it from selectors, or take that back; Airflow's audit log says who asked."""
    store = here.backend.store
    record = store.record(address)
    who.need(record.origin.dag_id, DagAccessEntity.TASK_INSTANCE, method="PUT")
    who.need_volume(record.volume, method="PUT")
    exact, why = pinned(record.volume, record.number), one_line(reason) or f"by {who.name}"
    if act == "unpin" and why.startswith(_OF_DEPLOYMENT):
        name = why.removeprefix(_OF_DEPLOYMENT)
        raise Conflict(f"deployment {name} keeps {exact} itself: retire that, or release another version")
    if act in ("retire", "unpin"):
        check_marks(store, exact, retires=act == "retire", unpins=why if act == "unpin" else None)
    who.note(f"muster_{act}", Origin(dag_id=record.origin.dag_id), version=exact, reason=why)
    changed = store.reinstate(exact) if act == "reinstate" else getattr(store, act)(exact, reason=why)
    return Json({"pins": list(changed.pins), "retired": changed.retired})


@api.get("/lineage")
def lineage(here: Here, jobs: Jobs, who: Who, address: Text) -> Json:
    """Return a version's lineage, as a picture's nodes and edges."""
    return Json(versions.lineage(here.backend.store, address, _uses(jobs, who), permitted=who.may))


@api.get("/compare")
def compare(here: Here, who: Who, version: Several = None) -> Json:
    """Return versions side by side."""
    store = here.backend.store
    return Json(versions.side_by_side(store, version or [], permitted=who.may, readable=_readable(who)))


@api.get("/code")
def code(here: Here, who: Who, address: Text, file: Path = "") -> Json:
    """Return the files of the code that made a version, or the text of one of them."""
    store = here.backend.store
    record = store.record(address)
    who.need(record.origin.dag_id, DagAccessEntity.CODE)
    digest = _code(record)
    if file:
        return Json({"path": file, "text": snapshots.text(store, digest, file)})
    return Json(snapshots.listed(store, digest))


@api.get("/rows")
def rows(here: Here, who: Who, where: Path) -> Json:
    """Return the schema and the first rows of a table in a version."""
    store, address = here.backend.store, parse(where)
    _need(here, who, f"{address.volume}@{address.value}")
    if address.path not in store.manifest(f"{address.volume}@{address.value}"):
        raise NotFound(f"{address.volume}@{address.value} holds no {address.path!r:.120}")
    return Json(preview(store.path(str(address))))


@api.get("/version_files")
def version_files(
    here: Here, who: Who, address: Text, under: Path = "", text: Text = "", offset: Offset = 0
) -> Json:
    """Return a folder of a version: its folders and files, a page at a time; or all files whose path holds a text."""
    _need(here, who, address)
    return Json(versions.files(here.backend.store, address, under=under, text=text, offset=offset))


@documents.get("/{where:path}")
def file(here: Here, who: Who, where: str, rendered: bool = False) -> Response:
    """Return one file of a version, in a sandbox; Markdown as a document where `rendered` is asked for."""
    address = parse(where)
    _need(here, who, f"{address.volume}@{address.value}")
    found = show(here.backend.store, address)
    if rendered and address.path.lower().endswith(".md"):
        return HTMLResponse(markdown(FilePath(found.path)), headers=HEADERS)
    return found


def _serves(status: DeploymentStatus, address: str) -> bool:
    return any(each.model.address == address and each.percent for each in status.revisions)


def _need(here: Site, who: UserRights, address: str) -> None:
    """Refuse who may not read the files of a version."""
    who.need(here.backend.store.record(address).origin.dag_id, DagAccessEntity.XCOM)


def _may_change(who: UserRights, record: Record) -> bool:
    return who.may(record.origin.dag_id, method="PUT") and who.may_volume(record.volume, method="PUT")


def _readable(who: UserRights) -> Permitted:
    return partial(who.may, entity=DagAccessEntity.XCOM)


def _uses(board: Board, who: UserRights) -> Uses:
    board.look()
    return Uses(board, board.dags(who.may))


def _code(record: Record) -> str:
    if record.code is None:
        made = record.note or "it is not known what made it"
        raise NotFound(f"{record.volume}@{record.number} was made by no code of a Dag: {made}")
    return check_digest("code snapshot", record.code)


def _tracked(here: Site, job_id: str) -> dict[str, Any]:
    """Where the run is shown that a version's job tracked in MLflow, empty where nothing shows it now, and whether there is one."""
    home = Settings.load().home
    run = shown_run(home, job_id)
    url = run_link(here.backend.store.ledger, job_id, home=home, shown_at=mlflow_url() if run else "")
    return {"mlflow": url, "tracked": bool(run)}


ROWS = 20
CELL = 200
"""The characters of a cell that are shown."""
ANSWER = 1 << 20
"""The characters of all cells together: of very many columns each cell is shorter."""
LINE_BYTES = 1 << 20
READ_BYTES = 2 << 20
"""What is read of a file of text: its objects take up to thirty times as much memory."""
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (".parquet", *_SEPARATORS, ".jsonl")
MISSING = f"the rows are not shown, because Airflow's environment has no DuckDB: `{install('page')}` there"
_MARKDOWN_BYTES = 128 << 10
"""What is read of a document: a megabyte of brackets takes half a minute."""
_DOCUMENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light dark; }} @media (prefers-color-scheme: dark) {{ body {{ background: #14171b; color: #dde2e8; }} a {{ color: #7db2f0; }} }}
body {{ font: 15px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
pre, code {{ font-family: ui-monospace, monospace; font-size: 0.93em; }} pre {{ overflow: auto; }} img {{ max-width: 100%; }}
table {{ border-collapse: collapse; }} th, td {{ border: 1px solid #8884; padding: 0.2rem 0.6rem; }}</style><body>{body}</body></html>"""


def preview(path: FilePath) -> dict[str, Any]:
    """Return the columns of a table, the number of its rows where the file says it, and the first 20 rows.

    :raises SpecError: it is no table that can be shown. :raises Corrupt: it cannot be read.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _parquet(path)
    if kind in _SEPARATORS:
        return _separated(path, _SEPARATORS[kind])
    if kind == ".jsonl":
        return _json_lines(path)
    raise SpecError(f"{path.name}: rows are shown of {', '.join(TABLES)}")


def _parquet(path: FilePath) -> dict[str, Any]:
    schema = read_schema(path)
    columns = [asdict(each) for each in schema.columns]
    cells: list[tuple[Any, ...]] = []
    note = ""
    if schema.in_all <= MOST_COLUMNS:
        cells, own, note = _rows(path)
        if cells and len(own) != len(columns):  # a nested one is several in the file, and one in a row
            columns = own
    return _table(columns, cells, in_all=schema.in_all, note=note) | {"total": schema.rows}


def _rows(path: FilePath) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]], str]:
    """Return the first rows and their columns, or why there are none."""
    try:
        import duckdb
    except ImportError:
        return [], [], MISSING
    limits: dict[str, Any] = {"threads": "1", "memory_limit": "512MB", "temp_directory": ""}
    try:
        with path.open("rb") as file, duckdb.connect(config=limits) as asked:
            # By its number: a name may hold what DuckDB takes for a pattern.
            table = f"FROM read_parquet('/proc/self/fd/{file.fileno()}') LIMIT {ROWS}"
            kinds = asked.execute(f"SELECT * {table}").description
            own = [_column(name, shortened(str(kind).lower(), CELL)) for name, kind, *_ in kinds]
            # Cut by DuckDB, which has a limit: a value of a gigabyte in every row takes a kilobyte of the file.
            cut = f"SELECT left(COLUMNS(*)::VARCHAR, {CELL + 1}) {table}"
            return asked.execute(cut).fetchall(), own, ""
    except duckdb.Error as error:
        return [], [], f"the rows are not shown: {shortened(as_shown(str(error)), CELL)}"


def markdown(path: FilePath) -> str:
    """Return a file of Markdown as an HTML document. HTML within it is shown as the text that it is."""
    from markdown_it import MarkdownIt

    text = path.read_bytes()[:_MARKDOWN_BYTES].decode(errors="replace")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return _DOCUMENT.format(title=escape(path.name), body=body)


def _separated(path: FilePath, separator: str) -> dict[str, Any]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        # The limit of a field is the whole process's: it is not ours to raise.
        found, note = _first(csv.reader(_lines(file), delimiter=separator), ROWS + 1, csv.Error)
    names, rows = (found[0], found[1:]) if found else ([], [])
    return _table([_column(name) for name in names[:MOST_COLUMNS]], rows, in_all=len(names), note=note)


def _json_lines(path: FilePath) -> dict[str, Any]:
    with path.open("rb") as file:
        lines = (json.loads(line) for line in _lines(file) if line.strip())
        found, note = _first(lines, ROWS, (ValueError, RecursionError))
    if note and not found:
        raise Corrupt(f"{path.name} is shown as lines of JSON, and {note}")
    rows = [row if isinstance(row, dict) else {"value": row} for row in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = names[:MOST_COLUMNS]
    cells = [[row.get(name) for name in shown] for row in rows]
    return _table([_column(name, nullable=True) for name in shown], cells, in_all=len(names), note=note)


def _lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the first lines of a file; what is too long is cut."""
    left = READ_BYTES
    while line := file.readline(min(LINE_BYTES, left)):
        left -= len(line)
        yield line


def _first(
    rows: Iterator[Any], most: int, broken: type[Exception] | tuple[type[Exception], ...]
) -> tuple[list[Any], str]:
    """Return the first rows that can be read, and why the next one cannot."""
    found: list[Any] = []
    try:
        for row in islice(rows, most):
            found.append(row)  # noqa: PERF402 - what was read before an error is shown
    except broken as error:
        why = shortened(as_shown(str(error)), CELL)
        return (
            found,
            f"row {len(found) + 1} cannot be read: {why} (a row is read up to {LINE_BYTES >> 20} MiB)",
        )
    return found, ""


def _column(name: str, kind: str = "", *, nullable: bool = False) -> dict[str, Any]:
    return {"name": shortened(as_shown(name[: 4 * NAME]), NAME), "type": kind, "nullable": nullable}


def _table(
    columns: list[dict[str, Any]], rows: Sequence[Sequence[Any]], *, in_all: int, note: str
) -> dict[str, Any]:
    if in_all > len(columns) == MOST_COLUMNS:
        note = f"{in_all:,} columns, of which the first {MOST_COLUMNS:,} are shown; {note}".removesuffix("; ")
    shown = [row[:MOST_COLUMNS] for row in rows]
    width = min(CELL, ANSWER // max(1, sum(map(len, shown))))
    cells = [[_cell(each, width) for each in row] for row in shown]
    return {"columns": columns, "total": None, "rows": cells, "note": note}


def _cell(value: Any, width: int) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return shortened(as_shown(text), width)

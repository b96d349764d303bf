"""``muster predictions``: what was asked and answered, where a deployment keeps its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.command import Json, example, group, open_deployments, open_place, open_store
from muster.cli.deployments import tell_unread
from muster.cli.screen import emit, fields, note, safe, say, when
from muster.core.errors import BackendError, Corrupt, NotFound
from muster.core.names import check_label
from muster.core.prediction import PredictionId, predictions_volume
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.request_log import Predictions
    from muster.volumes.base import Record, Version
    from muster.volumes.protocols import LocalStore

_SHOWN_ROWS = 20

app = group(
    "Predictions: requests and answers that a deployment keeps. Turn it on in the Dag: log=RequestLog(…)."
)


@app.command(
    "show",
    epilog=example(
        "muster predictions show flights-19ab2c3d4e5-3f9c1a7b-2a",
        "muster predictions show flights-19ab2c3d4e5-3f9c1a7b-2a --json | jq .rows",
    ),
)
def show(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="As the header muster-prediction of an answer tells it.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Show a prediction: its rows, its model, and the model's lineage."""
    from muster.cli import lineage

    wanted, store = PredictionId.parse(identity), open_store()
    rows, version = _predictions(store).find(wanted)
    model = rows[0]["model"]
    record = _record(store, model)
    if as_json:
        emit(_document(wanted, rows, version, model, store if record else None))
        return
    say(typer.style(safe(identity), bold=True))
    fields(
        [
            ("time", when(wanted.at)),
            ("revision", f"{rows[0]['revision']} of {wanted.deployment}"),
            ("client's id", rows[0]["request_id"]),
            ("held by", _held_by(version)),
        ]
    )
    for row in rows[:_SHOWN_ROWS]:
        inputs, outputs = (lineage.values(_side(row, side)) for side in ("input", "output"))
        say(f"  {safe(inputs)}  ->  {safe(outputs)}")
    if len(rows) > _SHOWN_ROWS:
        note(f"… and {len(rows) - _SHOWN_ROWS} more rows; --json has all")
    say()
    if record is None:
        note(f"{model or 'the model'} is not in this store")
        return
    from muster.volumes.lineage import ancestors

    lineage.show(record, _version(store, model))
    for text in lineage.trace(ancestors(store, model)):
        say(f"  {safe(text)}")


@app.command("commit", epilog=example("muster predictions commit flights"))
def commit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A deployment's name, such as flights.")],
    *,
    as_json: Json = False,
) -> None:
    """Commit the requests that a deployment has kept until now.

    Each hour is committed by itself once it is over; this need only be run to read its rows sooner, or after the
    deployment was retired while the disk was full. On a cluster it commits the hours that are over.
    """
    made, troubles = _committed(name)
    if as_json:
        emit([{"address": each.address, "partition": each.partition} for each in made])
    else:
        for each in made:
            say(f"{each.partition}  {each.address}")
        if not made and not troubles:
            note(f"nothing new of {name}")
        tell_unread(name)
    if troubles:
        raise BackendError("\n".join(troubles))


def _committed(name: str) -> tuple[list[Version], list[str]]:
    """Commit what is spooled on this machine, and on the cluster that MUSTER_CLUSTER names; return also what went wrong there."""
    store, settings = open_store(), Settings.load()
    made = list(_predictions(store).commit_answered(check_label("deployment", name), progress=note))
    place = open_place()
    troubles = list(place.commit_requests(name, made.append, progress=note))
    if place.here and not made:  # of an hour that is not over elsewhere, nothing is seen here
        _check_known(name, store, settings)
    return made, troubles


def _check_known(name: str, store: LocalStore, settings: Settings) -> None:
    """Refuse a name that no deployment has, and of which no request was kept. :raises NotFound: it names what there is."""
    from muster.volumes.spool import Spool

    known, volumes = open_deployments().names(), store.volumes()
    if name in known or predictions_volume(name) in volumes or Spool(settings.home, name).path.is_dir():
        return
    ended = (volume.removesuffix("/predictions") for volume in volumes if volume.endswith("/predictions"))
    there = ", ".join(sorted({*known, *ended}))
    raise NotFound(f"no deployment {name!r}: {f'there is {there}' if there else 'there are none yet'}")


def _predictions(store: LocalStore) -> Predictions:
    from muster.backends.request_log import Predictions

    return Predictions(Settings.load(), store)


def _document(
    identity: PredictionId,
    rows: list[dict[str, Any]],
    version: Version | None,
    model: str,
    store: LocalStore | None,
) -> dict[str, Any]:
    from muster.volumes.lineage import document

    first = rows[0]
    return {
        "id": identity.text,
        "deployment": identity.deployment,
        "time": identity.at,
        "revision": first["revision"],
        "model": model,
        "request_id": first["request_id"],
        "version": version.address if version else None,
        "partition": identity.hour,
        "rows": [{"inputs": _side(row, "input"), "outputs": _side(row, "output")} for row in rows],
        "lineage": document(store, model) if store else None,
    }


def _side(row: dict[str, Any], side: str) -> dict[str, Any]:
    begins = f"{side}_"
    return {name.removeprefix(begins): value for name, value in row.items() if name.startswith(begins)}


def _held_by(version: Version | None) -> str:
    if version is None:
        return "no version yet: its hour is committed once it is over, or by muster predictions commit"
    return f"{version.address}, hour {version.partition}"


def _record(store: LocalStore, model: str) -> Record | None:
    try:
        return store.record(model) if model else None
    except (NotFound, Corrupt):
        return None


def _version(store: LocalStore, model: str) -> Version | None:
    try:
        return store.resolve(model)[0]
    except NotFound:  # gc deleted its data; the record stays
        return None


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].add_typer(app, name="predictions")

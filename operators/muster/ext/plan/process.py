"""Plans a run for an api-server, in a process of its own: ``python -m muster.ext.plan.process PARENT``.

A plan needs the Dag's file, which is its author's code. Airflow's servers run none of it, so this process does, once,
with the configuration of the server that starts it, and dies with that. Its stdin is a :class:`PlanRequest` as JSON, its
stdout ``{"plan": …}`` or ``{"refused": "why"}``; what the Dag's file prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from muster.core.errors import MusterError
from muster.core.linux import die_with
from muster.core.wire import plain


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Which run is to be planned.

    :param file: of the Dag, `folder` its bundle's.
    :param params: as of :func:`muster.ext.plan.commands.plan_dag`.
    """

    dag_id: str
    file: str
    folder: str
    params: Mapping[str, Any]


def main(parent: int) -> None:
    """Answer one request."""
    die_with(parent)
    wanted = PlanRequest(**json.load(sys.stdin))
    with _answer() as answer:
        json.dump(_plan(wanted), answer, allow_nan=False)


def _answer() -> TextIO:
    """Return stdout as a file of our own; what else is written to stdout goes to stderr."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answer


def _plan(wanted: PlanRequest) -> dict[str, Any]:
    from muster.airflow.embedded.load import parse
    from muster.airflow.site import connect
    from muster.core.settings import Settings
    from muster.ext.plan.planner import Planner

    settings = Settings.load()
    try:
        dag = parse(wanted.dag_id, Path(wanted.folder), file=Path(wanted.file))
        found = Planner(dag, wanted.params, connect(settings), settings).plan()
    except MusterError as error:
        return {"refused": str(error)}
    return {"plan": plain(found)}


if __name__ == "__main__":
    main(int(sys.argv[1]))

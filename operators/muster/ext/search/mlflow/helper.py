"""Answers calls of MLflow's REST API from a store that has no server, such as a file: one call a line on stdin, its answer on stdout.

:mod:`muster.ext.search.mlflow.reach` starts it with the Python of an image that has MLflow: it imports nothing of muster, and is
Python 3.10. Its first line is ``{"ready": true}``, or ``{"missing": "why"}``. It ends with its stdin.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

_SQLITE = "sqlite:///"


def main() -> None:
    """Answer until stdin ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints
    try:
        from mlflow import MlflowClient

        _make_tables(os.environ.get("MLFLOW_TRACKING_URI", ""))
        client = MlflowClient()
    except Exception as error:
        _say(out, {"missing": f"{type(error).__name__}: {error}"})
        return
    _say(out, {"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = {"answer": _CALLS[asked["name"]](client, asked["given"])}
        except Exception as error:
            answer = {"error": str(error), "code": getattr(error, "error_code", "")}
        _say(out, answer)


def _make_tables(uri: str) -> None:
    """Make a database on this machine whole, or not at all: MLflow cannot use one that a kill left half made.

    One process at a time does it, as MLflow itself takes no lock.
    """
    if not uri.startswith(_SQLITE) or Path(database := uri[len(_SQLITE) :]).exists():
        return
    from mlflow import MlflowClient

    Path(database).parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{database}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(database).exists():
            part = Path(f"{database}.part")
            part.unlink(missing_ok=True)
            MlflowClient(f"{_SQLITE}{part}").search_experiments(max_results=1)
            part.rename(database)


def _say(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


def _search(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    found = client.search_runs(
        given["experiment_ids"],
        filter_string=given["filter"],
        max_results=given["max_results"],
        page_token=given.get("page_token"),
    )
    return {"runs": [_run(each) for each in found], "next_page_token": found.token or ""}


def _create(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    made = client.create_run(
        given["experiment_id"],
        start_time=given["start_time"],
        tags=_dict(given["tags"]),
        run_name=given["run_name"],
    )
    return {"run": _run(made)}


def _add(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    from mlflow.entities import Metric, Param, RunTag

    client.log_batch(
        given["run_id"],
        metrics=[
            Metric(each["key"], each["value"], each["timestamp"], each["step"])
            for each in given.get("metrics", ())
        ],
        params=[Param(each["key"], each["value"]) for each in given.get("params", ())],
        tags=[RunTag(each["key"], each["value"]) for each in given.get("tags", ())],
    )
    return {}


def _update(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    if "end_time" in given:
        client.set_terminated(given["run_id"], given["status"], given["end_time"])
    else:
        client.update_run(given["run_id"], status=given["status"])
    return {}


def _experiment(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    found = client.get_experiment_by_name(given["experiment_name"])
    if found is None:
        raise _Missing(f"no experiment {given['experiment_name']!r}")
    return {"experiment": {"experiment_id": found.experiment_id}}


def _new_experiment(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {"experiment_id": client.create_experiment(given["name"])}


class _Missing(Exception):
    error_code = "RESOURCE_DOES_NOT_EXIST"


def _run(run: Any) -> dict[str, Any]:
    info = run.info
    return {
        "info": {"run_id": info.run_id, "status": info.status, "start_time": info.start_time},
        "data": {"tags": [{"key": key, "value": value} for key, value in run.data.tags.items()]},
    }


def _dict(pairs: list[dict[str, str]]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in pairs}


_CALLS = {
    "runs/search": _search,
    "runs/create": _create,
    "runs/log-batch": _add,
    "runs/update": _update,
    "experiments/get-by-name": _experiment,
    "experiments/create": _new_experiment,
}

if __name__ == "__main__":
    main()

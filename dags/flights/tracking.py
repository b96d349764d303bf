"""Tracks training: TensorBoard events beside the model, and a run in MLflow."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXPERIMENT = "flights"
_SQLITE = "sqlite:///"


class Board:
    """TensorBoard events in a folder; an epoch is a step."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)

    def write(self, epoch: Mapping[str, float]) -> None:
        """Add the figures of one epoch, and flush them, so that TensorBoard shows them at once."""
        for name, value in epoch.items():
            self._writer.add_scalar(f"epoch/{name}", value, int(epoch["epoch"]))
        self._writer.flush()


def record(
    params: Mapping[str, Any], history: Sequence[Mapping[str, float]], metrics: Mapping[str, float]
) -> None:
    """Write a finished training as one MLflow run to ``MLFLOW_TRACKING_URI``; without that variable do nothing.

    It is written at the end and at once: a restarted gang leaves one run, not two, and no GPU waits for a
    tracking server.
    """
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        print(
            "MLflow: MLFLOW_TRACKING_URI is not set, so this run is tracked in TensorBoard alone", flush=True
        )
        return
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # silences its many lines about making tables
    job = os.environ.get("MUSTER_JOB_ID", "")
    with _tables_made(os.environ["MLFLOW_TRACKING_URI"]):
        mlflow.set_experiment(EXPERIMENT)
    with mlflow.start_run(run_name=job or None, tags={"muster.job_id": job} if job else None) as run:
        mlflow.log_params(dict(params))
        for epoch in history:
            mlflow.log_metrics(
                {f"epoch_{n}": v for n, v in epoch.items() if n != "epoch"}, step=int(epoch["epoch"])
            )
        mlflow.log_metrics(dict(metrics))
    print(f"MLflow: run {run.info.run_id} of experiment {EXPERIMENT}", flush=True)
    server = mlflow.get_tracking_uri().rstrip("/")
    if server.startswith("http"):
        print(
            f"muster: link MLflow={server}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}",
            flush=True,
        )


@contextmanager
def _tables_made(uri: str) -> Iterator[None]:
    """Let one training at a time come to a database on this machine, with its tables made: MLflow itself takes no lock.

    They are made in another file, which is then renamed: MLflow cannot use a database that a kill left half made.
    """
    if not uri.startswith(_SQLITE):
        yield
        return
    from mlflow import MlflowClient

    database, part = Path(uri.removeprefix(_SQLITE)), Path(uri.removeprefix(_SQLITE) + ".part")
    with Path(f"{database}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not database.exists():
            part.unlink(missing_ok=True)
            MlflowClient(f"{_SQLITE}{part}").search_experiments(max_results=1)
            part.rename(database)
        yield

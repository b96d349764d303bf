"""``muster mlflow``: the runs that jobs on this machine tracked, shown by MLflow's own server."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from muster.backends.tracking import PORT, tracking_database, tracking_uri
from muster.cli.foreground import python_of_image, serve
from muster.cli.screen import say
from muster.core.errors import NotFound
from muster.core.settings import Settings

_APP = "mlflow.server.fastapi_app:app"


def mlflow(
    *,
    image: Annotated[str, typer.Option(help="The image whose MLflow is run.")] = "mlflow",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where on 127.0.0.1 it answers.")] = PORT,
) -> None:
    """Show the MLflow runs of this machine's jobs, until Ctrl-C.

    A job finds the database in MLFLOW_TRACKING_URI unless its task's env says otherwise. The first time an image
    is built. The link "MLflow run" of a task in Airflow leads here while it runs; for another port than 5000 Airflow
    has to know: mlflow_url, under [muster].
    """
    settings = Settings.load()
    database = tracking_database(settings.home)
    if not database.is_file():
        raise NotFound(
            f"no job here has tracked a run: there is no {database}. A job that calls mlflow.log_metric(…), in an "
            "image with mlflow-skinny, sqlalchemy and alembic, makes it; on a cluster MLflow is where the task's env says"
        )
    python = python_of_image(image)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends with this process
    say(f"http://127.0.0.1:{port}/   Ctrl-C ends it")
    # `mlflow server` starts a process for this and others for its own jobs, which would outlive it.
    server = (python, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), _APP)
    serve("MLflow", server, folder=database.parent, variables={"MLFLOW_TRACKING_URI": tracking_uri(database)})

"""``muster mlflow``: shows the runs that jobs on this machine tracked, in MLflow's own server."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from muster.backends.tracking import PORT, tracking_database, tracking_uri
from muster.cli.foreground import check_port, python_of_image, serve
from muster.cli.screen import say
from muster.core.errors import NotFound
from muster.core.interpreters import python_command
from muster.core.settings import Settings

_APP = "mlflow.server.fastapi_app:app"


def mlflow(
    *,
    image: Annotated[str, typer.Option(help="The image with MLflow.")] = "mlflow",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port on 127.0.0.1.")] = PORT,
) -> None:
    """Show the MLflow runs of this machine's jobs, until Ctrl-C.

    A job gets the database's address in MLFLOW_TRACKING_URI, unless its task's env sets another. The first use builds an
    image. While the server runs, the link "MLflow run" of a task in Airflow leads to it; for a port other than 5000, set
    mlflow_url under [muster] in Airflow's configuration.
    """
    settings = Settings.load()
    database = tracking_database(settings.home)
    if not database.is_file():
        raise NotFound(
            f"no job here has tracked a run: there is no {database}. A job that calls mlflow.log_metric(…), in an "
            "image with mlflow-skinny, sqlalchemy and alembic, creates it; on a cluster the task's env names the MLflow server"
        )
    check_port(port)
    image_python = python_of_image(image)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends with this process
    say(f"http://127.0.0.1:{port}/   Ctrl-C ends it")
    # `mlflow server` would start a child process for this, and more for its own jobs; they would outlive it.
    where = ("--host", "127.0.0.1", "--port", str(port))
    server = python_command("-m", "uvicorn", *where, _APP, of=image_python, isolated=True)
    serve("MLflow", server, folder=database.parent, variables={"MLFLOW_TRACKING_URI": tracking_uri(database)})

"""Reaches the MLflow in which a job's ranks track their runs."""

from __future__ import annotations

from muster.backends.mlflow.beside import Beside
from muster.backends.mlflow.runs import Runs
from muster.backends.mlflow.server import Server
from muster.backends.tracking import URI, Tracking
from muster.core.errors import SpecError


def reach(tracking: Tracking) -> Runs | None:
    """Return the runs that the job's ranks would see; None where that must wait: its image is not built yet.

    :raises SpecError: no process outside of the job reaches them.
    :raises ImageError: the image has no MLflow. :raises BackendError: it is away.
    """
    if tracking.hidden:
        raise SpecError(
            f"{tracking.hidden[0]} is in a Kubernetes Secret, which only pods are given: take it from a connection"
        )
    uri = tracking.variables.get(URI)
    if not uri:
        raise SpecError(f"{URI} is not set")
    if uri.startswith(("http://", "https://")):
        return Runs(Server(tracking.variables), tracking.variables)
    if tracking.containers:
        raise SpecError(f"{URI} is {uri:.80}: need the http(s) address of a server")
    if tracking.python is None:
        return None
    return Runs(Beside(tracking.python, tracking.variables), tracking.variables)

"""A deployment of a whole Airflow's: its versions, its users, what was told of it and why its tasks failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e import faulty
from tests.serving import onnx_graph
from tests.serving.load import Load
from tests.site import Site

from muster.backends.base import Backend
from muster.backends.local.place import MachinePlace
from muster.core.deployment import DeploymentStatus
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore

NAME = "line"


class Released:
    """The deployment of the site, its versions and its users."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.store = FolderStore(site.home / "store")
        self.backend = Backend(MachinePlace(Settings.load(site.environment)))

    def begun(self, dag_id: str, folder: Path) -> Released:
        """Release a first version by a Dag; it serves all users."""
        first = self.version(folder, slope=2.0)
        assert self.site.wait(dag_id, self.site.trigger(dag_id, {"model": first})) == "success"
        assert self.champion == first
        return self

    def version(self, folder: Path, **line: float) -> str:
        """Commit a model ``y = slope x + offset``."""
        return str(self.store.add("lines/model", onnx_graph.write_line(folder / "line", **line)).address)

    @property
    def status(self) -> DeploymentStatus:
        return self.backend.deployments.deployment(NAME)

    def share(self, address: str) -> int:
        """The percent that a version has now."""
        found = self.status.revision(address) if NAME in self.backend.deployments.names() else None
        return found.percent if found else 0

    @property
    def champion(self) -> str:
        assert self.status.champion is not None
        return self.status.champion.model.address

    def users(self, *, x: float = 3.0) -> Load:
        port = int(self.status.url.rpartition(":")[2])
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}
        return Load(port, f"/v2/models/{NAME}/infer", {"inputs": [tensor]})

    def log(self, dag_id: str, run: str, task: str = "deploy", **more: int) -> str:
        return self.site.task_log(dag_id, run, task, **more)


def events(site: Site) -> list[dict[str, Any]]:
    """What was told of the deployment's asset, oldest first."""
    assets = site.ask_api("GET", "assets", params={"uri_pattern": "deployment://line"})["assets"]
    asked = {"asset_id": assets[0]["id"], "order_by": "timestamp", "limit": 100}
    return [each["extra"] for each in site.ask_api("GET", "assets/events", params=asked)["asset_events"]]


def why(site: Site, dag_id: str, run: str, *, task: str = "deploy") -> list[str]:
    """The verdict of a task as the page shows it."""
    try_number = int(site.task(dag_id, run, task)["try_number"])
    lines = faulty.shown(site, run, task, dag=dag_id, try_number=try_number)
    (begin,) = [number for number, line in enumerate(lines) if ": release " in line]
    return [line.partition("Failed: ")[2] or line for line in lines[begin : begin + 4]]


def short(address: str) -> str:
    return address.removeprefix("volume://")

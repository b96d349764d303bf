"""An MLflow in memory: it answers the calls of muster.ext.search.mlflow as a server does, and can be away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.errors import BackendError, NotFound


@dataclass
class Kept:
    """A run that it keeps."""

    run_id: str
    name: str
    experiment: str
    tags: dict[str, str]
    began: int
    status: str = "RUNNING"
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, int, float]] = field(default_factory=list)


@dataclass
class InMemory:
    """The transport, and what it was told.

    :ivar away: whether it does not answer.
    """

    runs: list[Kept] = field(default_factory=list)
    experiments: dict[str, str] = field(default_factory=lambda: {"Default": "0"})
    away: bool = False
    page: int = 2
    calls: int = 0

    def call(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls += 1
        if self.away:
            raise BackendError("MLflow does not answer")
        answer: Mapping[str, Any] = getattr(self, name.replace("/", "_").replace("-", "_"))(given)
        return answer

    def close(self) -> None:
        pass

    def having(self, **tags: str) -> list[Kept]:
        wanted = {f"muster.{name}": text for name, text in tags.items()}
        return [run for run in self.runs if wanted.items() <= run.tags.items()]

    def below(self, parent: Kept) -> list[Kept]:
        return [run for run in self.runs if run.tags.get("mlflow.parentRunId") == parent.run_id]

    def experiments_get_by_name(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if given["experiment_name"] not in self.experiments:
            raise NotFound("there is none")
        return {"experiment": {"experiment_id": self.experiments[given["experiment_name"]]}}

    def experiments_create(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"experiment_id": self.experiments.setdefault(given["name"], str(len(self.experiments)))}

    def runs_create(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        run = Kept(
            run_id=f"run-{len(self.runs)}",
            name=given["run_name"],
            experiment=given["experiment_id"],
            tags=dict(_pairs(given["tags"])),
            began=given["start_time"],
        )
        self.runs.append(run)
        return {"run": _shown(run)}

    def runs_search(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        tag, _, value = given["filter"].removeprefix("tags.`").partition("` = ")
        found = [
            run
            for run in reversed(self.runs)
            if run.tags.get(tag) == value.strip("'") and run.experiment in given["experiment_ids"]
        ]
        first = int(given.get("page_token", 0))
        more = {"next_page_token": str(first + self.page)} if first + self.page < len(found) else {}
        return {"runs": [_shown(run) for run in found[first : first + self.page]], **more}

    def runs_log_batch(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        (run,) = (run for run in self.runs if run.run_id == given["run_id"])
        for name, text in _pairs(given.get("params", ())):
            if run.params.setdefault(name, text) != text:
                raise BackendError(f"param {name} has another value")
        for each in given.get("metrics", ()):
            point = (each["key"], each["step"], each["value"])
            assert point not in run.metrics, "a point is told once"
            run.metrics.append(point)
        run.tags.update(_pairs(given.get("tags", ())))
        return {}

    def runs_update(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        (run,) = (run for run in self.runs if run.run_id == given["run_id"])
        run.status = given["status"]
        return {}


def _pairs(pairs: Any) -> Iterator[tuple[str, str]]:
    return ((each["key"], each["value"]) for each in pairs)


def _shown(run: Kept) -> Mapping[str, Any]:
    return {
        "info": {"run_id": run.run_id, "status": run.status, "start_time": run.began},
        "data": {"tags": [{"key": key, "value": value} for key, value in run.tags.items()]},
    }

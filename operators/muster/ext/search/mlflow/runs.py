"""The runs of one experiment of MLflow: looked up by a tag, begun, and added to. The shapes are those of MLflow's REST API 2.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from muster.core.errors import BackendError, NotFound

PARENT = "mlflow.parentRunId"
"""The tag of a nested run: the id of the run that it is shown below."""
_PAGE = 1000
_MOST_PARAMS = 100  # that MLflow takes in one call
_LONGEST_PARAM = 6000
_LONGEST_TAG = 5000


class MlflowTransport(Protocol):
    """A way to call MLflow."""

    def call(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call ``api/2.0/mlflow/NAME`` and return its answer.

        :raises NotFound: what is asked for is not there. :raises BackendError: MLflow is away, or refuses.
        """

    def close(self) -> None:
        """Give back what is held open."""


@dataclass(frozen=True, kw_only=True)
class MlflowRun:
    """A run as it was looked up. :param began: milliseconds since the epoch."""

    run_id: str
    status: str
    began: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MlflowMetric:
    """A value of a metric. :param at: seconds since the epoch."""

    name: str
    value: float
    step: int
    at: float


class MlflowRuns:
    """The runs of the experiment in which a job's ranks track theirs.

    :param variables: the job's; MLFLOW_EXPERIMENT_ID and MLFLOW_EXPERIMENT_NAME say which experiment that is.
    """

    def __init__(self, transport: MlflowTransport, variables: Mapping[str, str]) -> None:
        self._transport = transport
        self._experiment = variables.get("MLFLOW_EXPERIMENT_ID", "")
        self._name = variables.get("MLFLOW_EXPERIMENT_NAME", "")

    def find(self, tag: str, value: str) -> list[MlflowRun]:
        """Return every run of the experiment with this tag, the oldest first. :raises BackendError: MLflow is away."""
        found: list[MlflowRun] = []
        page = ""
        while True:
            answer = self._transport.call(
                "runs/search",
                {
                    "experiment_ids": [self._in()],
                    "filter": f"tags.`{tag}` = '{value}'",
                    "max_results": _PAGE,
                    **({"page_token": page} if page else {}),
                },
            )
            found += map(_run, answer.get("runs", ()))
            page = answer.get("next_page_token", "")
            if not page:
                return sorted(found, key=lambda run: (run.began, run.run_id))

    def begin(self, name: str, *, tags: Mapping[str, str], at: float) -> MlflowRun:
        """Begin a run. :param at: seconds since the epoch. :raises BackendError: MLflow is away."""
        answer = self._transport.call(
            "runs/create",
            {
                "experiment_id": self._in(),
                "run_name": name,
                "start_time": _milliseconds(at),
                "tags": _pairs(tags, _LONGEST_TAG),
            },
        )
        return _run(answer.get("run"))

    def add(
        self,
        run_id: str,
        *,
        params: Mapping[str, str] | None = None,
        metrics: Sequence[MlflowMetric] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add to a run: metrics, then params, then tags. :raises BackendError: MLflow is away, or a param has another value."""
        pairs = iter(_pairs(params or {}, _LONGEST_PARAM))
        first = list(islice(pairs, _MOST_PARAMS))
        while more := list(islice(pairs, _MOST_PARAMS)):
            self._transport.call("runs/log-batch", {"run_id": run_id, "params": more})
        self._transport.call(
            "runs/log-batch",
            {
                "run_id": run_id,
                "metrics": list(_metrics(metrics)),
                "params": first,
                "tags": _pairs(tags or {}, _LONGEST_TAG),
            },
        )

    def mark(self, run_id: str, status: str, *, at: float | None = None) -> None:
        """Set a run's status. :param at: when it ended; None where it goes on."""
        ended = {} if at is None else {"end_time": _milliseconds(at)}
        self._transport.call("runs/update", {"run_id": run_id, "status": status, **ended})

    def close(self) -> None:
        """Give back what is held open."""
        self._transport.close()

    def _in(self) -> str:
        """The experiment's id: as MLflow finds it in a rank, which makes one of that name if there is none."""
        if not self._experiment and not self._name:
            self._experiment = "0"
        if not self._experiment:
            try:
                answer = self._transport.call("experiments/get-by-name", {"experiment_name": self._name})
                told = answer.get("experiment")
            except NotFound:
                told = self._transport.call("experiments/create", {"name": self._name})
            if not isinstance(told, Mapping) or "experiment_id" not in told:
                raise BackendError(f"MLflow's answer has no experiment in it: {str(told)[:200]}")
            self._experiment = str(told["experiment_id"])
        return self._experiment


def _run(told: Any) -> MlflowRun:
    try:
        info, data = told["info"], told.get("data", {})
        return MlflowRun(
            run_id=str(info["run_id"]),
            status=str(info["status"]),
            began=int(info.get("start_time") or 0),
            tags={each["key"]: each["value"] for each in data.get("tags", ())},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackendError(f"MLflow's answer has no run in it ({error!r}): {str(told)[:200]}") from error


def _metrics(metrics: Sequence[MlflowMetric]) -> Iterator[Mapping[str, Any]]:
    for each in metrics:
        yield {
            "key": each.name,
            "value": each.value,
            "step": each.step,
            "timestamp": _milliseconds(each.at),
        }


def _pairs(texts: Mapping[str, str], longest: int) -> list[dict[str, str]]:
    return [{"key": name, "value": text[:longest]} for name, text in texts.items()]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)

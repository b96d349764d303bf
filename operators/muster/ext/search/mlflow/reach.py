"""Reaches the MLflow in which a job's ranks track their runs."""

from __future__ import annotations

import json
import os
import select
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import httpx

from muster.backends.tracking import URI, Tracking
from muster.core.errors import BackendError, ImageError, NotFound, SpecError
from muster.core.interpreters import python_command
from muster.core.text import one_line

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


_HELPER = Path(__file__).with_name("helper.py")
_START_SECONDS = 60.0  # MLflow is imported; the file's tables are made where it is new
_CALL_SECONDS = 30.0
_PART = 1 << 16


class Beside:
    """A process of an image's Python that answers calls of MLflow. It ends with this object, or with this process.

    :param variables: its environment.
    :raises ImageError: the image has no MLflow. :raises BackendError: it cannot be started.
    """

    def __init__(self, python: Path, variables: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                python_command(str(_HELPER), of=python, isolated=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(variables),
            )
        except OSError as error:
            raise BackendError(f"MLflow cannot be called: {python} does not start ({error})") from error
        self._read = b""
        try:
            told = self._answer(_START_SECONDS)
        except BaseException:
            self.close()
            raise
        if "missing" in told:
            self.close()
            raise ImageError(f"MLflow cannot be called: {one_line(told['missing'])}")

    def call(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`muster.ext.search.mlflow.reach.MlflowTransport`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"name": name, "given": given}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BackendError(f"the process that calls MLflow has ended ({error})") from error
        told = self._answer(_CALL_SECONDS)
        if told.get("code") == "RESOURCE_DOES_NOT_EXIST":
            raise NotFound(f"MLflow: {one_line(told['error'])}")
        if "error" in told:
            raise BackendError(f"MLflow refuses {name}: {one_line(told['error'])}")
        found: Mapping[str, Any] = told["answer"]
        return found

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def _answer(self, seconds: float) -> dict[str, Any]:
        """Read one line. :raises BackendError: none comes, or the process has ended."""
        assert self._process.stdout is not None
        deadline, handle = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._read:
            if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BackendError(f"MLflow has not answered within {seconds:.0f} s")
            part = os.read(handle, _PART)
            if not part:
                raise BackendError("the process that calls MLflow has ended")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise BackendError(f"MLflow's answer cannot be read ({error}): {line[:200]!r}") from error
        return found


_SECONDS = 5.0  # for each of connecting, sending and an answer: the search waits for it
_READ = frozenset({"experiments/get-by-name"})


class MlflowServer:
    """An MLflow server.

    :param variables: with the names that MLflow itself reads: MLFLOW_TRACKING_URI, _USERNAME and _PASSWORD, _TOKEN,
        _INSECURE_TLS, _SERVER_CERT_PATH.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._uri = variables["MLFLOW_TRACKING_URI"].rstrip("/")
        token, user = variables.get("MLFLOW_TRACKING_TOKEN"), variables.get("MLFLOW_TRACKING_USERNAME")
        self._client = httpx.Client(
            timeout=_SECONDS,
            verify=_trusted(variables),
            auth=httpx.BasicAuth(user, variables.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None,
            headers={"Authorization": f"Bearer {token}"} if token and not user else None,
        )

    def call(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`muster.ext.search.mlflow.reach.MlflowTransport`."""
        url = f"{self._uri}/api/2.0/mlflow/{name}"
        try:
            if name in _READ:
                answer = self._client.get(url, params=dict(given))
            else:
                answer = self._client.post(url, json=given)
        except httpx.HTTPError as error:
            raise BackendError(
                f"MLflow at {self._uri} does not answer: {error or type(error).__name__}"
            ) from error
        if answer.status_code == httpx.codes.NOT_FOUND and "RESOURCE_DOES_NOT_EXIST" in answer.text:
            raise NotFound(f"MLflow at {self._uri}: {one_line(answer.text)}")
        if answer.is_error:
            raise BackendError(
                f"MLflow at {self._uri} refuses {name}: HTTP {answer.status_code} {one_line(answer.text)}"
            )
        try:
            found: Mapping[str, Any] = answer.json()
        except ValueError as error:
            raise BackendError(f"MLflow at {self._uri} answers {name} with no JSON: is it MLflow?") from error
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _trusted(variables: Mapping[str, str]) -> ssl.SSLContext | bool:
    if variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        return False
    path = variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    try:
        return ssl.create_default_context(cafile=path) if path else True
    except OSError as error:
        raise BackendError(f"MLFLOW_TRACKING_SERVER_CERT_PATH: {path} cannot be read ({error})") from error


def reach(tracking: Tracking) -> MlflowRuns | None:
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
        return MlflowRuns(MlflowServer(tracking.variables), tracking.variables)
    if tracking.containers:
        raise SpecError(f"{URI} is {uri:.80}: need the http(s) address of a server")
    if tracking.python is None:
        return None
    return MlflowRuns(Beside(tracking.python, tracking.variables), tracking.variables)

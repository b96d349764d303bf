"""What an author writes for the keywords of a job or a release, converted: outputs, secrets, launchers, pods, times, smoke requests.

A value that holds Jinja or a reference to another task stays as it is until Airflow has rendered it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from muster.airflow.authoring.checks import check_count, check_file, check_some
from muster.airflow.authoring.references import RunValue, VersionReference, is_known
from muster.core import data
from muster.core.address import Address
from muster.core.deployment import SmokeRequest
from muster.core.errors import SpecError
from muster.core.job import Launcher, SecretRef
from muster.core.tally import HourBudget
from muster.core.wire import build

_SOURCES = ("connection", "environment", "kubernetes")
_POD = "V1Pod"


@dataclass(frozen=True, kw_only=True)
class Output:
    """The volume, and the partition, in which what the job writes under one name is committed.

    Plain values are checked when the Dag is parsed, values with Jinja such as ``partition="{{ params.month }}"``
    when the task runs.

    :param volume: ``flights/model``. (templated)
    :param partition: the partition it becomes; ``"*"`` makes every top-level folder that the job
        writes a version of its own, of the partition that the folder is named after. (templated)
    """

    volume: str
    partition: str | None = None


def by_name(value: Any) -> dict[str, Any]:
    """Return a mapping as a dict; None is empty. :raises SpecError: it is something else."""
    if value is None or isinstance(value, RunValue):
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{value!r:.60}: expected a mapping, such as {{'name': …}}")
    return dict(value)


def plain(value: Any) -> Any:
    """Return the value: the job's spec holds it as the author wrote it."""
    return value


def seconds(span: timedelta | None) -> float:
    """Return a time in seconds; None is 0."""
    return span.total_seconds() if span is not None else 0.0


def budget_of(value: Any) -> HourBudget | None:
    """Return a budget that is written as a mapping."""
    return value if value is None or isinstance(value, HourBudget) else build(HourBudget, by_name(value))


def read_outputs(value: Any) -> dict[str, Any]:
    """Write outputs as mappings, which Airflow can render; :func:`known_output` refuses what is no output."""
    return {name: _output_field(output) for name, output in by_name(value).items()}


def _output_field(output: Any) -> Any:
    if isinstance(output, str):
        return {"volume": output, "partition": None}
    return {"volume": output.volume, "partition": output.partition} if isinstance(output, Output) else output


def known_output(field: Any, number: int = 0) -> data.OutputTarget:
    """Return an output as far as the Dag file tells it.

    :param number: tells the stand-ins of several outputs apart, as two must not go to one partition.
    :raises SpecError: it is no output, or its volume or partition is not allowed.
    """
    if not isinstance(field, Mapping) or set(field) != {"volume", "partition"}:
        raise SpecError(
            f"{field!r:.60}: expected a volume, such as 'flights/model', or Output(volume=…, partition=…)"
        )
    known = {key: value for key, value in field.items() if is_known(value)}
    output = data.OutputTarget(**{"volume": data.UNKNOWN, **known})
    return output if is_known(field) else replace(output, partition=f"stand-in-{number}")


def outputs_of(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, data.OutputTarget]:
    """Read outputs back when they are rendered. :raises SpecError: a name that is not allowed."""
    outputs = {}
    for name, given in fields.items():
        try:
            outputs[name] = data.OutputTarget(volume=given["volume"], partition=given["partition"])
        except SpecError as error:
            raise SpecError(f"output {name!r:.80}: {error}") from error
    return outputs


def volume_of(value: Any) -> str | None:
    """Return the volume of an input where the Dag file says it; None where only the run will."""
    if isinstance(value, (list, tuple)):
        return volume_of(value[0]) if value else None
    if isinstance(value, str):
        return Address.parse(value).volume if is_known(value) else None
    if not isinstance(value, VersionReference):
        return None
    if value.path == ("passed",):
        return volume_of(getattr(value.operator, "volume", None))
    field = getattr(value.operator, "outputs", {}).get(value.path[-1], {})
    return field.get("volume") if is_known(field.get("volume")) else None


def secret_of(text: str | SecretRef) -> SecretRef:
    """Read ``connection:ID#field``, ``environment:NAME`` or ``kubernetes:SECRET/KEY``."""
    if isinstance(text, SecretRef):
        return text
    source, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or source not in _SOURCES:
        # the text itself is not shown: it may be the secret
        raise SpecError(
            "expected where the value is found, such as 'connection:mlflow#password', not the value"
        )
    return SecretRef(source=source, name=name)


def secrets_of(texts: Mapping[str, str | SecretRef]) -> dict[str, SecretRef]:
    """Read the places of all secrets, by variable."""
    return {variable: secret_of(text) for variable, text in texts.items()}


def launcher_of(name: str | Launcher) -> Launcher:
    """Return the launcher of a name. :raises SpecError: there is none."""
    try:
        return Launcher(name)
    except ValueError as error:
        raise SpecError(f"{name!r:.60}: expected {', '.join(each.value for each in Launcher)}") from error


def read_pod(value: Any) -> dict[str, Any]:
    """Return a pod override, a ``V1Pod`` or a mapping, in the form of Kubernetes' API; None is empty.

    As a mapping Airflow can render, show and keep it. The Kubernetes client is imported only for a ``V1Pod``:
    the Dag file has imported it already.

    :raises SpecError: it is no pod.
    """
    if value is None or isinstance(value, RunValue):
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if type(value).__name__ != _POD or not hasattr(value, "openapi_types"):
        raise SpecError(f"{value!r:.60}: expected a {_POD}, or a mapping such as {{'spec': {{…}}}}")
    from kubernetes.client import ApiClient

    written: dict[str, Any] = ApiClient().sanitize_for_serialization(value)
    return written


def check_pod(value: Mapping[str, Any]) -> None:
    """Refuse what no cluster would take, as far as the Dag file tells it. :raises SpecError: it names the field."""
    if value and is_known(value):
        from muster.backends.kubernetes.manifests.overrides import check

        check(value)


MOST = 1000


@dataclass(frozen=True)
class SmokeRows:
    """Some rows of a version, each asked of a model before it serves.

    :param rows: the version, or versions, whose Parquet and CSV files have a column for each input of the model: ``.versions["rows"]``, a
        ``.passed`` or an address. (templated)
    :param most: how many rows are asked at most, 1 to 1000. Of Parquet files they lie at even distances, of a CSV file they are the first ones.
    :param expect: bounds for every value of an output, ``{"probability": {"min": 0, "max": 1}}``.
    """

    rows: str | VersionReference | Sequence[str | VersionReference]
    most: int = 20
    expect: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_smoke_rows(value: Any) -> Any:
    """Write them as a mapping, which Airflow can render; :func:`check_smoke` refuses what is none."""
    if not isinstance(value, SmokeRows):
        return value
    return {"rows": value.rows, "most": value.most, "expect": value.expect}


def check_smoke(value: Any) -> None:
    """Refuse what is neither a file of the Dag's folder nor rows. :raises SpecError: it says which of the three parts is wrong."""
    if not isinstance(value, Mapping):
        check_file(value)
        return
    if set(value) != {"rows", "most", "expect"}:
        raise SpecError(
            f"{dict(value)!r:.60}: expected a file such as 'smoke.json', or SmokeRows(version, most=20)"
        )
    check_some(value["rows"])
    check_count(value["most"])
    if value["most"] > MOST:
        raise SpecError(f"most is {value['most']}: a smoke test has at most {MOST} rows")
    check_expect(value["expect"])
    SmokeRequest(name="rows", inputs={"row": (0,)}, expect=value["expect"])  # refuses other bounds


def check_expect(expect: Any) -> None:
    """Refuse what are no bounds by output."""
    if not isinstance(expect, Mapping):
        raise SpecError(f"expect is {expect!r:.60}, need bounds by output")
    for output, bounds in expect.items():
        if not isinstance(bounds, Mapping) or not all(
            type(bound) in (int, float) for bound in bounds.values()
        ):
            raise SpecError(f'{output!r:.40} expects {bounds!r:.60}, need such as {{"min": 0, "max": 1}}')

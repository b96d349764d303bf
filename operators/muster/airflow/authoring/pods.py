"""A pod as an author writes it for a cluster: a ``V1Pod``, as cncf.kubernetes' users know it, or the same as a mapping.

It is kept as a mapping in the form of Kubernetes' API, so that Airflow can render, show and keep it. The
Kubernetes client is imported only where a Dag file did so already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.airflow.authoring.keywords import refusing
from muster.airflow.authoring.references import Later, is_known
from muster.core.errors import SpecError

_POD = "V1Pod"


def pod_field(task_id: Any, value: Any) -> dict[str, Any]:
    """Return a pod override in the API's own form; None is empty. :raises SpecError: it is no pod."""
    if value is None or isinstance(value, Later):
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    with refusing(task_id, "pod_override"):
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

"""The Secret of a job, and which Secrets of others its pods may read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.manifests import bootstrap
from muster.backends.kubernetes.manifests.wiring import BOOTSTRAP, ORDERS, TOKEN, Submission, orders
from muster.core.errors import SpecError

_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_HELM = "sh.helm."
_KEY = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,253}\Z")


def data(submission: Submission, *, token: str, values: Mapping[str, str]) -> dict[str, str]:
    """What the job's Secret holds: the token, the orders, the init container's program, and values found elsewhere.

    :param values: of the job's secrets that lie in no Secret of the cluster, by variable.
    :raises SpecError: one is missing, or it is more than a Secret holds.
    """
    job = submission.job
    wanted = [name for name, reference in job.secrets.items() if reference.source != "kubernetes"]
    missing = [name for name in wanted if name not in values]
    if missing:
        source = job.secrets[missing[0]]
        raise SpecError(
            f"secret {missing[0]}: the submitter did not look up {source.source} {source.name!r:.100} for the cluster"
        )
    found = {_key(name): _text(name, values[name]) for name in wanted}
    own = {TOKEN: token, ORDERS: orders(submission), BOOTSTRAP: inspect.getsource(bootstrap)}
    size = sum(len(text.encode()) for text in (*own.values(), *found.values()))
    if size > _MOST_BYTES:
        raise SpecError(
            f"job {job.name}: its spec and secrets are {size} bytes, and a cluster holds {_MOST_BYTES} of a job; "
            "put what is large into a volume and give it as an input"
        )
    return {**own, **found}


def variables(submission: Submission) -> dict[str, Document]:
    """Where each of the job's secrets is found in the cluster, by variable, for a container's ``env``.

    :raises SpecError: a Secret's name or key cannot be one, or it is muster's own.
    """
    return {variable: _reference(submission, variable) for variable in submission.job.secrets}


def _reference(submission: Submission, variable: str) -> Document:
    reference = submission.job.secrets[variable]
    if reference.source != "kubernetes":
        name, key = submission.secret, _key(variable)
    else:
        name, _, key = reference.name.partition("/")
        check_name(f"secret {variable}", name)
        if not _KEY.match(key):
            raise SpecError(f"secret {variable}: {reference.name!r:.100} is not NAME/KEY of a Secret")
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def check_name(where: str, name: object) -> str:
    """Return the name of a Secret that is not muster's. :raises SpecError: it cannot be one, or no job may have it."""
    if not isinstance(name, str) or len(name) > 253 or not _NAME.match(name):
        raise SpecError(f"{where}: {name!r:.100} is not the name of a Secret")
    if name.startswith(labels.OURS):
        raise SpecError(f"{where}: Secret {name!r:.100} is muster's own, and no pod may ask for it")
    if name.startswith(_HELM):
        raise SpecError(
            f"{where}: Secret {name!r:.100} is what Helm keeps of a release, with all Secrets that its chart made: no pod "
            "may ask for it"
        )
    return name


def _text(variable: str, value: str) -> str:
    """Return a secret's value if a variable can hold it; its value is in no message."""
    try:
        value.encode()
    except UnicodeEncodeError:
        found = "bytes that are no UTF-8"
    else:
        if "\0" not in value:
            return value
        found = "a NUL"
    raise SpecError(f"secret {variable}: its value holds {found}, and no variable can")


def _key(variable: str) -> str:
    return f"env.{variable}"

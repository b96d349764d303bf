"""A deployment, asked from a program: rows or columns in, predictions out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import date
from typing import TYPE_CHECKING, Any

from muster.client.place import check_home
from muster.core.errors import DeploymentError, SpecError
from muster.core.settings import Settings
from muster.core.signature import is_null

if TYPE_CHECKING:
    import httpx

    from muster.core.deployment import DeploymentStatus

SECONDS = 60.0


class Deployment:
    """A name that answers predictions.

    :ivar url: where it answers.
    :ivar model: the version that answered the last prediction, such as ``volume://flights/model@7``; before the first
        one the version with the most traffic, or None.
    """

    def __init__(self, status: DeploymentStatus, *, token: str | None = None) -> None:
        self.name: str = status.name
        self.url: str = status.url
        self.model: str | None = status.champion.model.address if status.champion else None
        self._reason = status.reason
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def predict(self, rows: Any, *, timeout_seconds: float = SECONDS) -> Any:
        """Ask the model for predictions, in the form in which the rows are given.

        Columns, ``{"hour": [13, 1]}``, give columns, ``{"fare": [63.0, 6.0]}``. Rows, ``[{"hour": 13}, {"hour": 1}]``, give
        a list with a value a row, or a dict a row where the model has several outputs. A pandas frame gives a frame with a
        column an output, and the same index.

        Values may be NumPy's; None, NaN and NA are null, dates are text. The model's signature says what it takes.

        :raises SpecError: the rows are none of these, or a value cannot be sent, such as infinity; the message names it.
        :raises DeploymentError: the model refused the rows, or failed, or does not answer; the message is the server's.
        """
        import httpx

        index = None
        if (
            not isinstance(rows, (Mapping, str, bytes))
            and hasattr(rows, "to_dict")
            and hasattr(rows, "index")
        ):
            index, rows = rows.index, rows.to_dict(orient="list")
        body = _body(rows)
        try:
            answer = httpx.post(
                f"{self.url}/v1/models/{self.name}:predict",
                content=body,
                headers=self._headers,
                timeout=timeout_seconds,
                trust_env="//127.0.0.1:" not in self.url,  # no proxy leads there, or may see the rows
            )
        except httpx.HTTPError as error:
            why = f" ({self._reason})" if self._reason else ""
            raise DeploymentError(
                f"deployment {self.name} does not answer at {self.url}{why}: {error or type(error).__name__}; "
                f"`muster deployments show {self.name}` says how it is"
            ) from error
        self.model = answer.headers.get("Muster-Model", self.model)
        said = _read(self.name, answer)
        if index is None:
            return said["predictions" if "predictions" in said else "outputs"]
        import pandas

        return pandas.DataFrame({name: list(column) for name, column in said["outputs"].items()}, index=index)

    def __repr__(self) -> str:
        return f"<muster.Deployment {self.name} at {self.url} with {self.model}>"


def deployment(name: str, *, token: str | None = None) -> Deployment:
    """Return a deployment of this machine, or of the cluster.

    :param token: goes with each request, where the deployment needs one.
    :raises NotFound: there is none of that name; the message lists those that are.
    """
    from muster.backends.base import LOOK_SECONDS
    from muster.backends.choose import open_place

    settings = Settings.load()
    check_home(settings)
    with closing(open_place(settings, patience_seconds=LOOK_SECONDS)) as place:
        return Deployment(place.deployments.deployment(name), token=token)


def _body(rows: Any) -> bytes:
    if isinstance(rows, Mapping):
        asked: dict[str, Any] = {
            "inputs": {str(name): _plain(f"input {name!r:.80}", column) for name, column in rows.items()}
        }
    elif (
        isinstance(rows, Sequence)
        and not isinstance(rows, (str, bytes))
        and all(isinstance(row, Mapping) for row in rows)
    ):
        asked = {
            "instances": [
                {
                    str(name): _plain(f"input {name!r:.80} of row {number}", value)
                    for name, value in row.items()
                }
                for number, row in enumerate(rows)
            ]
        }
    else:
        raise SpecError(
            f"predict() was given {type(rows).__name__}: give columns {{'hour': [13, 1]}}, rows [{{'hour': 13}}] or a "
            "pandas frame"
        )
    return json.dumps(asked, allow_nan=False).encode()


def _plain(what: str, value: Any) -> Any:
    """Return a value as JSON has it, NumPy's as Python's. :raises SpecError: it cannot be sent."""
    if hasattr(value, "tolist"):  # an array, a number of NumPy or a pandas column
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(f"{what}[{position}]", each) for position, each in enumerate(value)]
    if is_null(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        raise SpecError(f"{what} is {value}: a model takes finite numbers")
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, date):  # a time is one, too, and so is pandas' own
        return str(value)
    raise SpecError(f"{what} is {type(value).__name__} {value!r:.60}: give numbers or texts")


def _read(name: str, answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError:
        said = {}
    if answer.status_code == 200 and isinstance(said, dict) and {"predictions", "outputs"} & said.keys():
        return said
    why = said.get("error") if isinstance(said, dict) else None
    raise DeploymentError(f"deployment {name} answered {answer.status_code}: {why or answer.text[:200]!r}")

"""The id of a prediction, and the volume and partition that hold its rows.

A model server gives it to a request that its log takes, in the header ``muster-prediction``: the deployment, the time in milliseconds, the
server's process and a count, ``flights-19ab2c3d4e5-3f9c1a7b-2a``; the last three in hexadecimal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

from muster.core.errors import SpecError
from muster.core.names import check_label

HOUR = "%Y-%m-%dT%H"
"""How an hour's partition is called, in UTC."""

_ID = re.compile(r"(?P<name>.+)-(?P<at>[0-9a-f]{1,12})-(?P<server>[0-9a-f]{8})-(?P<count>[0-9a-f]+)\Z")


@dataclass(frozen=True, kw_only=True)
class PredictionId:
    """A prediction's id, read.

    :param at: when it was answered, in seconds since the epoch.
    """

    text: str
    deployment: str
    at: float

    @classmethod
    def parse(cls, text: str) -> PredictionId:
        """Read an id. :raises SpecError: it is none."""
        match = _ID.match(text)
        if match is None:
            raise SpecError(
                f"prediction {text!r:.80}: expected an id as the header muster-prediction of an answer tells it, such as "
                "flights-19ab2c3d4e5-3f9c1a7b-2a"
            )
        name = check_label("deployment", match["name"])
        return cls(text=text, deployment=name, at=int(match["at"], 16) / 1000)

    @property
    def hour(self) -> str:
        """The partition that holds its rows."""
        return hour_of(self.at)


def hour_of(at: float) -> str:
    """Return the hour of a time in seconds since the epoch, in UTC: ``2026-11-26T07``."""
    return datetime.fromtimestamp(at, timezone.utc).strftime(HOUR)


def predictions_volume(deployment: str) -> str:
    """Return the volume that holds a deployment's requests."""
    return f"{check_label('deployment', deployment)}/predictions"

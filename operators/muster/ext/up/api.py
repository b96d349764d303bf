"""Asks the Airflow of ``muster up`` whether its components are healthy, and which Dags it has found."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from typing import Any

from muster.ext.up.home import BUNDLE, USER, UpHome

# Requests to this machine use no proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_PAGE = 100
_PATIENCE_SECONDS = 2.0  # short: Ctrl-C is not handled meanwhile


@dataclass(frozen=True, kw_only=True)
class FoundDags:
    """The Dags of the folder, as Airflow read them.

    :param errors: why a file cannot be imported, by file.
    :param shipped: Dags that came with muster.
    :param paused: Dags of both kinds whose schedule begins only when a person unpauses them.
    """

    dags: tuple[str, ...]
    errors: Mapping[str, str]
    shipped: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()


class Api:
    """The public REST API of one Airflow."""

    def __init__(self, home: UpHome) -> None:
        self._home = home
        self._token: str | None = None
        self._built = False

    def well(self, *, since: datetime) -> set[str]:
        """Return the components that answer; a heartbeat before `since` is of an earlier process.

        :raises OSError: there is no answer.
        """
        if (
            not self._built
        ):  # the server builds its API at the first request, for seconds: the first task need not wait
            self._ask("/execution/health", token=None)
            self._built = True
        health = self._ask("/api/v2/monitor/health", token=None)
        return {"api-server"} | {
            name.replace("_", "-")
            for name in ("scheduler", "triggerer", "dag_processor")
            if health[name]["status"] == "healthy"
            and datetime.fromisoformat(health[name][f"latest_{name}_heartbeat"]) >= since
        }

    def found(self, *, since: datetime) -> FoundDags:
        """Return the Dags parsed since a moment, and the files that cannot be imported.

        :raises OSError: there is no answer.
        """
        if self._token is None:
            self._token = self._log_in()
        dags = self._ask(f"/api/v2/dags?limit={_PAGE}&exclude_stale=true", token=self._token)["dags"]
        errors = self._ask(f"/api/v2/importErrors?limit={_PAGE}", token=self._token)["import_errors"]
        read = sorted(
            (dag["dag_id"], dag["bundle_name"] == BUNDLE, bool(dag["is_paused"]))
            for dag in dags
            if _after(dag["last_parsed_time"], since)
        )
        return FoundDags(
            dags=tuple(dag_id for dag_id, shipped, _ in read if not shipped),
            shipped=tuple(dag_id for dag_id, shipped, _ in read if shipped),
            paused=tuple(dag_id for dag_id, _, paused in read if paused),
            errors={e["filename"]: e["stack_trace"] for e in errors if _after(e["timestamp"], since)},
        )

    def _log_in(self) -> str:
        body = {"username": USER, "password": self._home.password()}
        return str(self._ask("/auth/token", token=None, body=body)["access_token"])

    def _ask(self, path: str, *, token: str | None, body: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 an address of ours
            self._home.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
        )
        try:
            with _OPENER.open(request, timeout=_PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except (HTTPException, ValueError) as error:  # the server was killed while it answered
            raise ConnectionError(f"{self._home.url}{path}: half an answer: {error!r}") from error


def _after(moment: str | None, since: datetime) -> bool:
    return moment is not None and datetime.fromisoformat(moment) >= since

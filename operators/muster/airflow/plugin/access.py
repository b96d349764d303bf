"""Who may see and do what on the page: Airflow's auth manager decides, asked as Airflow's own routes ask it.

Everything needs leave to see plugins. Beyond that a thing belongs to the Dag that made it, so that
a user who may not read a Dag sees neither its jobs nor their logs nor what they wrote:

=======================  ==============================================================
a job, its verdict       GET on the Dag's task instances
a job's log              GET on the Dag's task logs
ending a job             PUT on the Dag's task instances, as for marking one failed
volumes, deployments     GET on assets: a volume is one
a version's record       also GET on the task instances of the Dag that made it; what it was made from, too
a version's files        also GET on the XComs of that Dag, for what its tasks left behind, and their names
=======================  ==============================================================

What no Dag made is asked for as "any Dag".
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset, requires_access_view
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request

HEADER = "x-muster"

plugins = Depends(requires_access_view(AccessView.PLUGINS))
assets = Depends(requires_access_asset("GET"))


class Reader:
    """What the user of one request may do with which Dag. Each question is asked once."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._teams: dict[str, str | None] = {}
        self._known: dict[tuple[str, DagAccessEntity, str], bool] = {}

    @property
    def name(self) -> str:
        """What Airflow's own audit log calls the user."""
        return str(self._user.get_name())

    def may(
        self, dag_id: str, entity: DagAccessEntity = DagAccessEntity.TASK_INSTANCE, *, method: Any = "GET"
    ) -> bool:
        """Whether Airflow lets the user do that; an empty `dag_id` asks for any Dag."""
        key = (dag_id, entity, method)
        if key not in self._known:
            self._known[key] = get_auth_manager().is_authorized_dag(
                method=method,
                access_entity=entity,
                details=DagDetails(id=dag_id or None, team_name=self._team(dag_id)),
                user=self._user,
            )
        return self._known[key]

    def need(self, dag_id: str, entity: DagAccessEntity, *, method: Any = "GET") -> None:
        """Refuse what :meth:`may` does not allow, with HTTP 403."""
        if not self.may(dag_id, entity, method=method):
            what = f"{entity.value.lower().replace('_', ' ')} of {dag_id or 'any Dag'}"
            raise HTTPException(
                403, f"Airflow does not let you {'see' if method == 'GET' else 'change'} the {what}"
            )

    def _team(self, dag_id: str) -> str | None:
        if dag_id and dag_id not in self._teams:
            self._teams[dag_id] = DagModel.get_team_name(dag_id)
        return self._teams.get(dag_id)


def reader(user: GetUserDep) -> Reader:
    """What the user of this request may do."""
    return Reader(user)


Who = Annotated[Reader, Depends(reader)]


def same_site(request: Request) -> None:
    """Let a request that changes something pass only if the page itself sent it.

    The session is a cookie, which a browser sends along whatever page caused the request (Airflow's is
    SameSite=Lax, which subdomains of one site get around, and a document of ours that a user wrote
    comes from this very host). So two things are asked for. A header of ours: no form can set one,
    and a script of another origin only after a preflight that is not answered here. And where a
    browser says who sent it, that this was us: ``Sec-Fetch-Site``, which no script can set and no
    proxy changes; from a browser too old for it, ``Origin`` must name the host that was asked.
    """
    if request.headers.get(HEADER) != "1":
        raise HTTPException(403, f"a request that changes something needs the header {HEADER}: 1")
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        ours = site == "same-origin"
    else:
        ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not ours:
        raise HTTPException(403, f"this request came from another site ({origin or site!r:.100})")

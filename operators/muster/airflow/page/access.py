"""Authorizes users of the page through Airflow's auth manager, in the way of Airflow's own routes.

Every call needs the right to see plugins. Beyond that a job or version belongs to the Dag that made it: a
user who may not read a Dag sees neither its jobs nor their logs nor their versions:

=======================  ==============================================================
a job, its verdict       GET on the Dag's task instances
a job's log              GET on the Dag's task logs
ending a job             PUT on the Dag's task instances, as for marking one failed
a search, ending it      as a job, by the Dag that searches; its curves need the Dag's task logs, too
volumes, deployments     GET on assets: a volume is one
a version's record       also GET on the task instances of the Dag that made it; its ancestors, too
a version's files        also GET on the XComs of that Dag, for their contents and names
keeping, hiding one      PUT on the task instances of that Dag
changing a deployment    the same, of each Dag whose model it serves or keeps
a plan of a run          POST on the Dag's runs, as for triggering one
=======================  ==============================================================

For jobs and versions that no Dag made, the right for any Dag is needed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request

from muster.airflow.upstream import internals
from muster.core.origin import Origin

HEADER = "x-muster"
_NO_TASK = Origin()

plugins = Depends(internals.requires_access_view(internals.AccessView.PLUGINS))
assets = Depends(internals.requires_access_asset("GET"))


class UserRights:
    """The rights of the user of one request, by Dag. Each question is asked once."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._teams: dict[str, str | None] = {}
        self._known: dict[tuple[str, internals.DagAccessEntity, str], bool] = {}

    @property
    def name(self) -> str:
        """The user's name, as Airflow's audit log has it."""
        return str(self._user.get_name())

    def may(
        self,
        dag_id: str,
        entity: internals.DagAccessEntity = internals.DagAccessEntity.TASK_INSTANCE,
        *,
        method: Any = "GET",
    ) -> bool:
        """Whether Airflow allows the user this; an empty `dag_id` asks for any Dag."""
        key = (dag_id, entity, method)
        if key not in self._known:
            self._known[key] = internals.get_auth_manager().is_authorized_dag(
                method=method,
                access_entity=entity,
                details=internals.DagDetails(id=dag_id or None, team_name=self._team(dag_id)),
                user=self._user,
            )
        return self._known[key]

    def need(self, dag_id: str, entity: internals.DagAccessEntity, *, method: Any = "GET") -> None:
        """Refuse with HTTP 403 if :meth:`may` is False."""
        if not self.may(dag_id, entity, method=method):
            what = f"{entity.value.lower().replace('_', ' ')} of {dag_id or 'any Dag'}"
            raise HTTPException(
                403, f"Airflow does not let you {'see' if method == 'GET' else 'change'} the {what}"
            )

    def note(self, event: str, origin: Origin = _NO_TASK, /, **what: str) -> None:
        """Record in Airflow's audit log what the user does, as Airflow does for its own buttons.

        :param event: its name there, such as ``muster_pin``.
        :param origin: the task of what is changed, or its Dag alone.
        :param what: what is changed, by its kind: ``job_id="…"``.
        """
        task: dict[str, Any] = {
            "dag_id": origin.dag_id or None,
            "task_id": origin.task_id or None,
            "run_id": origin.run_id or None,
            "map_index": origin.map_index if origin.task_id else None,
        }
        user, extra = self.name, json.dumps(what)
        with internals.create_session() as session:
            session.add(internals.Log(event=event, owner=user, owner_display_name=user, extra=extra, **task))

    def _team(self, dag_id: str) -> str | None:
        if dag_id and dag_id not in self._teams:
            self._teams[dag_id] = internals.DagModel.get_team_name(dag_id)
        return self._teams.get(dag_id)


def reader(user: internals.GetUserDep) -> UserRights:
    """Return the rights of the user of this request."""
    return UserRights(user)


Who = Annotated[UserRights, Depends(reader)]


def same_site(request: Request) -> None:
    """Let a request that changes something pass only if the page itself sent it.

    The session is a cookie, which a browser sends whatever page caused the request (Airflow's is
    SameSite=Lax, which subdomains of one site get around, and a user's document in a version comes
    from this very host). So two things are checked. A header of muster: no form can set one,
    and a script of another origin only after a preflight, which fails here. And, where the
    browser says who sent the request, that it was this page: ``Sec-Fetch-Site``, which no script can set and
    no proxy changes; from a browser too old for it, ``Origin`` must name the requested host.
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

"""Authorizes users of the page through Airflow's auth manager, in the way of Airflow's own routes.

Every call needs the right to see plugins. Beyond that a job or version belongs to the Dag that made it: a
user who may not read a Dag sees neither its jobs nor their logs nor their versions:

=======================  ==============================================================
a job, verdict, usage    GET on the Dag's task instances
a job's log              GET on the Dag's task logs
ending a job             PUT on the Dag's task instances, as for marking one failed
a search, ending it      as a job, by the Dag that searches; its curves need the Dag's task logs, too
volumes, deployments     GET on assets: a volume is one
a version's record       also GET on the task instances of the Dag that made it; its ancestors, too
a version's files        also GET on the XComs of that Dag, for their contents and names
keeping, hiding one      PUT on the task instances of that Dag
changing a deployment    the same, of each Dag whose model it serves or keeps
a plan of a run          POST on the Dag's runs, as for triggering one
a token of one's own     GET on the task instances, logs and XComs of all Dags of a team, or PUT; without teams of all Dags
others' tokens           PUT on all Dags, and on connections: who may change these can have the store's own token
=======================  ==============================================================

For jobs and versions that no Dag made, the right for any Dag is needed.

Where the site names teams, a Dag has its team's rights in Airflow's eyes, and a volume, a deployment and a queue belong
to a team, too: a person who may do something to one of its Dags may do it to them, and others do not learn that they are there.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.sdk import conf
from fastapi import Depends, HTTPException, Request
from sqlalchemy import select
from sqlalchemy.orm import selectinload

from muster.airflow.teams import TAG, DagFacts, site_teams
from muster.airflow.upstream import internals
from muster.core.deployment import DeploymentStatus
from muster.core.errors import SpecError
from muster.core.origin import Origin
from muster.volumes.service.persons import PersonRights

HEADER = "x-muster"
_NO_TASK = Origin()

plugins = Depends(internals.requires_access_view(internals.AccessView.PLUGINS))
_NO_TEAM = "not a team"
"""No team has such a name, and so no user is in it: of what two teams claim, and of what Airflow does not know."""

_CONTENTS = (
    internals.DagAccessEntity.TASK_INSTANCE,
    internals.DagAccessEntity.TASK_LOGS,
    internals.DagAccessEntity.XCOM,
)

assets = Depends(internals.requires_access_asset("GET"))


class UserRights:
    """The rights of the user of one request, by Dag. Each question is asked once."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._site = site_teams()
        self._bundles: dict[str, str | None] = {}
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
                details=internals.DagDetails(
                    id=dag_id or (TAG if self._site.named else None), team_name=self._team(dag_id)
                ),
                user=self._user,
            )
        return self._known[key]

    def may_volume(self, volume: str, *, method: Any = "GET") -> bool:
        """Whether the user may see a volume, or change it: as the Dags of its team. What no team has is for everyone."""
        free = method == "GET" and self._site.may_read("", volume)
        return free or self._may_team(self._site.of_volume(volume), method)

    def may_queue(self, queue: str) -> bool:
        """Whether the user may see a queue, and what waits there."""
        return self._may_team(self._site.of_queue(queue), "GET")

    def may_deployment(self, status: DeploymentStatus, *, method: Any = "GET") -> bool:
        """Whether the user may see a deployment, or change it: as the volumes of all models that it serves or keeps."""
        return all(self.may_volume(volume, method=method) for volume in status.volumes)

    def need_volume(self, volume: str, *, method: Any = "GET") -> None:
        """Refuse with HTTP 403 if :meth:`may_volume` is False: whether the volume is there is not told."""
        if not self.may_volume(volume, method=method):
            raise _refused(method, f"volume {volume:.130}: it is of another team")

    def need_deployment(self, name: str, status: DeploymentStatus | None, *, method: Any = "GET") -> None:
        """Refuse with HTTP 403 if :meth:`may_deployment` is False, or if there is none and the site names teams."""
        if self._site.named and (status is None or not self.may_deployment(status, method=method)):
            raise _refused(method, f"deployment {name:.60}: it is not there, or of another team")

    @property
    def token_rights(self) -> PersonRights:
        """The most that a token of the user may reach: a token knows no Dag, so what the user sees whole."""
        if self._may_whole("", "GET"):
            return PersonRights(reads=("",), changes=("",) * self._may_whole("", "PUT"))
        return self._site.rights(self._may_whole)

    @property
    def administers(self) -> bool:
        """Whether the user may end others' tokens."""
        manager = internals.get_auth_manager()
        return self._may_whole("", "PUT") and manager.is_authorized_connection(method="PUT", user=self._user)

    def _may_whole(self, team: str, method: str) -> bool:
        """Whether the user may see all of a team's Dags with their logs and XComs, or change them; of all Dags without a team."""
        every = f"{TAG}{team}" if team or not self._site.named else ""
        its = [dag_id for dag_id, each in self._teams.items() if each == team] if team else []
        return all(
            self.may(every, entity, method=method)
            or (bool(its) and all(self.may(dag_id, entity, method=method) for dag_id in its))
            for entity in (_CONTENTS if method == "GET" else _CONTENTS[:1])
        )

    def _may_team(self, team: str, method: Any) -> bool:
        """Whether the user may do something to a Dag of a team: in its name, or to one of them by its own name."""
        if not team:
            return True
        own = f"{TAG}{team}"  # the name of no Dag: an auth manager that knows teams goes by the team
        its = (dag_id for dag_id, each in self._teams.items() if each == team)
        return self.may(own, method=method) or any(self.may(dag_id, method=method) for dag_id in its)

    @cached_property
    def _teams(self) -> dict[str, str | None]:
        """The team of each Dag that Airflow knows, where the site names teams."""
        dags, known = dict[str, str | None](), internals.DagModel
        with internals.create_session() as session:
            found = session.scalars(select(known).options(selectinload(known.tags))).all()
            bundles = known.get_dag_id_to_team_name_mapping([dag.dag_id for dag in found])
            for dag in found:
                tags, bundle = tuple(sorted(each.name for each in dag.tags)), bundles.get(dag.dag_id) or ""
                facts = DagFacts(
                    dag_id=dag.dag_id, tags=tags, file=dag.relative_fileloc or "", bundle_team=bundle
                )
                try:
                    dags[dag.dag_id] = self._site.of_dag(facts) or None
                except SpecError:  # its tasks fail with it, and say it
                    dags[dag.dag_id] = _NO_TEAM
        return dags

    def need(self, dag_id: str, entity: internals.DagAccessEntity, *, method: Any = "GET") -> None:
        """Refuse with HTTP 403 if :meth:`may` is False."""
        if not self.may(dag_id, entity, method=method):
            whose = "this Dag" if self._site.named else dag_id or "any Dag"  # its name may be another team's
            raise _refused(method, f"the {entity.value.lower().replace('_', ' ')} of {whose}")

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
        if self._site.named:
            return dag_id.removeprefix(TAG) if dag_id.startswith(TAG) else self._teams.get(dag_id, _NO_TEAM)
        if dag_id == TAG and conf.getboolean("core", "multi_team", fallback=False):
            return _NO_TEAM
        if dag_id not in self._bundles:
            self._bundles[dag_id] = internals.DagModel.get_team_name(dag_id) if dag_id else None
        return self._bundles[dag_id]


def _refused(method: Any, what: str) -> HTTPException:
    return HTTPException(403, f"Airflow does not let you {'see' if method == 'GET' else 'change'} {what}")


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

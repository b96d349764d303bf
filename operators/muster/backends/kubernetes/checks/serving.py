"""Checks of a cluster that serves models: its platform and its Gateway."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from muster.core.check import Check, bad, ok, warn
from muster.core.errors import BackendError, MusterError, SpecError

if TYPE_CHECKING:
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.cluster.facts import Cluster
    from muster.backends.kubernetes.site import ClusterSite


def serving_checks(
    cluster: Cluster, *, client: Client, site: ClusterSite, served: Collection[tuple[str, str]]
) -> Iterator[Check]:
    """Yield the checks for a deployment of this site.

    :param served: the kinds that the API server has.
    """
    if site.serving is None:
        yield ok("serving", "on the machine that deploys: the cluster file sets no serving platform")
        return
    try:
        yield _platform(cluster, client, site)
        yield _rights(client, site, served)
        if site.gateway_metrics:
            yield _counted(site)
    except MusterError as error:
        yield bad("serving", error, "this check failed to run: try again, and see the checks above")


def _platform(cluster: Cluster, client: Client, site: ClusterSite) -> Check:
    from muster.backends.kubernetes.serving.kinds import check_platform

    assert site.serving is not None
    try:
        check_platform(client, site, cluster)
    except SpecError as error:
        return bad("serving", error, "deployments need it; jobs run without")
    if not site.gateway:
        return warn(
            "serving",
            f"{site.serving.value}, without a Gateway",
            "a release moves all traffic at once: set gateway and serving_url to move it in steps",
        )
    found = f"{site.serving.value}, users come through Gateway {site.gateway} at {site.url('NAME')}"
    return ok("serving", found)


def _counted(site: ClusterSite) -> Check:
    """Check that the Gateway's own answers can be counted here."""
    from muster.backends.kubernetes.serving.gateway import addresses, ask

    name, url = "gateway metrics", site.gateway_metrics
    try:
        asked = [ask(url, address) for address in addresses(url)]
    except BackendError as error:
        return warn(
            name,
            str(error),
            "while it cannot be read from here, errors that the Gateway itself answers are in no revision's counts",
        )
    return ok(name, f"{len(asked)} replicas of the Gateway report their answers")


def _rights(client: Client, site: ClusterSite, served: Collection[tuple[str, str]]) -> Check:
    from muster.backends.kubernetes.cluster.rights import lacking, rules, serving_rights
    from muster.backends.kubernetes.serving.kinds import platform_of

    wanted = serving_rights(platform_of(site).kind, gateway=bool(site.gateway))
    missing = lacking(client, wanted, namespace=site.namespace, served=served)
    if missing:
        what = ", ".join(f"{right.verb} {right.resource}" for right in missing)
        return bad(
            "rights to serve",
            f"this account may not, in namespace {site.namespace}: {what}",
            f"set serving.enabled of the chart, or give it a Role there with {rules(missing)}",
        )
    return ok("rights to serve", f"all that deployments need in namespace {site.namespace}")

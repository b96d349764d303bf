"""``muster doctor`` of a cluster: a real store service, an API at the edge of HTTP, and what may be wrong with both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.unit.backends.kubernetes.api_server import status
from tests.unit.backends.kubernetes.serving.gateway_pages import telling
from tests.unit.backends.kubernetes.site_api import SiteApi, kubeconfig, site_api
from tests.unit.backends.kubernetes.site_objects import claim, node
from tests.unit.volumes.service.process import Service

from muster.backends.kubernetes.api.kinds import (
    CLUSTER_QUEUE,
    HTTP_ROUTE,
    INFERENCE_SERVICE,
    JOB_SET,
    NODE,
    POD_GROUP,
    QUEUE_VIEW,
    SELDON_DEPLOYMENT,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Kind,
)
from muster.backends.kubernetes.checks import room_check
from muster.core.room import Room
from muster.volumes.service.tokens import operator_token, read_keys

Run = Callable[..., Any]
DAY_SECONDS = 86_400.0


@dataclass
class Site:
    """A cluster, the store service in it, and the file that names both."""

    api: SiteApi
    service: Service
    folder: Path
    muster: Run

    def write(self, *, days: float = 30, **changes: str) -> None:
        """Write the cluster's file, and a token that counts for so many days."""
        given = {
            "namespace": "muster-jobs",
            "claim": "muster-store",
            "store_url": self.service.url,
            "token_file": "token",
            "kubeconfig": "config",
            "queue": "team-a",
            "image_prefix": "registry.example/muster",
        } | changes
        keys = read_keys(self.service.key)
        (self.folder / "token").write_text(operator_token(keys, lifetime_seconds=days * DAY_SECONDS))
        lines = [f'{name} = "{value}"\n' for name, value in given.items() if value]
        (self.folder / "cluster.toml").write_text("".join(lines))

    def replaced(self, kind: str, *documents: dict[str, Any]) -> None:
        """Put objects in the place of all of their kind."""
        self.api.documents = [each for each in self.api.documents if each["kind"] != kind] + list(documents)

    def check(self, name: str) -> dict[str, str]:
        """What doctor says of one thing."""
        return next(check for check in self.checks() if check["name"] == name)

    def checks(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.muster("doctor", "--json").json()["checks"]
        assert all(check["advice"] for check in found if check["state"] != "ok")
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    """A store service; a test may have ended it."""
    if running.process is None:
        running.start()
    return running


@pytest.fixture
def site(muster: Run, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_api() as (api, server):
        kubeconfig(tmp_path / "config", server.host)
        found = Site(api, service, tmp_path, muster)
        found.write()
        monkeypatch.setenv("MUSTER_CLUSTER", str(tmp_path / "cluster.toml"))
        monkeypatch.setattr("muster.backends.base.LOOK_SECONDS", 0.01)
        yield found


def test_all_is_well(site: Site, muster: Run, home: Path) -> None:
    assert [check["name"] for check in site.checks() if check["state"] != "ok"] == []
    answer = muster("doctor")
    assert answer.code == 0
    names = {line[7:].partition("  ")[0] for line in answer.out.splitlines() if line.startswith("ok ")}
    assert names >= {"store service", "store token", "connection", "rights", "claim", "gangs", "a gang"}
    assert "Kubernetes v1.37.0" in answer.out
    assert "16 gpu-a100, 4 gpu-k80" in answer.out
    assert not home.exists()


def test_nothing_is_made(site: Site) -> None:
    site.checks()
    made = [asked for asked in site.api.asked if asked.method != "GET"]
    assert all(asked.query.get("dryRun") == "All" or "accessreviews" in asked.path for asked in made)


class TestFile:
    def test_one_that_lacks_something(self, site: Site) -> None:
        site.write(claim="")
        (*_, last) = site.checks()
        assert (last["name"], last["state"]) == ("cluster file", "bad")
        assert "lacks claim" in last["found"]


class TestStore:
    def test_a_service_that_is_away_keeps_nothing_else_from_being_looked_at(self, site: Site) -> None:
        site.service.kill()
        checks = {check["name"]: check for check in site.checks()}
        assert "does not answer" in checks["store service"]["found"]
        assert checks["a gang"]["state"] == "ok"

    def test_a_token_of_another_service(self, site: Site) -> None:
        (site.folder / "token").write_text(operator_token((b"z" * 32,), lifetime_seconds=1e9))
        found = site.check("store service")
        assert "the token is not one of this store service" in found["found"]
        assert "--print-token" in found["advice"]

    @pytest.mark.parametrize(("days", "state"), [(-1, "bad"), (1, "warn"), (30, "ok")])
    def test_how_long_a_token_counts(self, days: float, state: str, site: Site) -> None:
        site.write(days=days)
        assert site.check("store token")["state"] == state

    def test_what_is_no_token(self, site: Site) -> None:
        (site.folder / "token").write_text("hello")
        assert site.check("store token")["found"] == "it is not a token"

    def test_a_claim_that_is_nearly_full(self, site: Site) -> None:
        assert site.check("room")["state"] == "ok"
        checks = [
            room_check(Room(disk="the store's claim", free_bytes=free, total_bytes=10 << 30), "muster")
            for free in (1 << 30, 1 << 20)
        ]
        assert [check.state for check in checks] == ["warn", "bad"]
        assert checks[1].found == "the store's claim has 1.0 MiB free of 10.0 GiB (claim muster)"
        assert "`muster jobs gc`" in checks[1].advice

    def test_jobs_are_counted(self, site: Site) -> None:
        from tests.unit.cli.conftest import make_spec

        site.service.client().ledger.create("train-1", make_spec())
        assert site.check("jobs")["found"] == "1 known, 1 have not ended"


class TestApi:
    def test_one_that_does_not_answer_ends_the_checks(self, site: Site) -> None:
        kubeconfig(site.folder / "config", "http://127.0.0.1:9")
        (*_, last) = site.checks()
        assert (last["name"], last["state"]) == ("connection", "bad")
        assert "does not answer" in last["found"]

    def test_rights_that_are_missing_are_named_as_a_role_grants_them(self, site: Site) -> None:
        site.api.refused |= {(verb, JOB_SET.resource) for verb in ("create", "delete")}
        found = site.check("rights")
        assert found["found"].endswith("create jobsets, delete jobsets")
        assert found["advice"] == (
            "give it a Role there, like that of the chart's operator account, with "
            'apiGroups: ["jobset.x-k8s.io"], resources: ["jobsets"], '
            "verbs: [create, delete]"
        )

    def test_nobody_needs_rights_to_what_is_not_served(self, site: Site) -> None:
        site.api.missing.add(POD_GROUP)
        site.api.refused.add(("create", POD_GROUP.resource))
        assert site.check("rights")["state"] == "ok"

    def test_nodes_that_may_not_be_read(self, site: Site) -> None:
        site.api.refused.add(("list", f"{NODE.resource}!"))
        checks = {check["name"]: check for check in site.checks()}
        assert checks["reading"]["state"] == "warn"
        assert checks["GPUs"]["found"] == "this account may not read the nodes"
        assert checks["a gang"]["state"] == "ok"

    def test_a_namespace_that_is_being_deleted(self, site: Site) -> None:
        site.api.documents[0]["status"] = {"phase": "Terminating"}
        assert "is being deleted" in site.check("claim")["found"]

    @pytest.mark.parametrize(
        ("modes", "phase", "said"),
        [
            (["ReadWriteOnce"], "Bound", "it must be ReadWriteMany"),
            (["ReadWriteMany"], "Pending", "is Pending"),
        ],
    )
    def test_a_claim_that_cannot_be_used(self, modes: list[str], phase: str, said: str, site: Site) -> None:
        site.replaced("PersistentVolumeClaim", claim(*modes, phase=phase))
        assert said in site.check("claim")["found"]

    def test_a_claim_that_is_not_there(self, site: Site) -> None:
        site.replaced("PersistentVolumeClaim")
        assert "has no PersistentVolumeClaim muster-store" in site.check("claim")["found"]


class TestGangs:
    def test_nothing_that_starts_them_whole(self, site: Site) -> None:
        site.api.missing |= {JOB_SET, WORKLOAD, POD_GROUP, CLUSTER_QUEUE}
        found = site.check("gangs")
        assert found["state"] == "bad"
        assert found["advice"].startswith("install JobSet and Kueue")

    def test_kubernetes_own(self, site: Site) -> None:
        site.api.missing |= {WORKLOAD, CLUSTER_QUEUE}
        site.write(queue="")
        checks = {check["name"]: check for check in site.checks()}
        assert checks["gangs"]["state"] == "warn"
        assert "queue" not in checks

    def test_a_queue_that_is_not_there(self, site: Site) -> None:
        site.write(queue="team-z")
        assert "has no queue team-z; there are team-a, team-b" in site.check("queue")["found"]

    def test_no_queue_of_its_own(self, site: Site) -> None:
        site.write(queue="")
        assert site.check("queue")["found"] == "the cluster file names no queue; there are team-a, team-b"

    def test_a_queue_that_is_stopped(self, site: Site) -> None:
        said = {"type": "Active", "status": "False", "message": "ClusterQueue team-a is stopped"}
        for each in site.api.documents:
            if each["kind"] == "LocalQueue":
                each["status"] = {"conditions": [said]}
        assert site.check("queue")["found"] == "team-a is stopped: ClusterQueue team-a is stopped"

    def test_a_flavor_that_only_counts(self, site: Site) -> None:
        for each in site.api.documents:
            if each["kind"] == "ResourceFlavor" and each["metadata"]["name"] == "gpu-k80":
                del each["spec"]["topologyName"]
        assert site.check("flavors")["found"] == "gpu-k80 without a topologyName"

    def test_priorities(self, site: Site) -> None:
        assert site.check("priorities") == {
            "name": "priorities",
            "state": "ok",
            "found": "high, low, normal",
            "advice": "",
        }
        site.replaced(
            "WorkloadPriorityClass",
            *(each for each in site.api.documents if each["metadata"]["name"] == "low"),
        )
        assert site.check("priorities")["found"] == "low, and no normal"
        site.replaced("WorkloadPriorityClass")
        assert "set the chart's queues.priorities" in site.check("priorities")["advice"]
        site.api.refused.add(("list", f"{WORKLOAD_PRIORITY_CLASS.resource}!"))
        assert site.check("priorities")["found"] == "this account may not read them"

    def test_kueue_that_does_not_say_who_is_next(self, site: Site) -> None:
        assert site.check("places")["state"] == "ok"
        site.api.missing.add(QUEUE_VIEW)
        found = site.check("places")
        assert (found["state"], "visibility server" in found["advice"]) == ("warn", True)

    def test_cards_without_a_class(self, site: Site) -> None:
        loose = node("new-0", gpus=8)
        del loose["metadata"]["labels"]["muster.dev/gpu-class"]
        site.api.documents.append(loose)
        found = site.check("GPUs")
        assert found["found"] == "1 nodes with GPUs have no class: new-0"
        assert "kubectl label node" in found["advice"]

    def test_no_card_of_that_name(self, site: Site) -> None:
        site.write(gpu_resource="amd.com/gpu")
        assert site.check("GPUs")["found"] == "no node has amd.com/gpu"

    def test_a_webhook_that_refuses_every_gang(self, site: Site) -> None:
        said = 'admission webhook "policy.example" denied the request: no pods on Saturdays'
        site.api.dry_run = status(403, "Forbidden", said)
        assert "webhook policy.example refuses it: no pods on Saturdays" in site.check("a gang")["found"]


class TestServing:
    GATEWAY: ClassVar[dict[str, Any]] = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "public", "namespace": "gateways"},
    }

    @pytest.fixture(autouse=True)
    def served(self, site: Site) -> None:
        site.api.documents.append(self.GATEWAY)
        site.write(serving="kserve", gateway="gateways/public", serving_url="https://{name}.example")

    def test_all_is_well(self, site: Site) -> None:
        assert site.check("serving")["found"] == (
            "kserve, users come through Gateway gateways/public at https://NAME.example"
        )
        assert site.check("rights to serve")["state"] == "ok"

    def test_all_is_well_with_seldon_too(self, site: Site) -> None:
        site.write(serving="seldon", gateway="gateways/public", serving_url="https://{name}.example")
        assert site.check("serving")["found"].startswith("seldon, users come through Gateway")
        site.api.refused.add(("create", SELDON_DEPLOYMENT.resource))
        assert 'resources: ["seldondeployments"], verbs: [create]' in site.check("rights to serve")["advice"]
        site.api.missing.add(SELDON_DEPLOYMENT)
        assert "install Seldon Core 1.17 or newer" in site.check("serving")["found"]

    def test_it_need_not_be_on_the_cluster(self, site: Site) -> None:
        site.write()
        checks = {check["name"]: check for check in site.checks()}
        assert checks["serving"]["found"].startswith("on the machine that deploys")
        assert "rights to serve" not in checks

    def test_without_a_gateway_traffic_moves_as_a_whole(self, site: Site) -> None:
        site.write(serving="kserve")
        found = site.check("serving")
        assert (found["state"], found["found"]) == ("warn", "kserve, without a Gateway")

    @pytest.mark.parametrize(
        ("missing", "said"),
        [(INFERENCE_SERVICE, "install KServe 0.20 or newer"), (HTTP_ROUTE, "install the Gateway API")],
    )
    def test_what_is_not_installed(self, missing: Kind, said: str, site: Site) -> None:
        site.api.missing.add(missing)
        found = site.check("serving")
        assert (found["state"], said in found["found"]) == ("bad", True)

    def test_a_gateway_that_is_not_there(self, site: Site) -> None:
        site.replaced("Gateway")
        assert "namespace gateways has no Gateway public" in site.check("serving")["found"]

    def test_where_the_gateways_own_errors_are_counted(self, site: Site) -> None:
        assert not any(check["name"] == "gateway metrics" for check in site.checks())
        users = {"gateway": "gateways/public", "serving_url": "https://{name}.example"}
        with telling("traefik_config_reloads_total 1\n") as told:
            site.write(serving="kserve", gateway_metrics=told.url, **users)
            found = site.check("gateway metrics")
            assert (found["state"], found["found"]) == (
                "ok",
                "1 replicas of the Gateway report their answers",
            )
            told.text = "envoy_cluster_upstream_rq_total 1\n"
            found = site.check("gateway metrics")
        assert found["state"] == "warn"
        assert "that is no page of a Gateway that muster can read: expected Traefik's" in found["found"]
        assert "are in no revision's counts" in found["advice"]
        assert "refused" in site.check("gateway metrics")["found"]

    def test_rights_that_are_missing_are_named_as_a_role_grants_them(self, site: Site) -> None:
        site.api.refused.add(("patch", HTTP_ROUTE.resource))
        found = site.check("rights to serve")
        assert found["found"].endswith("patch httproutes")
        assert "set serving.enabled of the chart" in found["advice"]
        assert 'resources: ["httproutes"], verbs: [patch]' in found["advice"]


class TestImages:
    def test_no_place_for_them(self, site: Site) -> None:
        site.write(image_prefix="")
        checks = {check["name"]: check for check in site.checks()}
        assert checks["images"]["state"] == "bad"
        assert "no image prefix" in checks["a gang"]["found"]

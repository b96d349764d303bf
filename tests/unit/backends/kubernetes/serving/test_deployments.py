"""The steps of a release on a cluster: what is written, in which order, and who may do it at once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes.api_server import Answer, Asked
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE
from tests.unit.backends.kubernetes.serving.fake_serving import SITE, ServingCluster, World, world
from tests.unit.backends.kubernetes.serving.gateway_pages import line, page, telling

from muster.backends.kubernetes.api.kinds import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    EVENT,
    HTTP_ROUTE,
    POD,
    SERVICE,
)
from muster.backends.kubernetes.serving import names, replicas, routes
from muster.backends.kubernetes.serving.revisions import ClusterRevisions
from muster.backends.kubernetes.serving.routes import Routes
from muster.backends.kubernetes.site import PlatformOwner
from muster.backends.releases import manual
from muster.backends.releases.book import BookEntry
from muster.backends.releases.manual import promote, roll_back
from muster.core.deployment import Release, RequestLog, RevisionState, SmokeRequest
from muster.core.errors import (
    BackendError,
    Behind,
    Conflict,
    Corrupt,
    DeploymentError,
    Forbidden,
    NotFound,
    SpecError,
    Unreachable,
)
from muster.core.origin import Origin

METRICS = """\
process_start_time_seconds {born}
muster_requests_total{{model="lines",outcome="answered",revision="r1"}} {answered}
muster_requests_total{{model="lines",outcome="failed",revision="r1"}} 2.0
muster_request_seconds_bucket{{le="0.1",model="lines",revision="r1"}} {answered}
muster_request_seconds_bucket{{le="+Inf",model="lines",revision="r1"}} {answered}
"""

BY_BIN = """\
muster_input_requests_total{{model="lines",revision="r1",input="x",bin="up to 2.5",trained="900"}} {low}
muster_input_requests_total{{model="lines",revision="r1",input="x",bin="above 2.5",trained="100"}} {high}
"""


@pytest.fixture(params=list(PlatformOwner), ids=lambda platform: platform.value)
def there(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path, request.param) as made:
        yield made


def serve(there: World, number: int = 1, **changes: Any) -> str:
    """Have a version serve all traffic; return its revision."""
    deployments = there.deployments()
    spec = there.spec(number, **changes)
    revision = deployments.prepare(spec, by="ti-1").name
    status = deployments.deployment(spec.name)
    kept = {status.champion.name: 0} if status.champion else {}
    deployments.shift(spec.name, kept | {revision: 100}, token=status.token, release=None)
    return revision


class TestPrepare:
    def test_a_revision_comes_up_beside_what_serves_and_has_no_traffic(self, there: World) -> None:
        serve(there)
        asker = Origin(instance="i", dag_id="flights", run_id="manual", task_id="deploy")
        revision = there.deployments().prepare(there.spec(2, replicas=2), by="ti-2", origin=asker)
        assert (revision.name, revision.state, revision.ready) == ("r2", RevisionState.READY, 2)
        assert there.weights() == {"lines-r1-predictor": 100}
        status = there.deployments().deployment("lines")
        begun = Release(revision="r2", champion="r1", by="ti-2", since=there.now, origin=asker)
        assert status.release == begun
        assert status.shares == {"r1": 100}

    def test_the_same_again_goes_on(self, there: World) -> None:
        deployments = there.deployments()
        first = deployments.prepare(there.spec(), by="ti-1")
        before = there.route()["metadata"]["resourceVersion"]
        assert there.deployments().prepare(there.spec(), by="ti-1") == first
        assert there.route()["metadata"]["resourceVersion"] == before
        assert len(there.cluster.all(there.platform.kind)) == 1

    def test_what_was_decided_on_another_route_is_not_begun(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        before = deployments.deployment("lines").token
        deployments.prepare(there.spec(2), by="ti-2", token=before)
        with pytest.raises(Conflict, match="another writer changed"):
            deployments.prepare(there.spec(3), by="ti-3", token=before)
        assert deployments.deployment("lines").release.revision == "r2"  # type: ignore[union-attr]

    def test_what_was_superseded_before_it_was_made_leaves_nothing(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve(there)
        deployments, others = there.deployments(), there.deployments()
        make = ClusterRevisions.make

        def late(revisions: ClusterRevisions, live: BookEntry) -> None:
            monkeypatch.setattr(ClusterRevisions, "make", make)
            others.prepare(there.spec(3), by="ti-3")
            others.withdraw("lines", live.name, state=RevisionState.RETIRED, reason="superseded")
            make(revisions, live)

        monkeypatch.setattr(ClusterRevisions, "make", late)
        assert deployments.prepare(there.spec(2), by="ti-2").state is RevisionState.RETIRED
        left = {each["metadata"]["name"] for each in there.cluster.all(there.platform.kind)}
        assert left == {"lines-r1", "lines-r3"}
        assert there.store.resolve(there.version(2).address)[0].pins == ()

    def test_what_serves_already_is_left_as_it_is(self, there: World) -> None:
        serve(there)
        before = there.route()
        assert there.deployments().prepare(there.spec(), by="ti-9").state is RevisionState.SERVING
        assert there.route() == before

    def test_what_was_cut_off_before_its_objects_were_made_is_made_by_the_next(self, there: World) -> None:
        there.cluster.forbidden.add(("create", CONFIG_MAP.plural))
        with pytest.raises(Forbidden):
            there.deployments().prepare(there.spec(), by="ti-1")
        there.cluster.forbidden.clear()
        assert there.deployments().prepare(there.spec(), by="ti-1").name == "r1"
        assert len(there.cluster.all(there.platform.kind)) == 1
        (made,) = there.cluster.all(CONFIG_MAP)
        assert made["metadata"]["ownerReferences"][0]["name"] == "lines-r1"

    def test_another_supersedes_it_and_the_champion_has_all_traffic_again_in_the_same_write(
        self, there: World
    ) -> None:
        serve(there)
        deployments = there.deployments()
        deployments.prepare(there.spec(2), by="ti-2")
        status = deployments.deployment("lines")
        deployments.shift("lines", {"r1": 80, "r2": 20}, token=status.token, release=status.release)
        deployments.prepare(there.spec(3), by="ti-3")
        status = deployments.deployment("lines")
        assert status.shares == {"r1": 100}
        assert status.release == Release(revision="r3", champion="r1", by="ti-3", since=there.now)

    def test_what_was_kept_for_a_rollback_is_taken_as_it_is(self, there: World) -> None:
        serve(there, 1)
        serve(there, 2)
        assert there.deployments().prepare(there.spec(1), by="ti-3").name == "r1"
        assert len(there.cluster.all(there.platform.kind)) == 2

    def test_one_that_failed_is_not_taken_again(self, there: World) -> None:
        serve(there, 1)
        there.cluster.crashes["r2"] = "no model"
        there.deployments().prepare(there.spec(2), by="ti-2")
        assert there.deployments().prepare(there.spec(2), by="ti-3").name == "r3"

    def test_an_older_version_is_refused_where_it_must_not_be(self, there: World) -> None:
        there.version(2)
        serve(there, 2)
        with pytest.raises(Behind, match=r"@1 would take lines back in time: @2 serves$"):
            there.deployments().prepare(there.spec(1), by="ti-3", allow_older=False)

    def test_a_cluster_that_lacks_something_is_told_what_to_install(self, there: World) -> None:
        missing = {
            there.platform.kind: f"install {there.platform.title}",
            HTTP_ROUTE: "install the Gateway API",
        }
        for kind, words in missing.items():
            there.cluster.missing = frozenset({kind})
            with pytest.raises(SpecError, match=words):
                there.deployments().prepare(there.spec(), by="ti-1")
            assert there.cluster.all(there.platform.kind) == []

    def test_a_gateway_that_is_not_there_is_named(self, there: World) -> None:
        with pytest.raises(SpecError, match="namespace gateways has no Gateway other"):
            there.deployments(gateway="gateways/other").prepare(there.spec(), by="ti-1")

    def test_what_cannot_be_served_is_refused_before_anything_is_made(self, there: World) -> None:
        good = there.spec()
        other = f"b3:{'0' * 64}"
        for wrong, kind, words in (
            (replace(good, server="triton"), SpecError, "server 'triton'"),
            (replace(good, model=replace(good.model, digest=other)), SpecError, "another store"),
            (replace(good, image_digest=other), NotFound, "no code snapshot"),
            (replace(good, model=replace(good.model, address="volume://lines/model@99")), NotFound, "99"),
        ):
            with pytest.raises(kind, match=words):
                there.deployments().prepare(wrong, by="ti-1")
        assert there.deployments().names() == []
        assert there.cluster.made == []

    def test_a_log_needs_a_folder_on_the_claim_and_is_refused_where_nothing_commits_it(
        self, there: World
    ) -> None:
        wanted, opened = there.spec(log=RequestLog(share=0.1)), list[str]()

        def refuse(_: str) -> None:
            raise SpecError("nothing on this cluster commits requests")

        there.open_spool = refuse
        with pytest.raises(SpecError, match="nothing on this cluster commits requests"):
            there.deployments().prepare(wanted, by="ti-1")
        assert there.cluster.made == []
        there.open_spool = opened.append
        there.deployments().prepare(wanted, by="ti-1")
        assert opened == ["lines"]
        with pytest.raises(SpecError, match="log: that needs server 'serve' or 'kserve'"):
            there.deployments().prepare(replace(wanted, server="seldon"), by="ti-1")
        assert opened == ["lines"]

    def test_objects_of_a_retired_deployment_are_not_taken_for_its_own(self, there: World) -> None:
        there.deployments().prepare(there.spec(1), by="ti-1")
        del there.cluster.objects[HTTP_ROUTE.plural, "lines"]
        there.cluster.objects[there.platform.kind.plural, "lines-r1"]["metadata"]["labels"] = {}
        with pytest.raises(BackendError, match=f"another {there.platform.kind.name} lines-r1 is in the way"):
            there.deployments().prepare(there.spec(2), by="ti-2")

    def test_what_a_deleted_route_left_is_in_nobodys_way_and_goes_with_the_deployment(
        self, there: World
    ) -> None:
        serve(there, 1)
        serve(there, 2)
        del there.cluster.objects[HTTP_ROUTE.plural, "lines"]
        assert serve(there, 3) == "r3"
        assert there.weights() == {"lines-r3-predictor": 100}
        there.deployments().retire("lines")
        assert there.cluster.all(there.platform.kind) == []
        assert there.store.resolve(there.version(1).address)[0].pins == ()

    def test_a_route_that_is_still_being_deleted_is_not_waited_for_for_ever(self, there: World) -> None:
        serve(there)
        there.route()["metadata"]["deletionTimestamp"] = "2026-11-22T04:00:00Z"
        with pytest.raises(Conflict, match="is being retired: try again"):
            there.deployments().prepare(there.spec(2), by="ti-2")

    def test_a_name_that_somebody_else_has_taken(self, there: World) -> None:
        there.cluster.put(
            {
                "apiVersion": HTTP_ROUTE.api_version,
                "kind": "HTTPRoute",
                "metadata": {"name": "lines", "namespace": SITE.namespace},
                "spec": {},
            }
        )
        with pytest.raises(BackendError, match="belongs to no deployment that muster knows"):
            there.deployments().prepare(there.spec(), by="ti-1")


class TestShift:
    def test_shares_are_one_write_and_kept_ones_are_named_with_weight_0(self, there: World) -> None:
        serve(there, 1)
        deployments = there.deployments()
        deployments.prepare(there.spec(2), by="ti-2")
        status = deployments.deployment("lines")
        token = deployments.shift("lines", {"r1": 80, "r2": 20}, token=status.token, release=status.release)
        assert there.weights() == {"lines-r1-predictor": 80, "lines-r2-predictor": 20}
        deployments.shift("lines", {"r1": 0, "r2": 100}, token=token, release=None)
        assert there.weights() == {"lines-r1-predictor": 0, "lines-r2-predictor": 100}
        status = deployments.deployment("lines")
        assert [(one.name, one.percent, one.kept, one.state) for one in status.revisions] == [
            ("r2", 100, False, RevisionState.SERVING),
            ("r1", 0, True, RevisionState.READY),
        ]
        assert status.release is None

    def test_of_two_at_once_one_wins(self, there: World) -> None:
        serve(there)
        token = there.deployments().deployment("lines").token
        there.deployments().shift("lines", {"r1": 100}, token=token, release=None)
        with pytest.raises(Conflict, match="another writer"):
            there.deployments().shift("lines", {"r1": 100}, token=token, release=None)

    def test_what_a_gateway_reports_makes_no_conflict(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        status = deployments.deployment("lines")
        there.cluster.touch(HTTP_ROUTE, "lines")
        assert deployments.deployment("lines").token == status.token
        deployments.shift("lines", {"r1": 100}, token=status.token, release=None)

    def test_an_edit_of_somebody_else_is_seen_and_told(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        token = deployments.deployment("lines").token
        (rule,) = there.route()["spec"]["rules"]
        backends = [{**rule["backendRefs"][0], "weight": 1}, {"name": "mine", "port": 80, "weight": 1}]
        there.cluster.edit(HTTP_ROUTE, "lines", rules=[{**rule, "backendRefs": backends}])
        with pytest.raises(Conflict):
            deployments.shift("lines", {"r1": 100}, token=token, release=None)
        status = deployments.deployment("lines")
        assert status.shares == {"r1": 50}
        assert "also sends users to mine" in status.reason
        deployments.shift("lines", {"r1": 100}, token=status.token, release=None)
        assert there.weights() == {"lines-r1-predictor": 100}

    def test_an_edit_that_keeps_users_away_is_told_until_the_next_write(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        there.cluster.edit(HTTP_ROUTE, "lines", hostnames=["old.example"])
        status = deployments.deployment("lines")
        assert (status.ready, status.shares) == (False, {"r1": 100})
        told = (
            'users may not reach it: in its route spec.hostnames is ["old.example"], not ["gateway.example"]'
        )
        assert told in status.reason
        assert "if these are right here, `muster deployments repair lines` brings it back" in status.reason
        assert [each.status for each in deployments.look_at()] == [status]
        promote(deployments, "lines", "r1", by="ann")
        assert there.route()["spec"]["hostnames"] == ["gateway.example"]
        status = deployments.deployment("lines")
        assert (status.ready, status.reason) == (True, "")

    def test_who_asks_again_for_what_was_edited_has_it_written_anew(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        deployments.prepare(there.spec(2), by="ti-2")
        before = deployments.deployment("lines")
        (rule,) = there.route()["spec"]["rules"]
        there.cluster.edit(HTTP_ROUTE, "lines", rules=[{**rule, "matches": rule["matches"][:1]}])
        told = deployments.deployment("lines")
        assert not told.ready
        assert "spec.rules[0].matches lacks" in told.reason
        assert "promote" not in told.reason  # a release is under way, which that would end: a repair does not
        deployments.prepare(there.spec(2), by="ti-2")
        assert there.route()["spec"]["rules"] == [rule]
        status = deployments.deployment("lines")
        assert (status.ready, status.release, status.shares) == (True, before.release, {"r1": 100})
        assert status.token != before.token

    def test_an_edit_that_keeps_nobody_away_is_told_and_it_serves(self, there: World) -> None:
        serve(there)
        (rule,) = there.route()["spec"]["rules"]
        filters = [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["x"]}}]
        there.cluster.edit(HTTP_ROUTE, "lines", rules=[{**rule, "filters": filters}])
        deployments = there.deployments()
        status = deployments.deployment("lines")
        assert status.ready
        assert "not as muster writes it here in spec.rules[0].filters" in status.reason
        deployments.shift("lines", {"r1": 100}, token=status.token, release=None)
        assert deployments.deployment("lines").reason == ""


def edited(there: World, **weights: int) -> None:
    """Share the traffic out by revision, as another client."""
    (rule,) = there.route()["spec"]["rules"]
    port = rule["backendRefs"][0]["port"]
    named = [
        {"group": "", "kind": "Service", "name": f"lines-{name}-predictor", "port": port, "weight": weight}
        for name, weight in weights.items()
    ]
    there.cluster.edit(HTTP_ROUTE, "lines", rules=[{**rule, "backendRefs": named}])


def named_commands(text: str) -> list[str]:
    """The commands that a message tells a person to type."""
    return re.findall(r"`(muster [^`]+)`", text)


class TestRepair:
    """What was changed outside muster is told with the command that brings it back, and that does."""

    @pytest.mark.parametrize(
        ("weights", "told"),
        [
            ({"r1": 50, "r2": 50}, "r1 50 %, r2 50 %, where muster wrote r2 100 %, r1 kept"),
            ({"r2": 1}, "r2 100 %, where muster wrote r2 100 %, r1 kept"),
            ({"r1": 1, "r2": 0}, "r1 100 %, r2 kept, where muster wrote r2 100 %, r1 kept"),
        ],
        ids=["half", "one taken out", "turned round"],
    )
    def test_an_edited_share(self, there: World, weights: dict[str, int], told: str) -> None:
        serve(there)
        serve(there, 2)
        deployments = there.deployments()
        assert deployments.repair("lines") == ()
        before = there.weights()
        edited(there, **weights)
        status = deployments.deployment("lines")
        assert status.ready  # users are served, by the edited shares
        assert status.reason == status.drift
        assert f"its route was edited outside muster: {told}; " in status.drift
        assert named_commands(status.drift) == ["muster deployments repair lines"]
        deployments.platform.announce("lines", status.drift)
        (event,) = there.cluster.all(EVENT)
        assert (event["reason"], event["message"]) == ("DeploymentDrifted", status.drift)
        assert event["involvedObject"]["uid"] == there.route()["metadata"]["uid"]
        assert list(manual.repair(deployments, "lines")) == [
            "its route is written as muster left it: r2 100 %, r1 kept"
        ]
        assert there.weights() == before
        assert deployments.deployment("lines").drift == ""

    def test_an_edited_share_is_put_back_and_the_release_goes_on(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        deployments.prepare(there.spec(2), by="ti-2")
        status = deployments.deployment("lines")
        deployments.shift("lines", {"r1": 90, "r2": 10}, token=status.token, release=status.release)
        edited(there, r1=50, r2=50)
        list(manual.repair(deployments, "lines"))
        assert there.weights() == {"lines-r1-predictor": 90, "lines-r2-predictor": 10}
        assert deployments.deployment("lines").release == status.release

    @pytest.mark.parametrize("lost", ["r1", "r2"], ids=["kept", "serving"])
    def test_a_revision_that_somebody_deleted(self, there: World, lost: str) -> None:
        serve(there)
        serve(there, 2)
        deployments = there.deployments()
        kind = there.platform.kind
        there.client.delete(kind, f"lines-{lost}", namespace=NAMESPACE)
        status = deployments.deployment("lines")
        assert status.ready == (lost == "r1")
        assert status.drift == (
            f"{lost}'s {kind.name} is gone: it was deleted outside muster; `muster deployments repair lines` brings it back"
        )
        assert list(manual.repair(deployments, "lines")) == [f"{lost}: its {kind.name} is made again"]
        status = deployments.deployment("lines")
        assert (status.ready, status.drift, status.shares) == (True, "", {"r2": 100})
        assert ("configmaps", f"lines-{lost}") in there.cluster.objects

    def test_no_message_sends_a_person_in_a_circle(self, there: World) -> None:
        """Half of the traffic is given by hand to what is then deleted: every command that is named helps."""
        serve(there)
        serve(there, 2)
        deployments = there.deployments()
        edited(there, r1=50, r2=50)
        there.client.delete(there.platform.kind, "lines-r2", namespace=NAMESPACE)
        with pytest.raises(DeploymentError) as refused:
            promote(deployments, "lines", "r2", by="ann")
        with pytest.raises(NotFound) as nothing:
            roll_back(deployments, "lines", by="ann", revision="r2")
        for error in (refused, nothing):
            assert set(named_commands(str(error.value))) <= {
                "muster deployments promote lines r1",
                "muster deployments repair lines",
            }
            assert named_commands(str(error.value))
        promote(deployments, "lines", "r1", by="ann")
        assert there.weights() == {"lines-r1-predictor": 100, "lines-r2-predictor": 0}
        list(manual.repair(deployments, "lines"))
        assert deployments.deployment("lines").drift == ""

    def test_users_stay_where_they_are_until_who_gets_them_back_answers(self, there: World) -> None:
        serve(there)
        serve(there, 2)
        deployments = there.deployments()
        edited(there, r1=1, r2=0)
        there.client.delete(there.platform.kind, "lines-r2", namespace=NAMESPACE)
        there.cluster.slow.add("r2")
        assert deployments.repair("lines") == (f"r2: its {there.platform.kind.name} is made again",)
        assert there.weights() == {"lines-r1-predictor": 1, "lines-r2-predictor": 0}
        there.cluster.slow.clear()
        there.cluster.touch(there.platform.kind, "lines-r2")
        there.cluster.edit(there.platform.kind, "lines-r2")
        assert deployments.repair("lines") == ("its route is written as muster left it: r2 100 %, r1 kept",)

    def test_what_was_made_is_told_though_the_route_was_written_by_others_meanwhile(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve(there)
        serve(there, 2)
        deployments = there.deployments()
        edited(there, r1=50, r2=50)
        there.client.delete(there.platform.kind, "lines-r1", namespace=NAMESPACE)

        def edit_again() -> None:
            edited(there, r1=40, r2=60)

        with monkeypatch.context() as patch:
            write = Routes.write

            def late(*given: Any) -> Any:
                patch.undo()
                edit_again()
                return write(*given)

            patch.setattr(Routes, "write", late)
            told = deployments.repair("lines")
        assert told == (
            f"r1: its {there.platform.kind.name} is made again",
            "its route is written as muster left it: r2 100 %, r1 kept",
        )

    def test_the_code_of_one_that_was_deleted_is_not_taken_for_the_new_one_s(self, there: World) -> None:
        """Its ConfigMap goes later than it, and would go from under the pods of the new one."""
        serve(there)
        deployments = there.deployments()
        there.cluster.collects = False
        there.client.delete(there.platform.kind, "lines-r1", namespace=NAMESPACE)
        sleep = there.sleep

        def collected(seconds: float) -> None:
            sleep(seconds)
            there.cluster.collect()

        there.sleep = collected  # type: ignore[method-assign]
        deployments = there.deployments()
        deployments.repair("lines")
        (owner,) = there.cluster.objects["configmaps", "lines-r1"]["metadata"]["ownerReferences"]
        made = there.cluster.objects[there.platform.kind.plural, "lines-r1"]
        assert owner["uid"] == made["metadata"]["uid"]

    def test_a_route_of_a_release_before_is_read_as_it_is(self, there: World) -> None:
        """It does not say which shares muster wrote, so no edit can be told."""
        serve(there)
        serve(there, 2)
        del there.route()["metadata"]["annotations"]["muster.dev/shares"]
        edited(there, r1=50, r2=50)
        status = there.deployments().deployment("lines")
        assert (status.drift, status.shares) == ("", {"r1": 50, "r2": 50})


class TestShares:
    def test_one_that_is_not_ready_gets_no_traffic(self, there: World) -> None:
        serve(there)
        there.cluster.slow.add("r2")
        deployments = there.deployments()
        deployments.prepare(there.spec(2), by="ti-2")
        status = deployments.deployment("lines")
        with pytest.raises(DeploymentError, match=r"r2 is not ready for traffic .*0 of 1 replicas"):
            deployments.shift("lines", {"r1": 95, "r2": 5}, token=status.token, release=status.release)
        assert there.weights() == {"lines-r1-predictor": 100}

    @pytest.mark.parametrize("up", [0, 1])
    def test_of_one_that_is_kept_a_single_replica_will_do(self, there: World, up: int) -> None:
        """A rollback does not wait for a node that was drained; nor does traffic go to no revision."""
        serve(there, 1, replicas=2)
        serve(there, 2, replicas=2)
        (slice_,) = (
            each
            for each in there.cluster.all(ENDPOINT_SLICE)
            if each["endpoints"][0]["targetRef"]["name"].startswith("lines-r1-")
        )
        for endpoint in slice_["endpoints"][up:]:
            endpoint["conditions"]["ready"] = False
        deployments = there.deployments()
        if up:
            assert roll_back(deployments, "lines", by="me") == "r1"
            assert there.weights() == {"lines-r1-predictor": 100}
            return
        with pytest.raises(DeploymentError, match=r"r1 is not ready for traffic .*0 of 2 replicas"):
            roll_back(deployments, "lines", by="me")

    @pytest.mark.parametrize(
        ("shares", "error"),
        [
            ({"r1": 90}, SpecError),
            ({"r1": 110, "r2": -10}, SpecError),
            ({}, SpecError),
            ({"r1": 50, "r9": 50}, NotFound),
        ],
    )
    def test_shares_that_are_none(self, there: World, shares: dict[str, int], error: type[Exception]) -> None:
        serve(there)
        there.deployments().prepare(there.spec(2), by="ti-2")
        token = there.deployments().deployment("lines").token
        with pytest.raises(error):
            there.deployments().shift("lines", shares, token=token, release=None)

    def test_a_gateway_that_is_down_is_told_and_what_was_written_stands(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(routes, "TAKEN_UP_SECONDS", 0.1)
        serve(there)
        there.cluster.gateway_down = True
        deployments = there.deployments()
        token = deployments.deployment("lines").token
        serve_again = {"r1": 100}
        deployments.shift(
            "lines", serve_again, token=token, release=None
        )  # nothing that it routes by changed
        deployments.prepare(there.spec(2), by="ti-2")
        status = deployments.deployment("lines")
        with pytest.raises(Unreachable, match="has not taken up the route as it is now: is its controller"):
            deployments.shift("lines", {"r1": 80, "r2": 20}, token=status.token, release=status.release)
        status = deployments.deployment("lines")
        assert not status.ready
        assert status.shares == {"r1": 80, "r2": 20}


class TestWithdraw:
    def test_it_goes_when_the_gateway_has_let_go_and_is_remembered(self, there: World) -> None:
        serve(there, 1)
        serve(there, 2)
        deployments = there.deployments()
        status = deployments.deployment("lines")
        deployments.shift("lines", {"r2": 100}, token=status.token, release=None)
        deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")
        assert there.slept[-1] == pytest.approx(SITE.gateway_seconds)
        assert [each["metadata"]["name"] for each in there.cluster.all(there.platform.kind)] == ["lines-r2"]
        assert len(there.cluster.all(CONFIG_MAP)) == 1
        found = deployments.deployment("lines").called("r1")
        assert found is not None
        assert (found.state, found.reason) == (RevisionState.RETIRED, "done")
        assert there.store.resolve(there.version(1).address)[0].pins == ()
        assert there.store.resolve(there.version(2).address)[0].pins == ("deployment/lines",)
        deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")

    def test_another_ones_clock_makes_nobody_wait_long(self, there: World) -> None:
        serve(there, 1)
        serve(there, 2)
        deployments = there.deployments()
        status = deployments.deployment("lines")
        there.now += 3600
        deployments.shift("lines", {"r2": 100}, token=status.token, release=None)
        there.now -= 3600
        deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")
        assert there.slept[-1] == SITE.gateway_seconds

    def test_what_is_needed_stays(self, there: World) -> None:
        serve(there)
        deployments = there.deployments()
        deployments.prepare(there.spec(2), by="ti-2")
        with pytest.raises(Conflict, match="has 100 % of the traffic"):
            deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="")
        with pytest.raises(Conflict, match="r2 is part of the release of r2, by ti-2"):
            deployments.withdraw("lines", "r2", state=RevisionState.RETIRED, reason="")
        with pytest.raises(NotFound, match="no revision 'r9'"):
            deployments.withdraw("lines", "r9", state=RevisionState.RETIRED, reason="")

    def test_nothing_is_deleted_while_the_gateway_does_not_say_that_it_let_go(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(routes, "TAKEN_UP_SECONDS", 0.1)
        serve(there, 1)
        serve(there, 2)
        there.cluster.gateway_down = True
        deployments = there.deployments()
        status = deployments.deployment("lines")
        with pytest.raises(Unreachable):
            deployments.shift("lines", {"r2": 100}, token=status.token, release=None)
        with pytest.raises(Unreachable):
            deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")
        assert len(there.cluster.all(there.platform.kind)) == 2
        there.cluster.gateway_down = False
        there.cluster.take_up(there.route())
        deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")
        assert len(there.cluster.all(there.platform.kind)) == 1

    def test_what_another_begins_meanwhile_is_left_alone(self, there: World) -> None:
        serve(there, 1)
        serve(there, 2)
        deployments = there.deployments()
        status = deployments.deployment("lines")
        deployments.shift("lines", {"r2": 100}, token=status.token, release=None)
        other = there.deployments()

        def begin_another(seconds: float) -> None:
            other.prepare(there.spec(3), by="ti-3")
            there.sleep(seconds)

        there.deployments(begin_another).withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")
        left = [each["metadata"]["name"] for each in there.cluster.all(there.platform.kind)]
        assert left == ["lines-r2", "lines-r3"]

    def test_a_version_that_another_begins_anew_meanwhile_stays_pinned(self, there: World) -> None:
        serve(there, 1)
        serve(there, 2)
        serve(there, 3)
        deployments = there.deployments()
        deployments.withdraw("lines", "r1", state=RevisionState.RETIRED, reason="done")
        other = there.deployments()

        def begin_it_anew(seconds: float) -> None:
            other.prepare(there.spec(1), by="ti-4")
            there.sleep(seconds)

        there.deployments(begin_it_anew).withdraw("lines", "r2", state=RevisionState.RETIRED, reason="done")
        pins = [there.store.resolve(there.version(number).address)[0].pins for number in (1, 2, 3)]
        assert pins == [("deployment/lines",), (), ("deployment/lines",)]


class TestRetire:
    def test_it_leaves_nothing(self, there: World) -> None:
        serve(there, 1)
        serve(there, 2)
        deployments = there.deployments()
        deployments.retire("lines")
        deployments.retire("lines")
        for kind in (HTTP_ROUTE, there.platform.kind, CONFIG_MAP, POD):
            assert there.cluster.all(kind) == []
        assert there.store.resolve(there.version(2).address)[0].pins == ()
        with pytest.raises(NotFound, match=r"no deployment 'lines'; known are: none"):
            deployments.deployment("lines")

    def test_it_waits_until_the_platform_lets_go(self, there: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A finalizer of KServe's keeps an InferenceService, also where there is no pod any more."""
        serve(there)
        objects = there.cluster.objects

        def no_pods(*_: object, **__: object) -> None:
            for pod in there.cluster.all(POD):
                del objects[POD.plural, pod["metadata"]["name"]]

        def let_go(_: float) -> None:
            if there.cluster.all(there.platform.kind) and not there.cluster.all(POD):
                del objects[there.platform.kind.plural, "lines-r1"]

        monkeypatch.setattr(ClusterRevisions, "delete", no_pods)
        there.deployments(let_go).retire("lines")
        assert there.cluster.all(there.platform.kind) == []

    def test_it_waits_as_long_as_its_pods_may_take(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve(there)
        objects, began = there.cluster.objects, there.now

        def begins(*_: object, **__: object) -> None:
            del objects[there.platform.kind.plural, "lines-r1"]
            for pod in there.cluster.all(POD):
                pod["metadata"] |= {
                    "deletionTimestamp": "2026-11-27T03:00:00Z",
                    "deletionGracePeriodSeconds": 300,
                }
                del pod["spec"]  # of a head

        def ends(seconds: float) -> None:
            there.sleep(seconds)
            if there.now > began + 290:
                for pod in there.cluster.all(POD):
                    del objects[POD.plural, pod["metadata"]["name"]]

        monkeypatch.setattr(ClusterRevisions, "delete", begins)
        there.deployments(ends).retire("lines")
        assert there.now > began + 290

    def test_what_was_cut_off_is_still_there_to_be_retired(self, there: World) -> None:
        serve(there)
        there.cluster.forbidden.add(("delete", there.platform.kind.plural))
        with pytest.raises(Forbidden):
            there.deployments().retire("lines")
        assert there.deployments().names() == ["lines"]
        assert there.weights() == {}
        there.cluster.forbidden.clear()
        there.deployments().retire("lines")
        assert there.cluster.all(there.platform.kind) == []


class TestAsk:
    def test_every_replica_answers_and_it_is_no_traffic(self, there: World) -> None:
        there.deployments().prepare(there.spec(1, replicas=2), by="ti-1")
        answers = there.deployments().ask("lines", "r1", SmokeRequest(name="two", inputs={"x": (2.0, 3.0)}))
        assert [(each.replica, each.outputs) for each in answers] == [
            ("lines-r1-0", {"y": (2.0, 3.0)}),
            ("lines-r1-1", {"y": (2.0, 3.0)}),
        ]
        assert {path for _, path, _ in there.cluster.asked} == {
            "/v2/models/lines/versions/r1",
            "/v2/models/lines/versions/r1/infer",
        }

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ((500, {"error": "the model failed"}), "HTTP 500: the model failed"),
            (
                (503, {"kind": "Status", "message": "error trying to reach service: connection refused"}),
                "it does not answer: connection refused",
            ),
            ((500, {"error": f"the model failed: {'at this place, ' * 20} no memory"}), "no memory"),
            ((200, b"<html>"), "HTTP 200: <html>"),
            ((200, {"inputs": [{"name": "z", "datatype": "FP32", "shape": [-1]}]}), "takes z"),
        ],
    )
    def test_what_is_no_prediction_is_told(self, there: World, answer: Any, words: str) -> None:
        there.cluster.answers["r1"] = answer
        there.deployments().prepare(there.spec(), by="ti-1")
        (found,) = there.deployments().ask("lines", "r1", there.spec().smoke[0])
        assert found.outputs is None
        assert words in found.error
        assert found.silent is words.startswith("it does not answer")  # else there is no cause to tell

    def test_a_right_that_is_missing_is_not_the_models_fault(self, there: World) -> None:
        said = 'User "muster" cannot create resource "pods/proxy" in API group ""'
        there.cluster.answers["r1"] = (403, {"kind": "Status", "message": said})
        there.deployments().prepare(there.spec(), by="ti-1")
        with pytest.raises(Forbidden, match=r'resources: \["pods/proxy"\]'):
            there.deployments().ask("lines", "r1", there.spec().smoke[0])

    def test_one_that_hangs_is_told_and_is_not_the_api_servers_fault(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replicas, "LONGEST_REQUEST_SECONDS", 0.2)
        there.deployments().prepare(there.spec(), by="ti-1")
        released = there.cluster.hanging["r1"] = threading.Event()
        (found,) = there.deployments().ask("lines", "r1", there.spec().smoke[0])
        released.set()
        assert (found.outputs, found.error) == (None, "HTTP 504: no answer within 0.2 s")

    def test_one_that_still_comes_up_is_not_asked(self, there: World) -> None:
        """An autoscaler adds a replica while a step begins: no user is sent to it either."""
        there.deployments().prepare(there.spec(1, replicas=2), by="ti-1")
        late = there.cluster.objects[POD.plural, "lines-r1-1"]
        late["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        (answer,) = there.deployments().ask("lines", "r1", there.spec().smoke[0])
        assert (answer.replica, answer.error) == ("lines-r1-0", "")

    def test_no_such_revision(self, there: World) -> None:
        serve(there)
        with pytest.raises(NotFound, match="no revision 'r7'"):
            there.deployments().ask("lines", "r7", there.spec().smoke[0])


class TestCounts:
    def test_they_are_those_of_all_replicas(self, there: World) -> None:
        serve(there, replicas=2)
        for place, answered in enumerate((10, 30)):
            there.cluster.counted[f"lines-r1-{place}"] = METRICS.format(born=1.0, answered=answered)
        counts = there.deployments().counts("lines")["r1"]
        assert (counts.requests, counts.failed) == (44, 4)
        assert counts.seconds == {0.1: 40, float("inf"): 40}

    def test_those_by_bin_are_those_of_all_replicas_that_there_were(self, there: World) -> None:
        serve(there, replicas=2)
        deployments = there.deployments()
        pods = [f"lines-r1-{place}" for place in range(2)]
        for pod, (low, high) in zip(pods, ((1, 2), (10, 20)), strict=True):
            there.cluster.counted[pod] = METRICS.format(born=1.0, answered=10) + BY_BIN.format(
                low=low, high=high
            )
        counts = deployments.counts("lines")["r1"]
        assert counts.asked == {"x": {"up to 2.5": 11, "above 2.5": 22}}
        assert counts.trained == {"x": {"up to 2.5": 900, "above 2.5": 100}}
        there.cluster.counted[pods[0]] = METRICS.format(born=2.0, answered=1) + BY_BIN.format(low=0, high=1)
        del there.cluster.objects[POD.plural, pods[1]]
        assert deployments.counts("lines")["r1"].asked == {"x": {"up to 2.5": 11, "above 2.5": 23}}

    def test_a_replica_that_died_or_began_anew_takes_nothing_back(self, there: World) -> None:
        serve(there, replicas=2)
        deployments = there.deployments()
        first, second = (f"lines-r1-{place}" for place in range(2))
        for pod in (first, second):
            there.cluster.counted[pod] = METRICS.format(born=1.0, answered=10)
        assert deployments.counts("lines")["r1"].requests == 24
        there.cluster.counted[first] = METRICS.format(born=2.0, answered=1)
        assert deployments.counts("lines")["r1"].requests == 27
        del there.cluster.objects[POD.plural, second]
        assert deployments.counts("lines")["r1"].requests == 27

    def test_where_no_replica_of_one_with_traffic_tells_nobody_knows(self, there: World) -> None:
        serve(there, replicas=2)
        deployments = there.deployments()
        there.cluster.counted["lines-r1-0"] = METRICS.format(born=1.0, answered=10)
        assert deployments.counts("lines")["r1"].requests == 12
        there.cluster.counted.clear()
        there.cluster.silent = True
        assert deployments.counts("lines") == {}
        (seen,) = deployments.look_at()
        assert (seen.status.champion is not None, seen.counts) == (True, None)

    def test_one_that_hangs_is_left_out_and_the_others_are_counted(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replicas, "METRICS_SECONDS", 1.0)
        serve(there)
        there.cluster.counted["lines-r1-0"] = METRICS.format(born=1.0, answered=10)
        there.deployments().prepare(there.spec(2), by="ti-2")
        released = there.cluster.hanging["r2"] = threading.Event()
        counts = there.deployments().counts("lines")
        released.set()
        assert (counts["r1"].requests, counts["r2"].requests) == (12, 0)

    def test_what_the_gateway_answered_in_place_of_one_is_its_failure(self, there: World) -> None:
        serve(there)
        there.cluster.counted["lines-r1-0"] = METRICS.format(born=1.0, answered=10)
        backend = f"{SITE.namespace}-lines-r1-predictor-http-80@kubernetesgateway"
        with telling(page(line(backend, 3))) as told:
            deployments = there.deployments(gateway_metrics=told.url)
            counts = deployments.counts("lines")["r1"]
            assert (counts.requests, counts.failed) == (15, 5)
            assert counts.seconds == {0.1: 10, float("inf"): 10}
            (seen,) = deployments.look_at()
            assert seen.counts == {"r1": counts}
            told.text = page(line(backend, 4))
            there.cluster.silent = True
            there.cluster.counted.clear()
            assert deployments.counts("lines") == {}
            there.cluster.silent = False
            assert deployments.counts("lines")["r1"].failed == 6  # it was looked at all the same
        counts = deployments.counts("lines")["r1"]  # no replica tells any more
        assert (counts.requests, counts.failed) == (16, 6)

    def test_one_without_traffic_need_not_tell(self, there: World) -> None:
        there.deployments().prepare(there.spec(), by="ti-1")
        assert there.deployments().counts("lines")["r1"].requests == 0


class TestLookAt:
    def test_it_is_what_each_says_by_itself(self, there: World) -> None:
        serve(there, replicas=2)
        there.deployments().prepare(there.spec(2), by="ti-2")
        there.deployments().prepare(there.spec(1, name="7"), by="ti-1")
        there.cluster.counted["lines-r1-0"] = METRICS.format(born=1.0, answered=10)
        deployments = there.deployments()
        seen = deployments.look_at()
        assert [each.status for each in seen] == [deployments.deployment(name) for name in ("7", "lines")]
        assert [each.counts for each in seen] == [deployments.counts(name) for name in ("7", "lines")]
        assert deployments.look_at(["lines", "other"]) == [seen[1]]
        assert deployments.look_at([]) == []

    def test_more_deployments_and_revisions_cost_no_more_requests(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        answer = ServingCluster.__call__

        def heard(cluster: ServingCluster, request: Asked) -> Answer:
            asked.append(request.path)
            return answer(cluster, request)

        monkeypatch.setattr(ServingCluster, "__call__", heard)
        serve(there)
        deployments, numbers = there.deployments(), []
        for name in ("lines", "a", "b"):
            deployments.prepare(there.spec(2, name=name), by="ti-2")
            asked.clear()
            deployments.look_at()
            numbers.append((len(asked), sum(path.endswith("/metrics") for path in asked)))
        assert numbers == [(7, 2), (8, 3), (9, 4)]  # five lists, and each replica once

    def test_one_that_is_spoiled_or_silent_or_goes_takes_no_other_along(self, there: World) -> None:
        for name in ("gone", "silent", "spoiled"):
            serve(there, name=name)
        serve(there)
        there.route("gone")["metadata"]["deletionTimestamp"] = "2026-11-21T20:00:00Z"
        there.route("spoiled")["metadata"]["annotations"][names.NOTES] = "{}"
        there.cluster.counted["silent-r1-0"] = "spoiled {"
        found = {each.status.name: each for each in there.deployments().look_at()}
        assert {name: (each.status.ready, each.counts is None) for name, each in found.items()} == {
            "lines": (True, False),
            "silent": (True, True),
            "spoiled": (False, True),
        }
        assert "retire the deployment and deploy it again" in found["spoiled"].status.reason

    def test_a_name_that_is_none_asks_for_nothing_else(self, there: World) -> None:
        with pytest.raises(SpecError, match="deployment"):
            there.deployments().look_at(["lines),x in (y"])


class TestWithoutAGateway:
    def test_one_service_points_at_one_revision(self, there: World) -> None:
        deployments = there.deployments(gateway="", serving_url="")
        assert "name one (gateway, serving_url)" in deployments.limits.only_whole
        deployments.prepare(there.spec(1), by="ti-1")
        status = deployments.deployment("lines")
        assert status.shares == {}
        assert status.url == "http://lines.muster-jobs"
        token = deployments.shift("lines", {"r1": 100}, token=status.token, release=None)
        deployments.prepare(there.spec(2), by="ti-2")
        token = deployments.deployment("lines").token
        with pytest.raises(DeploymentError, match="through no Gateway"):
            deployments.shift("lines", {"r1": 50, "r2": 50}, token=token, release=None)
        deployments.shift("lines", {"r1": 0, "r2": 100}, token=token, release=None)
        service = there.cluster.objects[SERVICE.plural, "lines"]
        assert service["spec"]["selector"] == names.of_revision("lines", "r2")
        status = deployments.deployment("lines")
        assert status.ready
        assert [(one.name, one.percent, one.kept) for one in status.revisions] == [
            ("r2", 100, False),
            ("r1", 0, True),
        ]
        assert [each.status for each in deployments.look_at()] == [status]
        deployments.retire("lines")
        assert there.cluster.all(SERVICE) == []


@pytest.mark.parametrize("then", [SITE.gateway, ""])
def test_what_is_served_by_a_route_of_the_other_kind_is_left_alone(there: World, then: str) -> None:
    """A Gateway was named, or is no longer, while it was served: what the route of then names must not be cleared away."""
    without = {"gateway": "", "serving_url": ""}
    before, now = (
        there.deployments(**(without if gateway == "" else {})) for gateway in (then, "" if then else "g")
    )
    before.prepare(there.spec(1), by="ti-1")
    before.shift("lines", {"r1": 100}, token=before.deployment("lines").token, release=None)
    kind, gateway = ("HTTPRoute", "with") if then else ("Service", "without")
    with pytest.raises(
        SpecError, match=f"is served by {kind} lines in namespace muster-jobs, as it was {gateway} a Gateway"
    ):
        now.prepare(there.spec(2), by="ti-2")
    assert [each["metadata"]["name"] for each in there.cluster.all(there.platform.kind)] == ["lines-r1"]
    before.retire("lines")
    assert now.prepare(there.spec(2), by="ti-2").name == "r1"


def test_deployments_are_named(there: World) -> None:
    for name in ("b", "a", "7"):
        there.deployments().prepare(there.spec(1, name=name), by="ti-1")
    copy = json.loads(json.dumps(there.cluster.objects[HTTP_ROUTE.plural, "a"]))
    there.cluster.put({**copy, "metadata": {**copy["metadata"], "name": "somebodys-copy"}})
    assert there.deployments().names() == ["7", "a", "b"]


@pytest.mark.parametrize("spoiled", [{names.NOTES: json.dumps({"kind": "Notes"})}, {}])
def test_notes_that_somebody_spoiled_are_told(there: World, spoiled: dict[str, str]) -> None:
    serve(there)
    there.route()["metadata"]["annotations"] = spoiled
    (listed,) = there.deployments().look_at()
    assert not listed.status.ready
    with pytest.raises(Corrupt, match="users are served as before") as told:
        there.deployments().deployment("lines")
    assert "retire the deployment and deploy it again" in str(told.value)
    there.deployments().retire("lines")
    for kind in (HTTP_ROUTE, there.platform.kind, CONFIG_MAP, POD):
        assert there.cluster.all(kind) == []
    assert there.store.resolve(there.version(1).address)[0].pins == ()
    assert serve(there) == "r1"


@pytest.mark.parametrize("hostile", ["..", "a/b", "a\nb", "x" * 300, "", ".locks"])
def test_a_hostile_name_is_refused(there: World, hostile: str) -> None:
    for act in (there.deployments().deployment, there.deployments().retire):
        with pytest.raises(SpecError, match="deployment"):
            act(hostile)

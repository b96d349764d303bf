"""What every backend promises about deployments, and the one machine that keeps it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serving import onnx_graph
from tests.serving.load import Load
from tests.waiting import GUARD_SECONDS, eventually, promptly

from muster.backends.local.serving.platform import local_deployments
from muster.backends.releases.book import SavedDeployments
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.driver import ReleaseDriver, begin
from muster.backends.releases.keeping import Keeping
from muster.backends.releases.manual import promote, roll_back, tidy
from muster.backends.releases.plan import Plan, Rules
from muster.core.data import Pinned
from muster.core.deployment import (
    DeploymentSpec,
    DeploymentStatus,
    Revision,
    RevisionState,
    SmokeRequest,
)
from muster.core.errors import Behind, Conflict, DeploymentError, NotFound, SpecError
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.core.wire import dumps, loads
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

READY, SERVING = RevisionState.READY, RevisionState.SERVING
REFUSED, RETIRED = RevisionState.REFUSED, RevisionState.RETIRED
WHOLE = Plan()
# Latency is compared with the champion's over the same time, as by default, but no load of the machine breaks the rule: only the
# slack is wider. Which latencies break it is shown by unit/backends/releases, test_judge (figures) and test_driver (a release).
STEADY = Rules(p95_slack_seconds=GUARD_SECONDS)
STEPS = Plan(steps=(20, 60, 100), hold_seconds=(1.0,), rules=STEADY)
LOOK_SECONDS = 0.25


def tensor(x: float) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}]}


def smoke(*, of_two: float) -> tuple[SmokeRequest, ...]:
    """What the line must answer for 2."""
    expect = {"y": {"min": of_two, "max": of_two}}
    return (SmokeRequest(name="two", inputs={"x": (2.0,)}, expect=expect),)


def finish(driver: ReleaseDriver, *, seconds: float = GUARD_SECONDS) -> Outcome:
    """Drive a release to its end; fail where it has not ended after `seconds`."""
    found: list[Outcome] = []

    def ended() -> bool:
        if (outcome := driver.step()) is not None:
            found.append(outcome)
        return bool(found)

    eventually(ended, seconds=seconds)
    return found[0]


class Lines:
    """Versions of the model ``y = slope * x``, their releases and their users.

    Inherit it and give `deployments`, the `store` behind them and the `image` to serve with.
    Where users ask otherwise than at the deployment's URL, say so in :meth:`door`.

    :cvar server: the model server, and the name of its image.
    """

    server = "serve"

    @pytest.fixture
    def deployments(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        return f"line-{secrets.token_hex(3)}"

    @pytest.fixture
    def volume(self, name: str) -> str:
        """The volume of the test's own, whose versions begin at 1."""
        return f"lines/{name}"

    @pytest.fixture
    def version(self, store: Any, volume: str, tmp_path: Path) -> Callable[[float], Pinned]:
        """Commits a version of the model ``y = slope * x``."""

        def commit(slope: float) -> Pinned:
            folder = onnx_graph.write_line(tmp_path / "line", slope=slope)
            pinned: Pinned = store.add(volume, folder).pinned
            return pinned

        return commit

    @pytest.fixture
    def spec(
        self, name: str, image: str, version: Callable[[float], Pinned]
    ) -> Callable[..., DeploymentSpec]:
        """Writes a spec of a new version that answers 2 with 2 * slope, and is expected to."""

        def write(slope: float, *, of_two: float | None = None, **more: Any) -> DeploymentSpec:
            expected = smoke(of_two=2 * slope if of_two is None else of_two)
            fields = {"model": version(slope), "smoke": expected} | more
            return DeploymentSpec(
                name=name, image=self.server, image_digest=image, server=self.server, **fields
            )

        return write

    def door(self, deployments: Any, name: str) -> tuple[int, str]:
        """Return the port of 127.0.0.1 at which users ask, and the host that they name."""
        return int(deployments.deployment(name).url.rpartition(":")[2]), "localhost"

    def infer(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        """Return who answers a user and what."""
        port, host = self.door(deployments, name)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request("POST", f"/v2/models/{name}/infer", json.dumps(tensor(x)), {"Host": host})
            answer = json.loads(connection.getresponse().read())
        return answer["model_version"], answer["outputs"][0]["data"][0]

    def load(self, deployments: Any, name: str) -> Load:
        """Users who ask over and over."""
        port, host = self.door(deployments, name)
        return Load(port, f"/v2/models/{name}/infer", tensor(3), host=host)

    def release(
        self, deployments: Deployments, spec: DeploymentSpec, plan: Plan = WHOLE, *, by: str = "test"
    ) -> Outcome:
        """Release it, to the end."""
        return self.finish(self.begin(deployments, spec, plan, by=by))

    def begin(
        self, deployments: Deployments, spec: DeploymentSpec, plan: Plan, *, by: str, **more: Any
    ) -> ReleaseDriver:
        """Begin a release."""
        return begin(deployments, spec, plan, by=by, **more)

    def finish(self, driver: ReleaseDriver) -> Outcome:
        """Drive a release to its end."""
        return finish(driver)

    def serve(self, deployments: Any, spec: DeploymentSpec) -> DeploymentStatus:
        """Release it, which must do, and wait until users are answered."""
        assert self.release(deployments, spec).ending is Ending.DONE
        status: DeploymentStatus = deployments.deployment(spec.name)
        assert status.champion is not None
        champion = status.champion.name
        eventually(lambda: self.answers(deployments, spec.name) == champion)  # what was written is in force
        return status

    def answers(self, deployments: Any, name: str) -> str | None:
        """Return the revision that answers a user; None where none does yet."""
        try:
            return self.infer(deployments, name, 3)[0]
        except (OSError, http.client.HTTPException):
            return None

    def bring_up(self, deployments: Any, spec: DeploymentSpec, *, by: str = "test") -> Revision:
        """Begin a release and wait until its revision may have traffic."""
        made = deployments.prepare(spec, by=by)
        eventually(lambda: deployments.deployment(spec.name).called(made.name).state in (READY, SERVING))
        return deployments.deployment(spec.name).called(made.name)  # type: ignore[no-any-return]


class DeploymentsContract(Lines):
    """What every platform promises; inherit it as :class:`Lines`."""

    def test_a_version_is_released_and_answers(
        self, deployments: Any, spec: Any, store: Any, name: str
    ) -> None:
        first = spec(2)
        status = self.serve(deployments, first)
        assert status.champion is not None
        assert (status.champion.model, status.champion.percent) == (first.model, 100)
        assert (status.champion.ready, status.champion.wanted, status.champion.restarts) == (1, 1, 0)
        assert (status.shares, status.release) == ({status.champion.name: 100}, None)
        assert self.infer(deployments, name, 3) == (status.champion.name, 6.0)
        assert deployments.names() == [name]
        assert store.resolve(first.model.address)[0].pins == (f"deployment/{name}",)

    def test_a_revision_comes_up_without_traffic_and_is_asked_past_the_route(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        old = self.serve(deployments, spec(2)).champion
        new = self.bring_up(deployments, spec(3))
        status = deployments.deployment(name)
        assert status.shares == {old.name: 100}
        assert (status.release.revision, status.release.champion, status.release.by) == (
            new.name,
            old.name,
            "test",
        )
        for revision, expected in ((old, 4.0), (new, 6.0)):
            (answer,) = deployments.ask(name, revision.name, smoke(of_two=expected)[0])
            assert (answer.outputs["y"], answer.error) == ((expected,), "")
        assert {self.infer(deployments, name, 3)[0] for _ in range(20)} == {old.name}
        assert new.name not in deployments.counts(name) or not deployments.counts(name)[new.name].requests
        (answer,) = deployments.ask(name, new.name, SmokeRequest(name="odd", inputs={"z": (1.0,)}))
        assert (answer.outputs, "input 'z' is unknown" in answer.error) == (None, True)
        with pytest.raises(NotFound, match="r99"):
            deployments.ask(name, "r99", smoke(of_two=1)[0])

    @pytest.mark.nightly_on("slow")
    def test_the_same_one_again_goes_on_and_changes_nothing(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        first = spec(2)
        asker = Origin(instance="i", dag_id="flights", run_id="manual", task_id="deploy", map_index=3)
        made = {deployments.prepare(first, by="test", origin=asker).name for _ in range(3)}
        assert len(made) == 1
        assert deployments.deployment(name).release.origin == asker
        token = deployments.deployment(name).token
        self.serve(deployments, first)
        assert deployments.deployment(name).token != token
        token = deployments.deployment(name).token
        assert deployments.prepare(first, by="another task").name in made
        assert deployments.deployment(name).token == token
        assert len(deployments.deployment(name).revisions) == 1

    def test_users_are_shared_out_and_counted(self, deployments: Any, spec: Any, name: str) -> None:
        old = self.serve(deployments, spec(2)).champion
        new = self.bring_up(deployments, spec(3))
        status = deployments.deployment(name)
        before = deployments.counts(name)[old.name].requests
        shares = {old.name: 70, new.name: 30}
        token = deployments.shift(name, shares, token=status.token, release=status.release)
        assert deployments.deployment(name).token == token != status.token
        assert deployments.deployment(name).shares == shares
        eventually(lambda: self.infer(deployments, name, 3)[0] == new.name)
        answers = Counter(self.infer(deployments, name, 3)[0] for _ in range(400))
        assert 55 < answers[new.name] < 190  # seven standard deviations
        counted = deployments.counts(name)
        assert counted[new.name].requests >= answers[new.name]
        assert counted[old.name].requests - before >= answers[old.name]
        assert (counted[new.name].failed, counted[old.name].failed) == (0, 0)
        assert counted[new.name].seconds[float("inf")] == counted[new.name].requests
        (seen,) = deployments.look_at([name])
        assert (seen.status.shares, dict(seen.counts)) == (shares, dict(counted))

    def test_a_new_version_takes_over_step_by_step_and_the_old_one_is_kept(
        self, deployments: Any, spec: Any, store: Any, name: str
    ) -> None:
        versions = [spec(slope) for slope in (2, 3, 4)]
        first = self.serve(deployments, versions[0]).champion
        seen = []
        driver = self.begin(deployments, versions[1], STEPS, by="test", say=seen.append)
        assert self.finish(driver).ending is Ending.DONE
        assert [line.partition(": ")[2].partition(" ")[0] for line in seen if "traffic" in line] == [
            "20",
            "60",
            "100",
            "all",
        ]
        status = deployments.deployment(name)
        assert (status.champion.name, status.shares) == (driver.revision, {driver.revision: 100})
        assert (status.called(first.name).kept, status.called(first.name).ready) == (True, 1)
        assert self.infer(deployments, name, 3) == (driver.revision, 9.0)
        self.serve(deployments, versions[2])
        status = deployments.deployment(name)
        assert [(one.model, one.state, one.kept) for one in status.revisions] == [
            (versions[2].model, SERVING, False),
            (versions[1].model, READY, True),
            (versions[0].model, RETIRED, False),
        ]
        eventually(lambda: store.resolve(versions[0].model.address)[0].pins == ())
        for kept in versions[1:]:
            assert store.resolve(kept.model.address)[0].pins == (f"deployment/{name}",)

    def test_what_was_kept_is_back_at_once_and_what_was_rolled_back_is_gone(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        old, new = spec(2), spec(3)
        first = self.serve(deployments, old).champion
        self.serve(deployments, new)
        assert roll_back(deployments, name, by="ann", reason="wrong") == first.name
        promptly(lambda: self.infer(deployments, name, 3) == (first.name, 6.0), seconds=2)
        status = deployments.deployment(name)
        assert (status.shares, status.release) == ({first.name: 100}, None)
        assert (status.revisions[0].state, status.revisions[0].reason) == (
            REFUSED,
            "rolled back by ann: wrong",
        )
        with pytest.raises(NotFound, match="keeps no revision"):
            roll_back(deployments, name, by="ann")
        again = self.serve(deployments, new)
        assert again.champion is not None
        assert again.champion.name not in {one.name for one in status.revisions}  # a name is given once

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_a_kept_revision_is_promoted_without_a_start(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        first = self.serve(deployments, spec(2)).champion
        second = self.serve(deployments, spec(3)).champion
        promote(deployments, name, first.name, by="ann")
        promptly(lambda: self.infer(deployments, name, 3) == (first.name, 6.0), seconds=2)
        status = deployments.deployment(name)
        assert status.called(second.name).kept
        assert [one.restarts for one in status.revisions] == [0, 0]
        assert tidy(deployments, name) == ()

    def test_what_answers_the_smoke_test_wrongly_is_refused(
        self, deployments: Any, spec: Any, store: Any, name: str
    ) -> None:
        good, bad = spec(2), spec(3, of_two=4)
        first = self.serve(deployments, good).champion
        outcome = self.release(deployments, bad, STEPS)
        assert outcome.ending is Ending.ROLLED_BACK
        assert outcome.reason == "smoke request 'two': output 'y' is 6.0, expected min 4 and max 4"
        status = deployments.deployment(name)
        assert (status.champion.name, status.shares, status.release) == (first.name, {first.name: 100}, None)
        assert (status.revisions[0].state, status.revisions[0].reason) == (REFUSED, outcome.reason)
        assert self.infer(deployments, name, 3) == (first.name, 6.0)
        eventually(lambda: store.resolve(bad.model.address)[0].pins == ())
        assert store.resolve(good.model.address)[0].pins == (f"deployment/{name}",)

    def test_a_first_version_that_is_refused_leaves_nothing_that_answers(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        assert self.release(deployments, spec(3, of_two=4)).ending is Ending.ROLLED_BACK
        status = deployments.deployment(name)
        assert (status.champion, status.ready, status.release) == (None, False, None)
        assert "@1 was refused: smoke request 'two'" in status.reason
        with pytest.raises((OSError, KeyError)):
            self.infer(deployments, name, 2)

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_a_refused_version_may_be_tried_again(self, deployments: Any, spec: Any, name: str) -> None:
        bad = spec(3, of_two=4)
        self.release(deployments, bad)
        self.serve(deployments, replace(bad, smoke=smoke(of_two=6)))
        assert [one.state for one in deployments.deployment(name).revisions] == [SERVING, REFUSED]

    @pytest.mark.nightly_on("cluster")  # the next two break a rule, too
    def test_the_rule_that_a_share_breaks_gives_the_traffic_back(
        self, deployments: Any, spec: Any, name: str, volume: str, store: Any, tmp_path: Path
    ) -> None:
        """It answers the smoke test, and not what users ask."""
        good = self.serve(deployments, spec(2)).champion
        narrow = onnx_graph.write_line(tmp_path / "line", slope=3000.0)
        picky = spec(0, model=store.add(volume, narrow).pinned, smoke=())
        plan = Plan(steps=(50, 100), hold_seconds=(30.0,), rules=replace(STEADY, fewest_requests=20))
        with self.load(deployments, name) as load:
            driver = self.begin(deployments, picky, plan, by="test")
            outcome = self.finish(driver)
            eventually(lambda: load.answers[f"revision {good.name}"] > 500)
            sent = dict(load.failed)
            eventually(lambda: load.sent > sum(sent.values()) + 500)
            assert load.failed == sent  # it gets no more requests
        assert outcome.ending is Ending.ROLLED_BACK
        assert "requests failed, above the 1.00% that are allowed" in outcome.reason
        assert set(load.failed) <= {what for what in load.failed if what.startswith("HTTP 500")}
        assert deployments.deployment(name).shares == {good.name: 100}

    @pytest.mark.data
    def test_a_version_that_refuses_what_users_ask_gives_the_traffic_back(
        self, deployments: Any, spec: Any, name: str, volume: str, store: Any, tmp_path: Path
    ) -> None:
        old = spec(2)
        good = self.serve(deployments, old).champion
        signature = json.loads((store.path(old.model.address) / "signature.json").read_text())
        signature["inputs"][0]["max"] = 2.5  # and users ask for 3
        narrow = tmp_path / "narrow"
        shutil.copytree(
            store.path(old.model.address), narrow, ignore=shutil.ignore_patterns("signature.json")
        )
        narrow.chmod(0o755)
        (narrow / "signature.json").write_text(json.dumps(signature))
        picky = spec(2, model=store.add(volume, narrow).pinned)
        rules = replace(STEADY, fewest_requests=20, max_refused_share=0.02)
        with self.load(deployments, name):
            outcome = self.release(
                deployments, picky, Plan(steps=(50, 100), hold_seconds=(30.0,), rules=rules)
            )
        assert outcome.ending is Ending.ROLLED_BACK
        assert "requests were refused, above the 2.00% that are allowed" in outcome.reason
        assert deployments.deployment(name).shares == {good.name: 100}

    @pytest.mark.data
    def test_a_version_that_was_trained_on_other_rows_gives_the_traffic_back(
        self, deployments: Any, spec: Any, name: str, volume: str, store: Any, tmp_path: Path
    ) -> None:
        old = spec(2)
        good = self.serve(deployments, old).champion
        strange = tmp_path / "strange"
        shutil.copytree(store.path(old.model.address), strange)
        strange.chmod(0o755)
        bins = {"x": {"edges": [2.5], "counts": [900, 100]}}  # and users ask for 3
        (strange / "histograms.json").write_text(json.dumps({"format": 1, "inputs": bins}))
        plan = Plan(
            steps=(50, 100), hold_seconds=(30.0,), rules=replace(STEADY, fewest_requests=20, max_psi=0.2)
        )
        with pytest.raises(SpecError, match=r"has no histograms\.json"):
            self.begin(deployments, spec(3), plan, by="a task")
        with self.load(deployments, name):
            outcome = self.release(deployments, spec(2, model=store.add(volume, strange).pinned), plan)
        assert outcome.ending is Ending.ROLLED_BACK
        assert "input 'x' has drifted from the training rows" in outcome.reason
        assert "'above 2.5' has 100% of the requests and 10% of the training rows" in outcome.reason
        assert deployments.deployment(name).shares == {good.name: 100}

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_what_was_decided_on_another_route_is_not_begun(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        token = self.serve(deployments, spec(2)).token
        begun = deployments.prepare(spec(3), by="test", token=token)
        with pytest.raises(Conflict, match="another writer changed"):
            deployments.prepare(spec(4), by="other", token=token)
        assert deployments.deployment(name).release.revision == begun.name

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_a_shift_that_must_not_be_changes_nothing(self, deployments: Any, spec: Any, name: str) -> None:
        old = self.serve(deployments, spec(2)).champion
        begun = deployments.prepare(spec(3), by="test")
        status = deployments.deployment(name)
        wrong: list[tuple[type[Exception], dict[str, int], str]] = [
            (Conflict, {old.name: 100}, "stale"),
            (NotFound, {old.name: 50, "r99": 50}, status.token),
            (SpecError, {old.name: 50}, status.token),
        ]
        if not status.called(begun.name).ready:  # else it was too quick
            wrong.insert(0, (DeploymentError, {old.name: 50, begun.name: 50}, status.token))
        for error, shares, token in wrong:
            with pytest.raises(error):
                deployments.shift(name, shares, token=token, release=None)
            after = deployments.deployment(name)
            assert (after.shares, after.token, after.release) == (
                {old.name: 100},
                status.token,
                status.release,
            )

    @pytest.mark.nightly_on("slow")
    def test_of_two_that_write_on_the_same_look_one_wins(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        old = self.serve(deployments, spec(2)).champion
        new = self.bring_up(deployments, spec(3))
        status = deployments.deployment(name)

        def write(percent: int) -> bool:
            shares = {old.name: 100 - percent, new.name: percent}
            try:
                deployments.shift(name, shares, token=status.token, release=status.release)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(write, (10, 20, 30, 40)))
        assert won.count(True) == 1
        assert deployments.deployment(name).called(new.name).percent == (won.index(True) + 1) * 10

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_what_has_traffic_or_is_under_way_is_not_withdrawn(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        old = self.serve(deployments, spec(2)).champion
        new = self.bring_up(deployments, spec(3))
        for one in (old, new):
            with pytest.raises(Conflict, match=one.name):
                deployments.withdraw(name, one.name, state=RETIRED, reason="by hand")
        with pytest.raises(NotFound):
            deployments.withdraw(name, "r99", state=RETIRED, reason="by hand")
        status = deployments.deployment(name)
        deployments.shift(name, status.shares, token=status.token, release=None)
        for _ in range(2):
            deployments.withdraw(name, new.name, state=RETIRED, reason="by hand")
        found = deployments.deployment(name).called(new.name)
        assert (found.state, found.reason, found.ready) == (RETIRED, "by hand", 0)
        assert self.infer(deployments, name, 3) == (old.name, 6.0)

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_a_release_is_superseded_and_its_champion_has_everything_first(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        old, second, third = spec(2), spec(3), spec(4)
        champion = self.serve(deployments, old).champion
        one = self.begin(deployments, second, replace(STEPS, hold_seconds=(600.0,)), by="one")
        eventually(lambda: not one.step() and deployments.deployment(name).called(one.revision).percent)
        other = self.begin(deployments, third, STEPS, by="other")
        status = deployments.deployment(name)
        assert (status.shares, status.release.champion) == ({champion.name: 100}, champion.name)
        outcome = self.finish(one)
        assert outcome.ending is Ending.SUPERSEDED
        assert outcome.reason == f"superseded by {other.revision}, which other asked for"
        assert self.finish(other).ending is Ending.DONE
        assert self.infer(deployments, name, 3) == (other.revision, 12.0)
        assert deployments.deployment(name).called(one.revision).state is RETIRED

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_going_back_is_a_release_like_any_other(self, deployments: Any, spec: Any, name: str) -> None:
        old, new = spec(2), spec(3)
        for one in (old, new, old):
            self.serve(deployments, one)
        eventually(lambda: self.infer(deployments, name, 3)[1] == 6.0)

    @pytest.mark.nightly_on("cluster")
    @pytest.mark.nightly_on("slow")
    def test_an_older_version_does_not_take_over_from_what_serves_or_will(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        old, new = spec(2), spec(3)
        deployments.prepare(new, by="test", allow_older=False)
        with pytest.raises(Behind, match=r"@1 would take .* back in time: @2 serves soon"):
            deployments.prepare(old, by="other", allow_older=False)
        self.serve(deployments, new)
        with pytest.raises(Behind, match=r"@2 serves$"):
            deployments.prepare(old, by="other", allow_older=False)
        assert [one.model for one in deployments.deployment(name).revisions] == [new.model]
        deployments.prepare(new, by="other", allow_older=False)

    @pytest.mark.nightly_on("slow")
    def test_of_several_that_are_released_at_once_the_newest_serves(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        several = [spec(slope) for slope in (2, 3, 4, 5)]

        def release(one: DeploymentSpec) -> Outcome | None:
            try:
                return self.finish(
                    self.begin(deployments, one, Plan(), by=one.model.address, allow_older=False)
                )
            except Behind:
                return None

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(release, several))
        assert outcomes[-1] is not None
        assert outcomes[-1].ending is Ending.DONE
        assert deployments.deployment(name).champion.model == several[-1].model

    @pytest.mark.parametrize("requests", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
    def test_no_request_fails_over_a_series_of_releases(
        self, deployments: Any, spec: Any, name: str, requests: int
    ) -> None:
        first, second, bad = spec(2), spec(3), spec(4, of_two=0)
        names = [self.serve(deployments, first).champion.name]  # type: ignore[union-attr]
        with self.load(deployments, name) as load:
            eventually(lambda: load.sent > requests / 10)
            driver = self.begin(deployments, second, STEPS, by="test")
            assert self.finish(driver).ending is Ending.DONE
            assert self.release(deployments, bad).ending is Ending.ROLLED_BACK
            roll_back(deployments, name, by="test")
            sent = load.sent
            eventually(lambda: load.sent > max(requests, sent + requests / 10))
        assert load.failed == {}
        assert set(load.answers) == {f"revision {one}" for one in (*names, driver.revision)}

    def test_what_cannot_be_deployed_is_refused_at_once(
        self, deployments: Any, spec: Any, volume: str
    ) -> None:
        good = spec(2)
        other = "b3:" + "0" * 64
        wrong = [
            (replace(good, server="triton"), SpecError, "server 'triton'"),
            (replace(good, image_digest=other), NotFound, "no code snapshot"),
            (replace(good, model=replace(good.model, digest=other)), SpecError, "written for another store"),
            (replace(good, model=replace(good.model, address=f"volume://{volume}@99")), NotFound, "99"),
            (
                replace(good, smoke=(SmokeRequest(name="endless", inputs={"x": (float("inf"),)}),)),
                SpecError,
                "inf is not a finite number",
            ),
        ]
        for one, kind, words in wrong:
            with pytest.raises(kind, match=words):
                deployments.prepare(one, by="test")
        assert deployments.names() == []

    @pytest.mark.parametrize("hostile", ["..", "a/b", "a\nb", "x" * 300, "", ".locks"])
    def test_a_hostile_name_is_refused(self, deployments: Any, hostile: str) -> None:
        for act in (deployments.deployment, deployments.retire):
            with pytest.raises(SpecError, match="deployment"):
                act(hostile)

    def lose(self, deployments: Any, name: str) -> None:
        """Take away what runs of a deployment, as others than muster do."""
        raise NotImplementedError

    def test_what_others_take_away_is_brought_back_unless_that_is_paused(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        """A look leaves alone what is as muster left it; and a pause is told, and lasts until it is ended."""
        serving = self.serve(deployments, spec(2)).champion.name
        kept = Keeping(deployments)
        token = deployments.deployment(name).token
        for _ in range(2):
            kept.look()
        assert deployments.deployment(name).token == token
        deployments.pause(name, "ann tries something")
        self.lose(deployments, name)
        for _ in range(3):
            kept.look()
        status = deployments.deployment(name)
        assert (status.paused, bool(status.drift)) == ("ann tries something", True)
        deployments.pause(name, "")
        assert deployments.deployment(name).paused == ""

        def back() -> bool:
            kept.look()
            return bool(deployments.deployment(name).ready and not deployments.deployment(name).drift)

        eventually(back)
        assert eventually(lambda: self.answers(deployments, name)) == serving

    def test_one_that_was_written_down_is_made_again(
        self, deployments: Any, spec: Any, store: Any, name: str
    ) -> None:
        self.serve(deployments, spec(2))
        served = self.serve(deployments, spec(3)).champion
        text = dumps(SavedDeployments(deployments=(deployments.saved(name),)))
        (saved,) = loads(SavedDeployments, text).deployments
        with pytest.raises(Conflict, match="is there, and is left as it is"):
            deployments.make_again(saved)

        deployments.retire(name)
        deployments.make_again(saved)

        def repaired() -> bool:
            deployments.repair(name)
            return bool(deployments.deployment(name).ready)

        eventually(repaired)
        again = deployments.deployment(name)
        assert [(one.name, one.percent) for one in again.revisions] == [("r2", 100), ("r1", 0)]
        eventually(lambda: self.answers(deployments, name) == "r2")
        assert self.infer(deployments, name, 2)[1] == 6
        assert store.resolve(served.model.address)[0].pins == (f"deployment/{name}",)
        assert self.serve(deployments, spec(4)).champion.name == "r3"

    def test_one_whose_version_is_not_there_is_not_made_again(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.serve(deployments, spec(2))
        saved = deployments.saved(name)
        deployments.retire(name)
        (entry,) = saved.book.live
        other = replace(entry.spec.model, address="volume://nothing/here@1")
        book = replace(saved.book, live=(replace(entry, spec=replace(entry.spec, model=other)),))
        with pytest.raises(NotFound, match="nothing/here"):
            deployments.make_again(replace(saved, book=book))
        gone = "b3:" + "9" * 64
        book = replace(saved.book, live=(replace(entry, spec=replace(entry.spec, image_digest=gone)),))
        with pytest.raises(NotFound, match=f"no code snapshot {gone}"):
            deployments.make_again(replace(saved, book=book))
        with pytest.raises(SpecError, match="in sum 100"):
            deployments.make_again(replace(saved, book=replace(saved.book, shares={"r1": 90})))
        assert name not in deployments.names()

    def test_retire_takes_it_away(self, deployments: Any, spec: Any, store: Any, name: str) -> None:
        first, second = spec(2), spec(3)
        self.serve(deployments, first)
        self.serve(deployments, second)
        deployments.retire(name)
        deployments.retire(name)
        assert (deployments.names(), deployments.look_at(), deployments.look_at([name])) == ([], [], [])
        for one in (first, second):
            assert store.resolve(one.model.address)[0].pins == ()
        for act in (
            lambda: deployments.deployment(name),
            lambda: deployments.counts(name),
            lambda: deployments.shift(name, {}, token="", release=None),
            lambda: deployments.withdraw(name, "r1", state=RETIRED, reason=""),
        ):
            with pytest.raises(NotFound, match=r"no deployment"):
                act()
        self.serve(deployments, first)
        assert self.infer(deployments, name, 3)[1] == 6.0


class OnThisMachine(Lines):
    """Keepers and model servers as processes of this machine."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(home=tmp_path / "home", cache=Settings.load().cache)

    @pytest.fixture
    def store(self, settings: Settings) -> FolderStore:
        return FolderStore(settings.store)

    @pytest.fixture
    def image(self, store: FolderStore) -> str:
        return put_image(store, shipped("images") / self.server)

    @pytest.fixture
    def deployments(self, settings: Settings, store: FolderStore, name: str) -> Iterator[Deployments]:
        deployments = local_deployments(settings, store)
        yield deployments
        for one in deployments.names():
            deployments.retire(one)
        eventually(lambda: not running(name))


class TestLocalDeployments(OnThisMachine, DeploymentsContract):
    """One machine keeps it; what it promises beside it is in test_keepers.py."""

    def lose(self, deployments: Any, name: str) -> None:
        def killed() -> bool:
            left = running(name)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        eventually(killed)


def running(name: str) -> list[int]:
    """Return the processes that were started for a deployment."""
    return [pid for pid, words in commands() if name.encode() in words]


def servers(name: str) -> list[int]:
    """Return the model servers of a deployment."""
    return [pid for pid, words in commands() if name.encode() in words and b"muster_serving" in words]


def commands() -> Iterator[tuple[int, list[bytes]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue

"""Submitting, cut off at every request, done twice, and by two at once: one job, whole or not there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import Cut, World, at_request, die, world

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import JOB_SET
from muster.core.errors import CannotSchedule, Forbidden, ImageError, NotFound, SpecError, Unreachable
from muster.core.job import Interpreter, Role, SecretRef
from muster.core.resources import Resources
from muster.core.status import JobState
from muster.core.verdict import Cause

# What a submission sends after its first look at the cluster, which only reads.
STEPS = 15


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as found:
        yield found


def check_whole(there: World, job_id: str) -> None:
    """Its objects are those of one gang, of the attempt that counts, and its pods get what they need."""
    (root,), secret = there.roots(job_id), there.secret(job_id)
    attempt, _ = there.service.client().attempt(job_id)
    assert root["metadata"]["labels"][labels.ATTEMPT] == str(attempt)
    assert secret is not None
    assert secret["metadata"]["ownerReferences"][0]["uid"] == root["metadata"]["uid"]
    assert there.ask_for_bundle(job_id).status_code == 200


def check_nothing_runs(there: World, job_id: str) -> None:
    """There is no pod that could start: each waits for the Secret, which is made last."""
    assert there.secret(job_id) is None or len(there.roots(job_id)) == 1


class TestSubmit:
    def test_makes_one_gang_with_its_secret(self, there: World) -> None:
        backend, job = there.backend(), there.job()
        backend.submit(job, job_id="whole", owner="ti-1")
        check_whole(there, "whole")
        assert backend.status("whole").owner == "ti-1"
        backend.submit(job, job_id="whole")
        assert len(there.roots("whole")) == 1

    def test_sends_as_many_requests_as_are_cut_below(
        self, there: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = there.backend()
        backend.runner.check(there.job(max_restarts=7))  # so that the cluster is known
        with at_request(monkeypatch, 0, die, after=False) as sent:
            backend.submit(there.job(), job_id="counted")
        assert len(sent) == STEPS, sent

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("step", range(1, STEPS + 1))
    def test_killed_at_any_request_it_is_done_by_the_next(
        self, there: World, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
    ) -> None:
        job_id, job, backend = f"cut-{step}-{after:d}", there.job(), there.backend()
        backend.runner.check(there.job(max_restarts=7))
        with at_request(monkeypatch, step, die, after=after), pytest.raises(Cut):
            backend.submit(job, job_id=job_id)
        check_nothing_runs(there, job_id)
        there.backend("second").submit(job, job_id=job_id)
        check_whole(there, job_id)
        assert there.backend().status(job_id).state is JobState.QUEUED

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("step", range(1, STEPS + 1))
    def test_another_who_submits_it_in_between_makes_the_same_job(
        self, there: World, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
    ) -> None:
        job_id, job, backend = f"twice-{step}-{after:d}", there.job(), there.backend()
        backend.runner.check(there.job(max_restarts=7))

        def also() -> None:
            there.backend("second").submit(job, job_id=job_id)
            assert there.ask_for_bundle(job_id).status_code == 200  # its first pod runs already

        with at_request(monkeypatch, step, also, after=after):
            backend.submit(job, job_id=job_id)
        (root,) = there.roots(job_id)
        assert root["metadata"]["labels"][labels.ATTEMPT] == "1"
        assert there.ask_for_bundle(job_id, index=1).status_code == 200

    @pytest.mark.parametrize("step", range(5, STEPS + 1))
    def test_cancelled_in_between_it_leaves_nothing(
        self, there: World, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        job_id, job, backend = f"gone-{step}", there.job(), there.backend()
        backend.runner.check(there.job(max_restarts=7))

        def cancel() -> None:
            try:
                there.backend("second").cancel(job_id)
            except NotFound:  # it is not in the ledger yet
                there.backend("second").submit(job, job_id=job_id)
                there.backend("second").cancel(job_id)

        with at_request(monkeypatch, step, cancel, after=False):
            backend.submit(job, job_id=job_id)
        assert there.backend().status(job_id).state is JobState.CANCELLED
        assert not there.roots(job_id)
        assert there.secret(job_id) is None

    def test_eight_at_once(self, there: World) -> None:
        job, failed = there.job(), []

        def submit() -> None:
            try:
                there.backend().submit(job, job_id="eight")
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        check_whole(there, "eight")
        assert there.cluster.made.count("JobSet eight") == 1

    def test_a_gang_whose_objects_were_deleted_before_a_pod_ran_is_made_again(self, there: World) -> None:
        there.backend().submit(there.job(), job_id="again")
        there.cluster.remove(there.roots("again")[0], JOB_SET)
        lost = there.backend().status("again")
        assert (lost.alive, lost.state) == (False, JobState.QUEUED)
        assert "submit it again" in lost.reason
        there.backend().submit(there.job(), job_id="again")
        check_whole(there, "again")

    def test_what_is_left_of_objects_that_were_deleted_is_in_nobodys_way(self, there: World) -> None:
        there.backend().submit(there.job(), job_id="slowly")
        there.cluster.collects = False
        there.cluster.remove(there.roots("slowly")[0], JOB_SET)
        there.backend().submit(there.job(), job_id="slowly")
        there.cluster.collects = True
        there.cluster.collect()
        check_whole(there, "slowly")

    @pytest.mark.parametrize("runs", [False, True], ids=["waits", "runs"])
    def test_one_that_is_whole_is_left_as_it_is_whatever_is_missing_here(
        self, there: World, monkeypatch: pytest.MonkeyPatch, runs: bool
    ) -> None:
        monkeypatch.setenv("PASSWORD_HERE", "sesame")
        secret = {"PASSWORD": SecretRef(source="environment", name="PASSWORD_HERE")}
        job, job_id = there.job(secrets=secret, queue="team-b"), f"left-{runs:d}"
        there.backend().submit(job, job_id=job_id)
        if runs:
            assert there.ask_for_bundle(job_id).status_code == 200
        made = list(there.cluster.made)
        monkeypatch.delenv("PASSWORD_HERE")
        queue = there.cluster.objects.pop(("localqueues", "team-b"))
        there.backend("second").submit(job, job_id=job_id)
        there.cluster.put(queue)
        assert there.cluster.made == made
        check_whole(there, job_id)

    def test_one_of_an_attempt_that_is_over_is_replaced(self, there: World) -> None:
        there.backend().submit(there.job(), job_id="fenced")
        assert there.ask_for_bundle("fenced").status_code == 200
        (before,) = there.roots("fenced")
        there.service.client().begin("fenced", after=1)
        there.backend().submit(there.job(), job_id="fenced")
        check_whole(there, "fenced")
        assert there.roots("fenced")[0]["metadata"]["uid"] != before["metadata"]["uid"]

    def test_one_that_the_cluster_has_started_again_is_left_as_it_is(self, there: World) -> None:
        there.backend().submit(there.job(), job_id="restarted")
        for restart in ("0", "1"):
            assert there.ask_for_bundle("restarted", restart=restart).status_code == 200
        made, (before,) = list(there.cluster.made), there.roots("restarted")
        there.backend().submit(there.job(), job_id="restarted")
        assert there.cluster.made == made
        assert there.roots("restarted") == [before]

    def test_a_root_that_is_not_ours_is_left_alone(self, there: World) -> None:
        there.cluster.put(
            {
                "apiVersion": JOB_SET.api_version,
                "kind": "JobSet",
                "metadata": {"name": "strange", "namespace": "muster-jobs", "labels": {labels.JOB: "other"}},
                "spec": {},
            }
        )
        with pytest.raises(Exception, match="is not of job strange, and stands in its way"):
            there.backend().submit(there.job(), job_id="strange")


class TestRefusals:
    """Each at once, and nothing of the job is anywhere."""

    @pytest.fixture
    def refused(self, there: World) -> Iterator[Callable[..., None]]:
        def submit(error: type[Exception], match: str, **changes: object) -> None:
            made = list(there.cluster.made)
            with pytest.raises(error, match=match):
                there.backend().submit(there.job(**changes), job_id="refused")
            with pytest.raises(NotFound):
                there.backend().status("refused")
            assert there.cluster.made == made

        yield submit
        there.cluster.forbidden.clear()
        there.cluster.away = False

    def test_no_rights(self, there: World, refused: Callable[..., None]) -> None:
        there.cluster.forbidden.add(("create", "jobsets"))
        refused(Forbidden, 'resources: \\["jobsets"\\], verbs: \\["create"\\]')

    def test_no_rights_to_make_the_secret(self, there: World, refused: Callable[..., None]) -> None:
        there.cluster.forbidden.add(("create", "secrets"))
        refused(Forbidden, 'resources: \\["secrets"\\], verbs: \\["create"\\]')

    def test_an_api_server_that_is_away(self, there: World, refused: Callable[..., None]) -> None:
        there.cluster.away = True
        with pytest.raises(Unreachable, match=r"does not answer"):
            there.backend().submit(there.job(), job_id="refused")
        there.cluster.away = False
        with pytest.raises(NotFound):
            there.backend().status("refused")

    def test_an_unknown_queue(self, refused: Callable[..., None]) -> None:
        refused(SpecError, "has no queue team-z; there are team-a, team-b", queue="team-z")

    def test_an_image_without_its_lock(self, refused: Callable[..., None]) -> None:
        refused(ImageError, "its lock b3:000", image_digest="b3:" + "0" * 64)

    def test_an_interpreter_of_one_machine(self, refused: Callable[..., None]) -> None:
        interpreter = Interpreter(path="/opt/python", version="3.11.7", digest="b3:" + "1" * 64)
        refused(CannotSchedule, "is to run with /opt/python, and in a cluster", interpreter=interpreter)

    def test_more_than_the_nodes_hold(self, refused: Callable[..., None]) -> None:
        role = Role(replicas=9, command=("true",), resources=Resources(memory_gib=20))
        refused(CannotSchedule, "9 replicas of .* have room for 4 even when they are empty", roles=(role,))

    def test_a_secret_that_is_not_here(self, refused: Callable[..., None]) -> None:
        secret = {"TOKEN": SecretRef(source="environment", name="NO_SUCH")}
        refused(SpecError, "no environment variable 'NO_SUCH'", secrets=secret)

    def test_an_override_that_reaches_for_the_store(self, refused: Callable[..., None]) -> None:
        volume = {"name": "mine", "persistentVolumeClaim": {"claimName": "muster-store"}}
        refused(SpecError, "muster-store", pod_override={"spec": {"volumes": [volume]}})


def test_what_is_unknown_and_may_have_been_made_meanwhile_is_looked_up_again(there: World) -> None:
    backend = there.backend()
    backend.runner.check(there.job())
    (queue,) = [
        each
        for (_, name), each in there.cluster.objects.items()
        if name == "team-b" and each["kind"] == "LocalQueue"
    ]
    there.cluster.put({**queue, "metadata": {"name": "team-new", "namespace": "muster-jobs"}})
    backend.runner.check(there.job(queue="team-new"))


def test_a_job_that_has_ended_is_not_made_again(there: World) -> None:
    backend = there.backend()
    backend.submit(there.job(), job_id="ended")
    backend.cancel("ended")
    made = list(there.cluster.made)
    backend.submit(there.job(), job_id="ended")
    assert there.cluster.made == made
    verdict = backend.status("ended").verdict
    assert verdict is not None
    assert verdict.cause is Cause.CANCELLED

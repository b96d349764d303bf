"""A gang whose replicas end: what the store service answers them, and that it does so once, whatever is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.core.errors import Conflict
from muster.core.job import JobSpec, Role
from muster.core.replica import Going, Gone, Outlook, Report
from muster.core.status import JobState
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps, loads
from muster.volumes import attempts, handing_over
from muster.volumes.service import pods as calls, regrouping
from muster.volumes.service.hearing import Bell, Bells

LOST = Report(
    exit_code=ExitCode.RANK_LOST,
    verdict=Verdict(cause=Cause.RANK_LOST, message="killed by SIGKILL", advice="a", rank=1),
    at=5.0,
)
STOPPED = Report(
    exit_code=ExitCode.STOPPED,
    verdict=Verdict(cause=Cause.CANCELLED, message="told to stop", advice="a"),
    at=4.0,
)


class Killed(Exception):
    """The service ends here, as far as one request is concerned."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with Inside(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def begun(service: Inside, request: pytest.FixtureRequest) -> Iterator[Callable[..., Gang]]:
    """Start a gang whose pods all run."""
    made: list[Gang] = []

    def begin(*, replicas: int = 2, max_restarts: int = 3) -> Gang:
        spec: JobSpec = replace(make_spec(replicas=replicas), max_restarts=max_restarts)
        name = f"r-{abs(hash((request.node.name, len(made)))) % 10**8}"
        gang = Gang(service, name, spec)
        made.append(gang)
        for index in range(replicas):
            gang.bundle(index).raise_for_status()
        (gang.root() / "checkpoints" / "step").write_bytes(b"weights")
        return gang

    yield begin
    for gang in made:
        gang.pods.close()


def gone(
    gang: Gang, index: int, report: Report = LOST, *, stays: bool = True, attempt: int | None = None
) -> Outlook:
    said = dumps(Gone(report=report, stays=stays)).encode()
    answer = gang.pods.put(f"{gang.path(index, attempt=attempt)}/gone", content=said)
    answer.raise_for_status()
    return loads(Outlook, answer.content)


def outlook(gang: Gang, index: int = 0, *, known: str = "", attempt: int | None = None) -> Outlook:
    query = urlencode({"known": known})
    answer = gang.pods.get(f"{gang.path(index, attempt=attempt)}/outlook?{query}", timeout=GUARD_SECONDS)
    answer.raise_for_status()
    return loads(Outlook, answer.content)


def folder(gang: Gang) -> Path:
    return gang.service.claim / "staging" / gang.job_id


def test_a_gang_starts_again_once_all_of_it_is_gone(begun: Callable[..., Gang]) -> None:
    gang = begun()
    number = (gang.root() / "checkpoints").stat().st_ino
    assert outlook(gang).going is Going.RUNS
    assert gone(gang, 1).going is Going.STOPS
    assert outlook(gang).going is Going.STOPS
    again = Outlook(going=Going.AGAIN, attempt=2)
    assert gone(gang, 0, STOPPED) == again
    for _ in range(2):  # every request may be sent again
        assert gone(gang, 0, STOPPED) == outlook(gang, 1, known="stops", attempt=1) == again
    with gang.service.client() as store:
        status = store.ledger.status(gang.job_id)
        log, _ = store.ledger.read(gang.job_id)
    assert (status.state, status.restarts) == (JobState.RUNNING, 1)
    assert (
        log
        == b"[muster] rank lost, rank 1: killed by SIGKILL; the whole gang starts again from its checkpoint\n"
    )
    assert (folder(gang) / "2" / "checkpoints").stat().st_ino == number
    assert gang.root().resolve() == folder(gang) / "2"
    late = gang.pods.post(f"{gang.path(attempt=1)}/lines", params={"offset": 0}, content=b"late\n")
    assert late.status_code == 409
    gang.attempt = 2
    assert gang.lines(b"new\n") == 4


def test_a_gang_that_is_to_go_on_with_fewer_stops_and_its_checkpoints_are_handed_on(service: Inside) -> None:
    role = Role(replicas=3, least_replicas=1, entrypoint="etl:features")
    gang = Gang(service, "elastic", replace(make_spec(), roles=(role,)))
    for index in range(3):
        gang.bundle(index).raise_for_status()
    (gang.root() / "checkpoints" / "step").write_bytes(b"weights")
    number = (gang.root() / "checkpoints").stat().st_ino
    with gang, service.client() as store:
        assert store.size("elastic") == 3
        assert store.stop("elastic", attempt=1) is False
        assert outlook(gang).going is Going.STOPS
        for index, report in enumerate((STOPPED, LOST, STOPPED)):  # one whose peer was told first
            assert gone(gang, index, report).going is Going.STOPS
        assert store.stop("elastic", attempt=1) is True
        assert outlook(gang).going is Going.STOPS, "its pods wait until they are deleted"
        for _ in range(2):  # every call may be repeated
            assert store.begin("elastic", after=1, replicas=2) == 2
        with pytest.raises(Conflict, match="attempt 1 is fenced"):
            store.stop("elastic", attempt=1)
        assert store.size("elastic") == 2
        assert (folder(gang) / "2" / "checkpoints").stat().st_ino == number
        assert store.ledger.status("elastic").restarts == 0
        gang.submitted = gang.attempt = 2
        token = store.token("elastic", attempt=2, lifetime_seconds=600)
    gang.pods = service.asking(token)
    with gang:
        for index in range(2):
            gang.bundle(index).raise_for_status()
        gone(gang, 0)
        assert gone(gang, 1, STOPPED) == Outlook(going=Going.AGAIN, attempt=3), "two are the whole gang now"
        with service.client() as store:
            assert store.size("elastic") == 2, "a start in the same pods has as many"
            assert store.ledger.status("elastic").restarts == 1


def test_a_gang_whose_other_size_nobody_begins_goes_on_as_it_was_and_that_is_no_restart(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for it is killed, or was a command that looked once."""
    monkeypatch.setattr(regrouping, "ASKER_SECONDS", 1.5)
    gang = begun(max_restarts=1)
    number = (gang.root() / "checkpoints").stat().st_ino
    with gang.service.client() as store:
        for attempt in (1, 2):
            assert store.stop(gang.job_id, attempt=attempt) is False
            assert gone(gang, 0, STOPPED, attempt=attempt).going is Going.STOPS
            gone(gang, 1, LOST, attempt=attempt)  # its peer was told first
            again = Outlook(going=Going.AGAIN, attempt=attempt + 1)
            for _ in range(2):  # every request may be sent again
                assert outlook(gang, 0, known="stops", attempt=attempt) == again
        status = store.ledger.status(gang.job_id)
        assert (status.state, status.restarts) == (JobState.RUNNING, 0)
        assert (
            store.ledger.read(gang.job_id)[0].count(b"goes on from its checkpoint with as many as before")
            == 2
        )
        assert (folder(gang) / "3" / "checkpoints").stat().st_ino == number
        assert gang.root().resolve() == folder(gang) / "3"
        assert gang.bundle(0).headers["muster-attempt"] == "3"
        gone(gang, 0, attempt=3)
        assert gone(gang, 1, STOPPED, attempt=3) == Outlook(going=Going.AGAIN, attempt=4)
        assert store.ledger.status(gang.job_id).restarts == 1, "one rank was lost"
        gone(gang, 0, attempt=4)
        assert gone(gang, 1, STOPPED, attempt=4).given_up


def test_an_attempt_that_is_only_begun_now_is_not_taken_for_the_one_before_when_it_is_to_stop(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = begun()
    gone(gang, 0)
    with monkeypatch.context() as patched:
        patched.setattr(regrouping.GangStarts, "begin_again", raising)
        said = dumps(Gone(report=STOPPED, stays=True)).encode()
        assert not gang.pods.put(f"{gang.path(1)}/gone", content=said).is_success
    with gang.service.client() as store:
        assert store.stop(gang.job_id, attempt=2) is False, "nothing is known of its processes"
        assert gone(gang, 1, STOPPED, attempt=1) == Outlook(going=Going.AGAIN, attempt=2)
        assert outlook(gang, attempt=2).going is Going.RUNS


def raising(*_: object) -> None:
    raise Killed


@pytest.mark.slow
def test_who_waits_is_told_at_once_and_holds_no_thread(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 80  # more than the service has threads for such calls
    gang, other = begun(replicas=many), begun()
    hung: list[str] = []
    hang = Bells.hung

    def counted(bells: Bells, job_id: str) -> AbstractContextManager[Bell]:
        hung.append(job_id)
        return hang(bells, job_id)

    monkeypatch.setattr(Bells, "hung", counted)
    with ThreadPoolExecutor(many) as threads:
        waiting = [threads.submit(outlook, gang, index, known="runs") for index in range(many - 1)]
        until(lambda: hung.count(gang.job_id), lambda count: count == many - 1)
        assert outlook(other).going is Going.RUNS
        began = time.monotonic()
        assert gone(gang, many - 1).going is Going.STOPS
        assert {each.result().going for each in waiting} == {Going.STOPS}
        assert time.monotonic() - began < regrouping.PEERS_SECONDS
        deciding = [threads.submit(gone, gang, index, STOPPED) for index in range(many - 1)]
        found = [each.result().going for each in deciding]
    assert found.count(Going.AGAIN) >= 1
    assert outlook(gang, known="stops", attempt=1) == Outlook(going=Going.AGAIN, attempt=2)


@pytest.mark.parametrize(
    "what",
    [
        "user error",
        "user error in another size",
        "told to stop",
        "verdict",
        "sealed",
        "used up",
        "all told to stop",
    ],
)
def test_it_ends_where_it_cannot_go_on(begun: Callable[..., Gang], what: str) -> None:
    gang = begun(max_restarts=0 if what == "used up" else 3)
    said, stays = LOST, True
    if what.startswith("user error"):
        if "size" in what:
            with gang.service.client() as store:
                store.stop(gang.job_id, attempt=1)
        said = replace(LOST, verdict=Verdict(cause=Cause.USER_ERROR, message="no rows", advice="a"))
    elif what == "told to stop":
        stays = False
    elif what == "verdict":
        with gang.service.client() as store:
            status = store.ledger.status(gang.job_id)
            store.ledger.update(replace(status, verdict=replace(STOPPED.verdict, message="cancelled")))
    elif what == "sealed":
        gang.finish_started({"out/x": b"1"}, index=0)
    elif what == "all told to stop":
        said = STOPPED
        assert gone(gang, 0, STOPPED).going is Going.STOPS
    answer = gone(gang, 1, said, stays=stays)
    assert answer.going is Going.ENDS
    assert answer.given_up == (what == "used up")
    assert gone(gang, 0, STOPPED) == answer, "what is decided once is decided"
    with gang.service.client() as store:
        assert store.attempt(gang.job_id)[0] == 1


def test_it_ends_where_a_replica_does_not_answer(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = begun()
    assert gone(gang, 1).going is Going.STOPS
    monkeypatch.setattr(regrouping, "PEERS_SECONDS", 0.3)
    answer = outlook(gang, 1, known="stops")
    assert (answer.going, answer.why) == (Going.ENDS, "replica main-0 does not say that it has stopped")
    assert not answer.given_up
    assert gone(gang, 0).going is Going.ENDS
    (folder(gang) / "1" / "main-0" / "late").write_bytes(b"1")
    gang.bundle(0, restart="1").raise_for_status()
    assert (gang.root("1") / "checkpoints" / "step").read_bytes() == b"weights"


def test_a_request_for_news_ends_now_and_then(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "WAIT_SECONDS", 0.1)
    assert outlook(begun(), known="runs").going is Going.RUNS


def test_the_clusters_own_starts_go_on_after_those_in_place(begun: Callable[..., Gang]) -> None:
    gang = begun()
    for attempt in (1, 2):
        gone(gang, 0, attempt=attempt)
        assert gone(gang, 1, STOPPED, attempt=attempt) == Outlook(going=Going.AGAIN, attempt=attempt + 1)
    assert gang.bundle(0, restart="0", pod="another").status_code == 409
    for index in range(2):
        gang.bundle(index, restart="1").raise_for_status()
    assert gang.attempt == 4
    assert (gang.root("1") / "checkpoints" / "step").read_bytes() == b"weights"
    with gang.service.client() as store:
        assert store.ledger.status(gang.job_id).restarts == 3
    answer = gone(gang, 0)
    assert (answer.going, answer.given_up) == (Going.ENDS, False), (
        "the cluster knows which of its starts were free"
    )
    stale = gang.pods.get(f"{gang.path(attempt=3)}/outlook", params={"known": "runs"})
    assert stale.status_code == 409


def test_new_pods_have_the_very_checkpoints_of_pods_that_all_said_that_they_end(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = begun()
    number = (gang.root() / "checkpoints").stat().st_ino
    for index in range(2):
        assert gone(gang, index, STOPPED, stays=False).going is Going.ENDS
    monkeypatch.delattr(attempts, "copy_tree")
    gang.bundle(0, restart="1").raise_for_status()
    assert (gang.root("1") / "checkpoints").stat().st_ino == number
    gang.bundle(1, restart="1").raise_for_status()


def test_pods_that_the_cluster_replaced_uncounted_begin_the_next_attempt_if_those_before_are_gone(
    begun: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kueue took the gang's nodes, and gives it others: JobSet counts no restart then."""
    gang = begun()
    number = (gang.root() / "checkpoints").stat().st_ino
    gone(gang, 0, STOPPED, stays=False)
    assert gang.bundle(0, pod="another-0").status_code == 409, "the other replica may live on"
    gone(gang, 1, STOPPED, stays=False)
    monkeypatch.delattr(attempts, "copy_tree")
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(gang.bundle, index, pod=f"another-{index}") for index in (0, 1, 0)]
    assert [each.result().headers.get("muster-attempt") for each in asked] == ["2"] * 3
    assert (gang.root() / "checkpoints").stat().st_ino == number
    assert gang.bundle(0, pod="a-third").status_code == 409
    assert gang.bundle(0, pod="pod-0-0").status_code == 409
    late = gang.pods.get(f"{gang.path(attempt=1)}/outlook", params={"known": "stops"})
    assert late.status_code == 409, "no pod of before is told to go on"
    with gang.service.client() as store:
        assert store.ledger.status(gang.job_id).restarts == 1
        (line,) = store.ledger.read(gang.job_id)[0].splitlines()
    assert line.startswith(b"[muster] evicted: the cluster took its pods away; the whole gang starts again")
    for attempt in (2, 3):  # and these start again in place
        gone(gang, 0, attempt=attempt)
        assert gone(gang, 1, STOPPED, attempt=attempt) == Outlook(going=Going.AGAIN, attempt=attempt + 1)
        assert gang.bundle(0, pod="a-fourth").status_code == 409, "the same pods go on"
        assert gang.bundle(0, pod="another-0").is_success


@pytest.mark.parametrize("began", [1, 2])
def test_pods_that_are_replaced_uncounted_again_go_on_too_if_all_that_began_are_gone(
    begun: Callable[..., Gang], began: int
) -> None:
    """The gang was preempted again, before or after the last of its new pods had begun."""
    gang = begun()
    for index in range(2):
        gone(gang, index, STOPPED, stays=False)
    for index in range(began):
        gang.bundle(index, pod=f"another-{index}").raise_for_status()
        gone(gang, index, STOPPED, stays=False, attempt=2)
    for index in range(2):
        assert gang.bundle(index, pod=f"a-third-{index}").headers.get("muster-attempt") == "3"
    assert (gang.root() / "checkpoints" / "step").read_bytes() == b"weights"
    assert gang.bundle(1, pod="another-1").status_code == 409


@pytest.mark.slow
def test_a_service_that_is_killed_anywhere_goes_on(
    begun: Callable[..., Gang], service: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(12):
        gang = begun()
        gone(gang, 0)
        left = [step]

        def counted(call: Callable[..., object], left: list[int] = left) -> Callable[..., object]:
            def ask(*arguments: object, **named: object) -> object:
                left[0] -= 1
                if left[0] == -1:
                    raise Killed
                return call(*arguments, **named)

            return ask

        with monkeypatch.context() as patched:
            for module in (regrouping, handing_over, attempts):
                for name in ("write_whole", "rename", "note_gone", "sync_folder"):
                    if hasattr(module, name):
                        patched.setattr(module, name, counted(getattr(module, name)))
            said = dumps(Gone(report=STOPPED, stays=True)).encode()
            url = f"{service.url}{gang.path(1)}/gone"
            answer = httpx.put(url, content=said, headers=dict(gang.pods.headers), trust_env=False)
        if answer.is_success:
            break
        assert gone(gang, 1, STOPPED, attempt=1) == Outlook(going=Going.AGAIN, attempt=2)
        assert outlook(gang, 0, known="stops", attempt=1) == Outlook(going=Going.AGAIN, attempt=2)
        assert (folder(gang) / "2" / "checkpoints" / "step").read_bytes() == b"weights"
    assert step > 3

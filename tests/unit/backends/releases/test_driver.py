from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.releases.world import NAME, Killed, World, spec
from tests.waiting import GUARD_SECONDS

from muster.backends.base import PATIENCE_SECONDS
from muster.backends.releases import judge
from muster.backends.releases.decision import Ending, Outcome
from muster.backends.releases.driver import CAUSE_SECONDS, Order, ReleaseDriver, begin
from muster.backends.releases.manual import promote, roll_back, tidy
from muster.backends.releases.plan import Comparison, Plan, Rules
from muster.core.deployment import Answer, RevisionState, SmokeRequest
from muster.core.errors import Conflict, Corrupt, DeploymentError, Forbidden, NotFound, SpecError, Unreachable

STEPS = Plan(steps=(5, 25, 100), hold_seconds=(2.0,))


def drive(world: World, driver: ReleaseDriver, *, looks: int = 200) -> Outcome:
    """Look every quarter of a second, while users ask, until the release has ended."""
    for _ in range(looks):
        world.pass_time(0.25)
        if (outcome := driver.step()) is not None:
            return outcome
    raise AssertionError(f"no end after {looks} looks: {world.deployment(NAME)}")


def start(world: World, number: int, plan: Plan = STEPS, *, by: str = "task", **more: Any) -> ReleaseDriver:
    return begin(world, spec(number), plan, by=by, clock=world.clock, **more)


@pytest.fixture
def world() -> World:
    """One where @1 serves."""
    world = World()
    first = start(world, 1, Plan())
    world.come_up("r1")
    assert drive(world, first).ending is Ending.DONE
    world.history.clear()
    return world


def released(world: World, number: int, **more: Any) -> Outcome:
    """Release a version, to the end."""
    driver = start(world, number, **more)
    if world.called(driver.revision).state is RevisionState.STARTING:
        world.come_up(driver.revision)
    return drive(world, driver)


def until_share(world: World, driver: ReleaseDriver, percent: int) -> None:
    for _ in range(100):
        world.pass_time(0.25)
        assert driver.step() is None
        if world.called(driver.revision).percent == percent:
            return
    raise AssertionError(world.deployment(NAME))


def test_a_first_release_is_put_in_force_by_its_smoke_requests_alone() -> None:
    world, said = World(), list[str]()
    driver = begin(world, spec(1), STEPS, by="task", say=said.append, clock=world.clock)
    world.pass_time(0.25)
    assert driver.step() is None
    assert world.deployment(NAME).shares == {}
    world.come_up("r1")
    assert drive(world, driver) == Outcome(ending=Ending.DONE, revision="r1")
    assert world.deployment(NAME).shares == {"r1": 100}
    assert world.deployment(NAME).release is None
    assert said == ["r1: starting, 0 of 1 replicas answer", "r1: all of the traffic"]


def test_a_first_release_that_answers_wrongly_serves_nobody() -> None:
    world = World()
    world.answers["r1"] = 7.0
    driver = start(world, 1)
    world.come_up("r1")
    outcome = drive(world, driver)
    assert outcome.ending is Ending.ROLLED_BACK
    assert outcome.reason == "smoke request 'two': output 'y' is 14.0, expected min 2 and max 2"
    assert world.called("r1").state is RevisionState.REFUSED
    assert not any(world.history)


def test_a_good_revision_gets_everything_step_by_step(world: World) -> None:
    outcome = released(world, 2)
    assert outcome == Outcome(ending=Ending.DONE, revision="r2")
    shares = [each for i, each in enumerate(world.history) if i == 0 or each != world.history[i - 1]]
    assert shares == [{"r1": 100}, {"r2": 5, "r1": 95}, {"r2": 25, "r1": 75}, {"r2": 100}]
    assert world.called("r1").kept
    assert world.now >= 6.0


def test_what_was_kept_before_goes_when_the_next_release_has_ended(world: World) -> None:
    released(world, 2)
    driver = start(world, 3)
    world.come_up("r3")
    until_share(world, driver, 25)
    assert world.called("r1").kept
    drive(world, driver)
    assert [(one.name, one.state, one.kept) for one in world.revisions] == [
        ("r3", RevisionState.SERVING, False),
        ("r2", RevisionState.READY, True),
        ("r1", RevisionState.RETIRED, False),
    ]


def test_what_was_kept_stays_where_the_next_release_fails(world: World) -> None:
    released(world, 2)
    world.failing["r3"] = 1.0
    assert released(world, 3).ending is Ending.ROLLED_BACK
    assert world.deployment(NAME).shares == {"r2": 100}
    assert world.called("r1").kept


def test_a_kept_revision_is_taken_as_it_is(world: World) -> None:
    released(world, 2)
    assert released(world, 1) == Outcome(ending=Ending.DONE, revision="r1")
    assert world.called("r2").kept


def test_what_serves_already_is_done_at_once(world: World) -> None:
    assert released(world, 1) == Outcome(ending=Ending.DONE, revision="r1")
    assert world.history == []


BREAKS: Mapping[str, tuple[Callable[[World], None], str]] = {
    "errors": (lambda w: w.failing.update(r2=0.5), "requests failed, above the 1.00% that are allowed"),
    "slow": (lambda w: w.seconds.update(r2=0.9), "the champion's"),
    "answers": (lambda w: w.answers.update(r2=9.0), "smoke request 'two'"),
    "crashes": (lambda w: w.change("r2", state=RevisionState.FAILED, reason="exit 3"), "exit 3"),
    "restarts": (lambda w: w.change("r2", restarts=1, reason="OOM"), "1 of its replicas died: OOM"),
    "no replica": (lambda w: w.change("r2", ready=0), "none of its 1 replicas answers"),
    "taken": (lambda w: w.change("r2", state=RevisionState.REFUSED, reason="by x"), "by x"),
}


COUNTED = ("errors", "slow")
# Before the first step it has had no request, and has still to come up.
MOMENTS = [
    (what, at) for what in BREAKS for at in (0, 5, 25, 100) if at or what not in (*COUNTED, "no replica")
]


@pytest.mark.parametrize(("what", "percent"), MOMENTS)
def test_a_revision_that_breaks_a_rule_is_taken_back(world: World, what: str, percent: int) -> None:
    break_it, why = BREAKS[what]
    counted = what in COUNTED
    plan = replace(STEPS, rules=Rules(fewest_requests=20)) if counted else STEPS
    driver = start(world, 2, plan)
    if percent:
        world.come_up("r2")
        until_share(world, driver, percent)
        if what == "answers":
            driver.questions.begin()  # as at the next step's begin
    elif what != "crashes":
        world.come_up("r2")
    break_it(world)
    outcome = drive(world, driver)
    assert outcome.ending is Ending.ROLLED_BACK
    assert why in outcome.reason
    assert world.deployment(NAME).shares == {"r1": 100}
    assert world.deployment(NAME).release is None
    assert world.called("r2").state is RevisionState.REFUSED


def test_the_champion_has_everything_back_at_the_first_look_after_a_rule_is_broken(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    world.failing["r2"] = 1.0
    world.pass_time(0.25)
    driver.step()
    assert world.deployment(NAME).shares == {"r1": 100}
    assert world.deployment(NAME).release.failed  # type: ignore[union-attr]
    assert world.called("r2").state is RevisionState.READY  # it goes next, and the reason is written already


def test_a_share_does_not_widen_before_the_fewest_requests_are_answered(world: World) -> None:
    said: list[str] = []
    driver = start(world, 2, replace(STEPS, rules=Rules(fewest_requests=20)), say=said.append)
    world.come_up("r2")
    until_share(world, driver, 5)
    for _ in range(3):
        world.pass_time(2.0, requests=120)  # 6 are its own
        assert driver.step() is None
        assert world.called("r2").percent == 5
    assert said[-1].startswith(
        "r2: it waits at 5 % until it has answered 20 requests (fewest_requests) (at 5 %: 6 req"
    )
    world.pass_time(0.25, requests=40)
    assert driver.step() is None
    assert world.called("r2").percent == 25
    world.pass_time(600.0, requests=0)  # what was answered at the step before is no evidence for this one
    assert driver.step() is None
    assert world.called("r2").percent == 25
    assert drive(world, driver).ending is Ending.DONE


def test_errors_are_a_share_of_the_fewest_requests_also_while_it_waits_for_them(world: World) -> None:
    plan = replace(STEPS, rules=Rules(max_error_share=0.06, fewest_requests=20, max_p95_ratio=None))
    driver = start(world, 2, plan)
    world.come_up("r2")
    until_share(world, driver, 5)
    world.failing["r2"] = 1.0
    world.pass_time(0.25, requests=20)  # one is its own: of 20 that is allowed
    del world.failing["r2"]
    for _ in range(3):
        world.pass_time(2.0, requests=20)
        assert driver.step() is None
        assert world.called("r2").percent == 5
    assert not world.deployment(NAME).release.failed  # type: ignore[union-attr]
    world.pass_time(0.25, requests=400)
    assert driver.step() is None
    assert world.called("r2").percent == 25


@pytest.mark.parametrize(("steps", "ending"), [((5,), Ending.HELD), ((100,), Ending.DONE)])
def test_a_share_that_does_not_widen_waits_for_no_requests(
    world: World, steps: tuple[int, ...], ending: Ending
) -> None:
    driver = start(world, 2, Plan(steps=steps, hold_seconds=(2.0,), rules=Rules(fewest_requests=20)))
    world.come_up("r2")
    for _ in range(60):
        world.pass_time(0.25, requests=0)
        if outcome := driver.step():
            break
    assert outcome is not None
    assert outcome.ending is ending


def test_without_a_rule_of_it_a_step_that_nobody_asked_widens(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 5)
    world.pass_time(2.0, requests=0)
    assert driver.step() is None
    assert world.called("r2").percent == 25


def test_errors_from_before_the_step_are_not_judged_again(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    world.count("r2", 1000)
    world.failing["r2"] = 1.0
    world.count("r2", 500)  # say, of a release before in which it was broken
    world.failing.clear()
    assert drive(world, driver).ending is Ending.DONE


def test_where_the_champion_is_down_too_it_is_not_the_revisions_fault(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    for name in ("r1", "r2"):
        world.change(name, ready=0)
    asked = world.prepared
    for _ in range(60):
        world.pass_time(0.25, requests=0)
        assert driver.step() is None
    assert world.prepared > asked  # a new keeper is asked for
    for name in ("r1", "r2"):
        world.change(name, ready=1)
    assert drive(world, driver).ending is Ending.DONE


def test_asking_once_more_takes_nothing_from_a_release_begun_meanwhile(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    for name in ("r1", "r2"):
        world.change(name, ready=0)
    prepare = world.prepare

    def beaten(*arguments: Any, **keywords: Any) -> Any:
        world.prepare = prepare  # type: ignore[method-assign]
        prepare(spec(3), by="ben")
        return prepare(*arguments, **keywords)

    world.prepare = beaten  # type: ignore[method-assign]
    outcome = drive(world, driver)
    assert (outcome.ending, outcome.reason) == (
        Ending.SUPERSEDED,
        "superseded by r3, which ben asked for",
    )


def test_what_its_platform_brings_back_is_waited_for(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    world.change("r2", state=RevisionState.STARTING, ready=0)
    for _ in range(40):
        world.pass_time(0.25, requests=0)
        assert driver.step() is None
    assert world.called("r2").percent == 25
    world.change("r2", state=RevisionState.SERVING, ready=1)
    assert drive(world, driver).ending is Ending.DONE


def test_a_release_is_superseded_by_the_next_which_clears_it_away(world: World) -> None:
    one = start(world, 2, by="one")
    world.come_up("r2")
    until_share(world, one, 25)
    other = start(world, 3, by="other")
    assert world.deployment(NAME).shares == {"r1": 100}
    outcome = drive(world, one)
    assert outcome == Outcome(
        ending=Ending.SUPERSEDED, revision="r2", reason="superseded by r3, which other asked for"
    )
    world.come_up("r3")
    assert drive(world, other).ending is Ending.DONE
    assert world.called("r2").state is RevisionState.RETIRED
    assert world.called("r2").reason == "superseded by r3, which other asked for"
    assert drive(world, one) == outcome  # also when it looks long after


def test_two_ask_for_the_same_revision_and_the_last_drives_it(world: World) -> None:
    one = start(world, 2, by="one")
    world.come_up("r2")
    until_share(world, one, 25)
    other = start(world, 2, by="other")
    assert other.revision == one.revision == "r2"
    assert drive(world, one).ending is Ending.SUPERSEDED
    assert drive(world, other).ending is Ending.DONE


def test_the_same_one_again_goes_on_where_it_was(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    again = start(world, 2)
    assert world.deployment(NAME).shares == {"r1": 75, "r2": 25}
    assert drive(world, again).ending is Ending.DONE


def test_a_change_of_drivers_holds_the_step_anew(world: World) -> None:
    driver = start(world, 2, Plan(steps=(5, 100), hold_seconds=(10.0,)))
    world.come_up("r2")
    until_share(world, driver, 5)
    for _ in range(30):
        world.pass_time(0.25)
        driver.step()
    began = world.now
    again = start(world, 2, Plan(steps=(5, 100), hold_seconds=(10.0,)))
    until_share(world, again, 100)
    assert world.now - began >= 10.0


def test_a_person_rolls_a_release_back_that_is_under_way(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    assert roll_back(world, NAME, by="ann", reason="too many complaints") == "r1"
    assert world.deployment(NAME).shares == {"r1": 100}
    outcome = drive(world, driver)
    assert outcome.ending is Ending.ROLLED_BACK
    assert outcome.reason == "rolled back by ann: too many complaints"


def test_a_person_rolls_back_what_serves(world: World) -> None:
    released(world, 2)
    assert roll_back(world, NAME, by="ann") == "r1"
    status = world.deployment(NAME)
    assert (status.shares, status.release) == ({"r1": 100}, None)
    assert world.called("r2").state is RevisionState.REFUSED
    with pytest.raises(NotFound, match="keeps no revision to go back to"):
        roll_back(world, NAME, by="ann")
    assert world.deployment(NAME).shares == {"r1": 100}


def test_nobody_is_rolled_back_to_a_revision_that_does_not_answer(world: World) -> None:
    released(world, 2)
    world.change("r1", ready=0)
    with pytest.raises(DeploymentError, match="r1 is not ready"):
        roll_back(world, NAME, by="ann")
    assert world.deployment(NAME).shares == {"r2": 100}


def test_a_rollback_whose_person_was_killed_is_ended_by_whoever_comes_next(world: World) -> None:
    released(world, 2)

    def kill(which: str) -> None:
        if which == "shift done":
            raise Killed

    world.fault = kill
    with pytest.raises(Killed):
        roll_back(world, NAME, by="ann", reason="bad")
    assert world.deployment(NAME).shares == {"r1": 100}
    world.fault = lambda _which: None
    assert tidy(world, NAME) == ("r2",)
    assert world.called("r2").reason == "rolled back by ann: bad"
    assert world.deployment(NAME).release is None
    assert tidy(world, NAME) == ()


def test_a_person_promotes_a_release_that_is_under_way(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 5)
    promote(world, NAME, "r2", by="ann")
    assert world.deployment(NAME).shares == {"r2": 100}
    assert world.called("r1").kept
    assert drive(world, driver) == Outcome(ending=Ending.DONE, revision="r2")


def test_a_person_promotes_what_was_kept_and_supersedes_a_release(world: World) -> None:
    released(world, 2)
    driver = start(world, 3)
    world.come_up("r3")
    until_share(world, driver, 25)
    promote(world, NAME, "r1", by="ann")
    status = world.deployment(NAME)
    assert (status.shares, status.release) == ({"r1": 100}, None)
    assert world.called("r2").kept
    outcome = drive(world, driver)
    assert (outcome.ending, outcome.reason) == (Ending.SUPERSEDED, "ann gave all traffic to r1")


def test_what_is_not_there_cannot_be_promoted(world: World) -> None:
    with pytest.raises(NotFound, match=r"no revision 'r9'; there is r1"):
        promote(world, NAME, "r9", by="ann")
    start(world, 2)
    with pytest.raises(DeploymentError, match="r2 is not ready"):
        promote(world, NAME, "r2", by="ann")


def test_a_write_that_is_beaten_is_tried_on_what_is_there_then(world: World) -> None:
    released(world, 2)
    beaten: list[str] = []

    def beat(which: str) -> None:
        if which == "shift" and not beaten:
            beaten.append(which)
            raise Conflict("another writer")

    world.fault = beat
    assert roll_back(world, NAME, by="ann") == "r1"

    def beat_always(which: str) -> None:
        raise Conflict("another writer")

    world.fault = beat_always
    with pytest.raises(Conflict):
        promote(world, NAME, "r1", by="ann")


def test_shares_are_refused_where_there_are_none_before_anything_is_started() -> None:
    world = World(only_whole="there is no Gateway")
    with pytest.raises(SpecError, match=r"steps \[5, 25, 100\]: .* \(there is no Gateway\)"):
        start(world, 1)
    assert world.prepared == 0
    assert released(world, 1, plan=Plan()).ending is Ending.DONE


@pytest.mark.parametrize("kind", [Unreachable, Corrupt])
def test_a_backend_that_is_away_is_waited_for_but_not_for_ever(world: World, kind: type[Exception]) -> None:
    """And for a damaged route, which may be put back."""
    said: list[str] = []
    driver = begin(world, spec(2), STEPS, by="task", say=said.append, clock=world.clock)
    world.come_up("r2")
    until_share(world, driver, 5)

    def away() -> None:
        raise kind("the API server does not answer")

    world.away = away
    for _ in range(300):
        world.pass_time(0.25)
        assert driver.step() is None
    world.away = lambda: None
    driver.step()
    world.away = away
    for _ in range(int(PATIENCE_SECONDS * 4)):
        world.pass_time(0.25)
        assert driver.step() is None
    world.pass_time(1)
    with pytest.raises(kind):
        driver.step()
    assert said.count("r2: trying again: the API server does not answer") == 2
    world.away = lambda: None
    assert drive(world, start(world, 2)).ending is Ending.DONE


def test_access_that_is_refused_is_not_waited_for(world: World) -> None:
    driver = start(world, 2)

    def away() -> None:
        raise Forbidden("no")

    world.away = away
    with pytest.raises(Forbidden):
        driver.step()


def test_without_counts_a_revision_is_not_widened_but_taken_back_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 5)

    def counts(name: str) -> Any:
        raise Unreachable("no metrics")

    monkeypatch.setattr(world, "counts", counts)
    for _ in range(40):
        world.pass_time(0.25)
        assert driver.step() is None
    assert world.called("r2").percent == 5
    world.change("r2", state=RevisionState.FAILED, reason="exit 3")
    assert drive(world, driver).reason == "at 5 % of the traffic, exit 3"


def test_one_that_does_not_tell_its_counts_is_not_widened(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 5)
    world.silent.add("r2")
    for _ in range(40):
        world.pass_time(0.25)
        assert driver.step() is None
    assert world.called("r2").percent == 5
    world.silent.clear()
    assert drive(world, driver).ending is Ending.DONE


def test_a_champion_that_does_not_tell_its_counts_hides_no_error_of_the_candidate(world: World) -> None:
    said = list[str]()
    driver = start(world, 2, say=said.append)
    world.come_up("r2")
    world.pass_time(0.25, requests=1000)
    until_share(world, driver, 5)
    world.silent.add("r1")
    for _ in range(40):
        world.pass_time(0.25)
        assert driver.step() is None
    assert said[-1] == "r2: the requests of r1 cannot be counted now"
    world.failing["r2"] = 0.5
    outcome = drive(world, driver)
    assert (outcome.ending, "requests failed, above the 1.00%" in outcome.reason) == (
        Ending.ROLLED_BACK,
        True,
    )


def test_of_a_champion_that_was_silent_only_what_comes_after_is_compared(world: World) -> None:
    world.seconds["r1"] = 0.9
    world.pass_time(0.25, requests=100_000)  # it was slow, long ago
    del world.seconds["r1"]
    world.silent.add("r1")
    driver = start(world, 2, replace(STEPS, rules=Rules(fewest_requests=20)))
    world.come_up("r2")
    world.seconds["r2"] = 0.5
    until_share(world, driver, 5)
    world.silent.clear()
    outcome = drive(world, driver)
    assert (outcome.ending, "the champion's" in outcome.reason) == (Ending.ROLLED_BACK, True)


def test_where_latency_is_not_judged_a_silent_champion_holds_up_nothing(world: World) -> None:
    world.silent.add("r1")
    assert released(world, 2, plan=replace(STEPS, rules=Rules(max_p95_ratio=None))).ending is Ending.DONE


def test_a_question_that_could_not_be_asked_is_asked_again(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    world.answers["r2"] = 9.0
    ask, broken = world.ask, [True, True]

    def flaky(*arguments: Any) -> Any:
        if broken:
            broken.pop()
            raise Unreachable("reset")
        return ask(*arguments)

    world.ask = flaky  # type: ignore[method-assign]
    assert drive(world, driver).ending is Ending.ROLLED_BACK


@pytest.mark.parametrize(("times", "ending"), [(1, Ending.DONE), (2, Ending.ROLLED_BACK)])
def test_a_replica_that_gives_no_answer_is_asked_twice(world: World, times: int, ending: Ending) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    ask, left = world.ask, [True] * times

    def flaky(*arguments: Any) -> Any:
        if left:
            left.pop()
            return (Answer(replica="a", outputs=None, error="connection refused"),)
        return ask(*arguments)

    world.ask = flaky  # type: ignore[method-assign]
    outcome = drive(world, driver)
    assert outcome.ending is ending
    assert outcome.reason in ("", "smoke request 'two': connection refused")


def silent(*_asked: Any) -> tuple[Answer, ...]:
    """What is said of a replica that cannot be reached."""
    return (Answer(replica="a", outputs=None, error="it does not answer: EOF", silent=True),)


@pytest.mark.parametrize(
    ("answers", "found"),
    [(silent, "it does not answer: EOF"), (lambda *_: (), "none of its replicas answers")],
    ids=["it is asked, and is silent", "its platform lists it no more"],
)
def test_why_a_replica_fell_silent_is_told_with_what_it_did(world: World, answers: Any, found: str) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    world.ask = answers  # type: ignore[method-assign]
    for _ in range(8):  # its platform has not noticed yet
        world.pass_time(0.25)
        assert driver.step() is None
    assert world.deployment(NAME).release.failed  # type: ignore[union-attr]
    assert world.called("r2").state is RevisionState.READY
    world.change("r2", ready=0, restarts=1, reason="r2-a: it needed more memory than it is given")
    assert drive(world, driver, looks=3).reason == (
        f"smoke request 'two': {found}; r2-a: it needed more memory than it is given"
    )


def test_its_share_is_taken_back_before_that_is_known(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    world.change("r2", ready=0)
    world.pass_time(0.25)
    assert driver.step() is None
    assert world.deployment(NAME).shares == {"r1": 100}
    world.change("r2", restarts=1, reason="r2-a: it ended with exit code 139")
    assert drive(world, driver, looks=3).reason == (
        "at 25 % of the traffic, none of its 1 replicas answers; r2-a: it ended with exit code 139"
    )


def test_a_cause_that_never_comes_is_not_waited_for_long(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    world.ask = silent  # type: ignore[method-assign]
    began = world.now
    assert drive(world, driver).reason == "smoke request 'two': it does not answer: EOF"
    assert CAUSE_SECONDS < world.now - began < CAUSE_SECONDS + 3


def test_a_cause_that_is_told_already_is_told_once(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    world.change("r2", ready=0, restarts=1, reason="r2-a: it ended with exit code 139")
    assert drive(world, driver, looks=5).reason == (
        "at 25 % of the traffic, none of its 1 replicas answers: r2-a: it ended with exit code 139"
    )


def test_errors_of_users_do_not_wait_behind_a_smoke_request_that_hangs(world: World) -> None:
    driver = start(world, 2, replace(STEPS, hold_seconds=(1.0,)))
    world.come_up("r2")
    until_share(world, driver, 5)
    released, hung, asks = threading.Event(), world.ask, list[str]()

    def hangs(name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        asks.append(revision)
        released.wait(GUARD_SECONDS)
        return hung(name, revision, request)

    world.ask = hangs  # type: ignore[method-assign]
    try:
        while not asks:
            world.pass_time(0.25)
            assert driver.step() is None
        world.failing["r2"] = 1.0
        while not world.release or not world.release.failed:
            world.pass_time(0.25)
            driver.step()
        assert world.deployment(NAME).shares == {"r1": 100}
        assert asks == ["r2"]  # it is waited for, and not asked over and over
    finally:
        released.set()


def test_an_answer_that_takes_its_time_is_taken_at_a_later_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "MOMENT_SECONDS", 0.001)
    driver = start(world, 2)
    world.come_up("r2")
    released, ask = threading.Event(), world.ask

    def slow(name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        released.wait(GUARD_SECONDS)
        return ask(name, revision, request)

    world.ask = slow  # type: ignore[method-assign]
    for _ in range(4):
        world.pass_time(0.25)
        assert driver.step() is None
    assert world.called("r2").percent == 0
    released.set()
    monkeypatch.setattr(judge, "MOMENT_SECONDS", 10.0)
    assert drive(world, driver).ending is Ending.DONE


def test_nobody_is_promoted_who_is_down_while_another_answers(world: World) -> None:
    released(world, 2, plan=CANARY)
    world.change("r2", ready=0, reason="exit code 139")
    with pytest.raises(
        DeploymentError,
        match=r"r2 of line does not answer: exit code 139\. r1 does: `muster deployments promote line r1`",
    ):
        promote(world, NAME, "r2", by="ann")
    assert world.deployment(NAME).shares == {"r1": 95, "r2": 5}
    world.change("r1", ready=0)  # where no revision answers, its traffic may be what brings it back
    promote(world, NAME, "r2", by="ann")
    assert world.deployment(NAME).shares == {"r2": 100}


def test_the_route_edited_by_somebody_else_ends_the_release(world: World) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 25)
    world.release = None
    outcome = drive(world, driver)
    assert outcome.ending is Ending.SUPERSEDED
    assert outcome.reason == "the traffic was given to others: r2 25 %, r1 75 %"


def test_a_deployment_that_was_retired_meanwhile_ends_the_release(world: World) -> None:
    driver = start(world, 2)
    world.deployment = lambda name: (_ for _ in ()).throw(NotFound(name))  # type: ignore[method-assign]
    assert driver.step() == Outcome(
        ending=Ending.SUPERSEDED, revision="r2", reason="the deployment was retired"
    )


def test_one_that_is_retired_in_the_middle_of_a_look_ends_the_release_at_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(world, 2)
    world.come_up("r2")
    until_share(world, driver, 5)

    def gone(_name: str) -> Any:
        raise NotFound("no deployment")

    monkeypatch.setattr(world, "counts", gone)
    assert driver.step() is None
    monkeypatch.setattr(world, "deployment", gone)
    assert driver.step() == Outcome(
        ending=Ending.SUPERSEDED, revision="r2", reason="the deployment was retired"
    )


LABELLED = tuple(SmokeRequest(name=f"{x}", inputs={"x": (x, x + 1)}) for x in (1.0, 3.0))


@pytest.mark.parametrize(
    ("comparison", "why"),
    [
        ({"agreement": 0.9, "tolerance": 4.0}, ""),
        (
            {"agreement": 0.9, "tolerance": 3.0},
            "it agrees with the champion in 75.0% of the rows, need 90.0%",
        ),
        ({"metric": "mae", "labels": ((2.0, 4.0), (6.0, 8.0))}, ""),
        (
            {"metric": "mae", "labels": ((1.0, 2.0), (3.0, 4.0)), "worse_by": 2.0},
            "mae is 2.5 on the labelled",
        ),
        ({"metric": "mae", "labels": ((1.0, 2.0), (3.0, 4.0)), "worse_by": 2.5}, ""),
    ],
)
def test_a_comparison_comes_before_the_first_share(world: World, comparison: Any, why: str) -> None:
    plan = replace(STEPS, comparison=Comparison(requests=LABELLED, output="y", **comparison))
    outcome = released(world, 2, plan=plan)
    assert (why in outcome.reason) if why else (outcome.ending is Ending.DONE)
    if why:
        assert all(shares == {"r1": 100} for shares in world.history)


def test_a_comparison_on_an_output_that_is_not_there_says_so(world: World) -> None:
    plan = replace(STEPS, comparison=Comparison(requests=LABELLED, output="z", agreement=1.0))
    assert (
        "in the comparison, r2: output 'z': expected numbers, found None"
        in released(world, 2, plan=plan).reason
    )


COMPARED = replace(STEPS, comparison=Comparison(requests=LABELLED, output="y", agreement=0.5, tolerance=9.0))


def test_it_is_compared_at_each_step(world: World) -> None:
    driver = start(world, 2, COMPARED)
    world.come_up("r2")
    until_share(world, driver, 25)
    ask = world.ask

    def other(name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        answers = ask(name, revision, request)
        if revision == "r1" or request.name == "two":
            return answers
        return tuple(replace(each, outputs={"y": (99.0, 99.0)}) for each in answers)

    world.ask = other  # type: ignore[method-assign]
    outcome = drive(world, driver)
    assert outcome.reason.startswith(
        "at 25 % of the traffic, it agrees with the champion in 0.0% of the rows"
    )


def test_a_champion_that_does_not_answer_is_waited_for_before_it_is_compared(world: World) -> None:
    said = list[str]()
    driver = start(world, 2, COMPARED, say=said.append)
    world.come_up("r2")
    world.change("r1", ready=0)
    for _ in range(40):
        world.pass_time(0.25)
        assert driver.step() is None
    assert "r2: r1, which it is to be compared with, does not answer now" in said
    world.change("r1", ready=1)
    assert drive(world, driver).ending is Ending.DONE


@pytest.mark.parametrize("healthy", [True, False])
def test_one_replica_of_the_champion_will_do_for_a_comparison(world: World, healthy: bool) -> None:
    driver = start(world, 2, COMPARED)
    world.come_up("r2")
    ask = world.ask

    def limping(name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        answers = ask(name, revision, request)
        dead = Answer(replica="dead", outputs=None, error="connection refused", silent=True)
        if revision != "r1":
            return answers
        return (dead, *answers) if healthy else (dead,)

    world.ask = limping  # type: ignore[method-assign]
    outcome = drive(world, driver)
    assert outcome.ending is (Ending.DONE if healthy else Ending.ROLLED_BACK)
    if not healthy:
        assert outcome.reason == "in the comparison, r1: smoke request '1.0': connection refused"


@pytest.mark.parametrize("back", [True, False])
def test_a_champion_that_crashes_while_it_is_compared_is_waited_for(world: World, back: bool) -> None:
    """That it does not answer its platform says a second later: the candidate is no worse for it."""
    driver = start(world, 2, COMPARED)
    world.come_up("r2")
    until_share(world, driver, 25)
    ask, looks = world.ask, 0

    def crashed(name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        nonlocal looks
        if revision != "r1" or (back and looks > 40):
            return ask(name, revision, request)
        return (Answer(replica="r1", outputs=None, error="connection refused", silent=True),)

    world.ask = crashed  # type: ignore[method-assign]
    while looks <= 40:
        world.pass_time(0.25)
        looks += 1
        assert driver.step() is None
        if looks == 4:
            world.change("r1", ready=0)
    world.change("r1", ready=1)
    assert drive(world, driver).ending is (Ending.DONE if back else Ending.ROLLED_BACK)


class Chaos:
    """Kills, conflicts, absences and other people, at any write; the same for the same seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.on = True
        world.fault = self.write
        world.away = self.read

    def write(self, which: str) -> None:
        dice = self.random.random() if self.on else 1.0
        if dice < 0.15:
            raise Killed
        if dice < 0.25 and not which.endswith("done"):
            raise Conflict("beaten")

    def read(self) -> None:
        if self.on and self.random.random() < 0.02:
            raise Unreachable("away")

    def act(self) -> None:
        """Do what a person or a fault does now and then."""
        acts = [
            lambda: roll_back(self.world, NAME, by="ann"),
            lambda: promote(self.world, NAME, self.random.choice(self.world.revisions).name, by="bob"),
            lambda: tidy(self.world, NAME),
            lambda: self._break(),
        ]
        try:
            self.random.choice(acts)()
        except (Killed, Conflict, NotFound, DeploymentError, Unreachable):
            return

    def _break(self) -> None:
        release = self.world.release
        if release and release.champion not in (None, release.revision):
            what = self.random.choice(["errors", "crashes", "restarts"])
            target = release.revision
            if what == "errors":
                self.world.failing[target] = 0.5
            elif what == "crashes":
                self.world.change(target, state=RevisionState.FAILED, reason="exit 3")
            else:
                self.world.change(target, restarts=self.world.called(target).restarts + 1)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_users_are_served(world: World, seed: int) -> None:
    """The fake refuses, as it is written, what must never be; here is how it must end."""
    chaos = Chaos(world, seed)
    asked: dict[str, int] = {}
    running: dict[str, ReleaseDriver | None] = {}
    ended: dict[str, Outcome] = {}
    for look in range(400):
        if look in (0, 120, 200):  # three releases, each may come while another is under way
            asked[f"task{look}"] = 2 + look // 100
        chaos.on = look < 330
        if chaos.on and chaos.random.random() < 0.03:
            chaos.act()
        world.pass_time(0.25)
        for by, number in asked.items():
            if by not in ended:
                _drive_once(world, by, number, running, ended)
        for one in world.revisions:
            if one.state is RevisionState.STARTING and chaos.random.random() < 0.5:
                world.come_up(one.name)
        shares = world.deployment(NAME).shares if not chaos.on else {}
        assert not shares or sum(shares.values()) == 100
    assert all(sum(shares.values()) == 100 for shares in world.history), world.history
    assert ended.keys() == asked.keys()
    status = world.deployment(NAME)
    tidy(world, NAME)
    status = world.deployment(NAME)
    assert status.release is None
    assert list(status.shares.values()) == [100]
    (serving,) = status.shares
    for outcome in ended.values():
        if outcome.ending is Ending.ROLLED_BACK:
            assert world.called(outcome.revision).state is RevisionState.REFUSED
            assert outcome.revision != serving
    left = [one for one in status.revisions if not one.state.over]
    assert all(one.percent or one.kept for one in left)


def _drive_once(
    world: World, by: str, number: int, running: dict[str, ReleaseDriver | None], ended: dict[str, Outcome]
) -> None:
    """Let a driver look once; where it was killed, its successor begins where the route is."""
    try:
        driver = running.get(by)
        if driver is None:
            driver = running[by] = start(world, number, by=by)
        outcome = driver.step()
        if outcome is not None:
            ended[by] = outcome
    except Killed:
        dead = running.pop(by, None)
        if dead is not None:
            running[by] = ReleaseDriver(world, dead.order, revision=dead.revision, clock=world.clock)
    except (Conflict, Unreachable):
        return


CANARY = Plan(steps=(5,), hold_seconds=(2.0,))


def test_steps_that_end_below_everything_leave_the_revision_there(world: World) -> None:
    said = list[str]()
    driver = start(world, 2, CANARY, say=said.append)
    world.come_up("r2")
    assert drive(world, driver) == Outcome(ending=Ending.HELD, revision="r2", reason="held at 5 %")
    status = world.deployment(NAME)
    assert status.shares == {"r1": 95, "r2": 5}
    assert status.release is not None
    assert (status.release.held, status.release.by) == (True, "task")
    assert said == [
        "r2: 5 % of the traffic, held for 2 s",
        (
            "r2: held at 5 % until it is given more "
            "(at 5 %: 16 requests, 0 failed, 95 % within 9.5 ms, the champion's within 9.5 ms)"
        ),
    ]
    again = start(world, 2, CANARY)
    assert again.step() == Outcome(ending=Ending.HELD, revision="r2", reason="held at 5 %")


def test_who_asks_for_more_goes_on_from_the_share_that_is_held(world: World) -> None:
    held = released(world, 2, plan=CANARY)
    assert held.ending is Ending.HELD
    world.history.clear()
    assert released(world, 2, plan=STEPS, by="another task").ending is Ending.DONE
    assert all(each.get("r2", 0) >= 5 for each in world.history)
    assert world.deployment(NAME).shares == {"r2": 100}


def test_the_one_before_hears_that_another_goes_on_with_its_release(world: World) -> None:
    first = start(world, 2, STEPS)
    world.come_up("r2")
    until_share(world, first, 5)
    second = start(world, 2, STEPS, by="another task")
    outcome = drive(world, first)
    assert (outcome.ending, outcome.reason) == (
        Ending.SUPERSEDED,
        "superseded by r2, which another task asked for",
    )
    assert drive(world, second).ending is Ending.DONE


def test_what_is_held_and_dies_is_taken_back_by_who_looks_next(world: World) -> None:
    released(world, 2, plan=CANARY)
    world.change("r2", state=RevisionState.FAILED, ready=0, reason="exit code 139")
    again = ReleaseDriver(
        world, Order(spec=spec(2), plan=CANARY, by="task"), revision="r2", clock=world.clock
    )
    outcome = drive(world, again)
    assert outcome == Outcome(
        ending=Ending.ROLLED_BACK, revision="r2", reason="at 5 % of the traffic, exit code 139"
    )
    assert world.deployment(NAME).shares == {"r1": 100}


def test_a_release_of_another_version_ends_what_is_held(world: World) -> None:
    released(world, 2, plan=CANARY)
    assert released(world, 3, by="another task").ending is Ending.DONE
    assert world.called("r2").state is RevisionState.RETIRED


def test_a_first_release_is_not_held_back_from_users_who_have_nothing_else() -> None:
    world = World()
    assert released(world, 1, plan=CANARY) == Outcome(ending=Ending.DONE, revision="r1")
    assert world.deployment(NAME).shares == {"r1": 100}


def test_of_two_who_take_back_the_same_nobody_goes_back_twice(world: World) -> None:
    released(world, 2)
    canary = start(world, 3, CANARY)
    world.come_up("r3")
    until_share(world, canary, 5)
    rivals = [lambda: roll_back(world, NAME, by="bob")]

    shift = world.shift

    def late(*arguments: Any, **more: Any) -> str:
        if rivals:  # bob writes between ann's look and her write
            rivals.pop()()
        return shift(*arguments, **more)

    world.shift = late  # type: ignore[method-assign]
    assert roll_back(world, NAME, by="ann") == "r2"
    assert world.deployment(NAME).shares == {"r2": 100}
    assert world.called("r3").reason == "rolled back by bob"
    assert world.called("r1").kept


def test_a_look_of_a_moment_ago_misleads_nobody(world: World) -> None:
    released(world, 2)
    before = world.deployment(NAME)
    assert roll_back(world, NAME, by="bob") == "r1"
    assert roll_back(world, NAME, by="ann", revision="r2", seen=before) == "r1"
    assert world.deployment(NAME).shares == {"r1": 100}
    assert world.called("r2").reason == "rolled back by bob"


def test_what_is_named_to_be_rolled_back_and_serves_beside_a_release_is_not_called_so(world: World) -> None:
    """It is not on its way any more, and what it was to be taken back for is in the middle of it."""
    released(world, 2)
    canary = start(world, 3, CANARY)
    world.come_up("r3")
    until_share(world, canary, 5)
    with pytest.raises(DeploymentError, match="r2 of line has 95 % of the traffic, and r3 is on its way"):
        roll_back(world, NAME, by="ann", revision="r2")
    assert world.deployment(NAME).shares == {"r2": 95, "r3": 5}
    assert roll_back(world, NAME, by="ann") == "r2"
    assert roll_back(world, NAME, by="ann", revision="r2") == "r1"


def test_what_is_named_to_be_rolled_back_and_is_gone_stays_so(world: World) -> None:
    released(world, 2)
    assert roll_back(world, NAME, by="ann", revision="r1") == "r2"
    assert world.deployment(NAME).shares == {"r2": 100}

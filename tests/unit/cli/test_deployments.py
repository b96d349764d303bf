"""``muster deployments``, with a backend that serves two revisions from memory."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.releases.world import NAME, Lines, World

from muster.airflow.embedded.home import EmbeddedHome
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.releases.book import Book, BookEntry, SavedDeployment, SavedDeployments
from muster.backends.releases.figures import DeploymentSample, if_known
from muster.backends.releases.manual import promote, roll_back
from muster.core.data import Pinned
from muster.core.deployment import Counts, DeploymentSpec, DeploymentStatus, Revision, RevisionState
from muster.core.errors import NotFound, Unreachable
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.wire import dumps, loads
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def revision(number: int, state: RevisionState, **changes: Any) -> Revision:
    model = Pinned(address=f"volume://flights/model@{number}", digest="b3:" + f"{number}" * 64)
    return Revision(name=f"r{number}", model=model, state=state, since=1_800_000_000.0, **changes)


COUNTED = Counts(requests=200, failed=3, seconds={0.01: 150, 0.1: 200, float("inf"): 200})


class Serving:
    """The half of a backend that is about deployments."""

    counted: Mapping[str, Counts] | None = None

    def __init__(self) -> None:
        revisions = (
            revision(3, RevisionState.REFUSED, reason="smoke 'noon': [red]probability[/red] is 1.4\x1b[2J"),
            revision(2, RevisionState.SERVING, percent=100),
        )
        self.known = {
            "flights": DeploymentStatus(
                name="flights", url="http://127.0.0.1:8081", ready=True, token="1", revisions=revisions
            )
        }

    def names(self) -> list[str]:
        return sorted(self.known)

    def deployment(self, name: str) -> DeploymentStatus:
        return self.known[name]

    def counts(self, name: str) -> Mapping[str, Counts]:
        if self.counted is None:
            raise Unreachable("no metrics")
        return self.counted

    def look_at(self, names: Collection[str] | None = None) -> list[DeploymentSample]:
        wanted = self.known if names is None else names
        return [
            DeploymentSample(
                status=self.known[name],
                counts=if_known(lambda name=name: self.counts(name)),  # type: ignore[misc]
            )
            for name in wanted
            if name in self.known
        ]

    def retire(self, name: str) -> None:
        del self.known[name]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("muster.cli.deployments.open_deployments", lambda: world)
    world.begin_canary(by="flights.deploy, manual")
    return world


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    backend = Serving()
    monkeypatch.setattr("muster.cli.deployments.open_deployments", lambda: backend)
    return backend


@pytest.mark.usefixtures("serving")
def test_ls_names_what_serves(muster: Run) -> None:
    _, row = muster("deployments", "ls").out.splitlines()
    assert row.split()[:3] == ["flights", "serving", "flights/model@2"]
    assert row.endswith("http://127.0.0.1:8081")
    (document,) = muster("deployments", "ls", "--json").json()
    assert document["ready"] is True


@pytest.mark.usefixtures("serving")
def test_show_says_why_a_revision_was_refused(muster: Run) -> None:
    out = muster("deployments", "show", "flights").out
    refused = next(line for line in out.splitlines() if "refused" in line)
    assert refused.split()[:2] == ["r3", "flights/model@3"]
    assert refused.endswith(r"smoke 'noon': [red]probability[/red] is 1.4\x1b[2J")
    assert muster("deployments", "show", "flights", "--json").json()["revisions"][1]["percent"] == 100


def test_show_says_where_grpc_is_answered(muster: Run, serving: Serving) -> None:
    assert "grpc" not in muster("deployments", "show", "flights").out
    serving.known["flights"] = replace(serving.known["flights"], grpc="127.0.0.1:8082")
    lines = muster("deployments", "show", "flights").out.splitlines()
    assert ["grpc", "127.0.0.1:8082"] in [line.split() for line in lines]
    assert muster("deployments", "show", "flights", "--json").json()["grpc"] == "127.0.0.1:8082"


def test_retire_takes_it_away(muster: Run, serving: Serving) -> None:
    assert "no longer answers" in muster("deployments", "retire", "flights").err
    assert serving.known == {}
    assert "there are none yet" in muster("deployments", "retire", "flights").err


@pytest.mark.parametrize("command", ["show", "promote", "rollback"])
def test_an_unknown_name_says_what_there_is(muster: Run, home: Path, command: str) -> None:
    (home / "deployments" / "old").mkdir(parents=True)
    (home / "deployments" / "old" / "state.json").write_text("of another release")
    (home / "store").mkdir()
    answer = muster("deployments", command, "flight")
    assert (answer.code, answer.out, answer.error) == (1, "", None)
    assert "no deployment 'flight'; known are: old" in " ".join(answer.err.split())


def test_the_figures_stand_beside_each_revision(muster: Run, serving: Serving) -> None:
    serving.counted = {"r2": COUNTED}
    out = muster("deployments", "show", "flights").out
    row = next(line for line in out.splitlines() if line.startswith("r2"))
    assert row.split()[4:12] == ["100", "%", "0/1", "0", "200", "3", "82", "ms"]
    assert muster("deployments", "ls").out.splitlines()[1].split()[3:8] == ["-", "200", "3", "82", "ms"]
    (document,) = muster("deployments", "ls", "--json").json()
    assert document["figures"] == {"r2": {"requests": 200, "failed": 3, "p95_seconds": 0.082, "outside": {}}}
    flights = serving.known["flights"]
    died = tuple(replace(one, restarts=4) for one in flights.revisions)
    serving.known["flights"] = replace(flights, revisions=died)
    assert re.search(r"^r2 .* 0/1 +4 +200 ", muster("deployments", "show", "flights").out, re.MULTILINE)
    serving.counted = {"r2": replace(COUNTED, outside={"month": 12, "zone": 0})}
    said = muster("deployments", "show", "flights").err
    assert "r2: values outside what its training rows had, of 200 requests: month in 12" in said
    serving.counted = {"r2": replace(COUNTED, dropped=22)}
    assert (
        "r2: 22 answered requests are not in its request log" in muster("deployments", "show", "flights").err
    )


@pytest.mark.usefixtures("serving")
def test_requests_that_cannot_be_read_are_told(muster: Run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "hour").mkdir()
    store, note = (
        FolderStore(home / "store"),
        "requests of deployment flights; in _unread, since they cannot be read: 3",
    )
    (tmp_path / "hour" / "rows").touch()
    store.add("flights/predictions", tmp_path / "hour", partition="2026-11-26T07", note=note)
    answer = muster("deployments", "show", "flights")
    assert answer.code == 0, answer.error
    assert "3 requests cannot be read, and are no rows" in answer.err


@pytest.mark.usefixtures("serving")
def test_a_deployment_is_shown_while_the_store_is_away(muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise Unreachable("the store service does not answer")

    monkeypatch.setattr("muster.cli.deployments.open_store", away)
    answer = muster("deployments", "show", "flights")
    assert answer.code == 0, answer.error
    assert "cannot be read is not known: the store service does not answer" in answer.err


@pytest.mark.usefixtures("world")
def test_what_is_under_way_is_told(muster: Run) -> None:
    out = muster("deployments", "show", NAME).out
    assert "r3 at 5 % since" in out
    assert "asked for by flights.deploy, manual" in out
    assert [line.split()[4] for line in out.splitlines() if line[1:2].isdigit()] == ["5", "95", "0"]
    assert "@3 at 5 %" in muster("deployments", "ls").out


@pytest.fixture
def driving(world: World, home: Path) -> Origin:
    """The `muster run` whose task drives the release that is under way; the store has just noted that it goes on."""
    run = Origin(instance="here", dag_id="flights", run_id="muster__1")
    status = world.deployment(NAME)
    release = replace(status.release, origin=replace(run, task_id="deploy"))
    world.shift(NAME, status.shares, token=status.token, release=release)
    FolderStore(home / "store").ledger.note_run(run, going=True)
    return run


@pytest.mark.usefixtures("driving")
def test_a_release_whose_run_has_died_says_how_to_go_on(muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has died" not in muster("deployments", "show", NAME).out
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 200)
    out = muster("deployments", "show", NAME).out
    assert "the run that drives it has died: `muster run flights --resume` goes on with it" in out


def test_a_release_whose_run_was_killed_on_this_machine_says_so_at_once(muster: Run, driving: Origin) -> None:
    """The store's note of the run counts for minutes more; its lock tells now."""
    notes = EmbeddedHome(settings=Settings.load(), dags=Path()).notes
    with notes.own(driving.run_id):
        assert "has died" not in muster("deployments", "show", NAME).out
    (notes.folder / f"{driving.run_id}.lock").write_text("4711")  # as a killed process leaves it
    out = muster("deployments", "show", NAME).out
    assert "the run that drives it has died: `muster run flights --resume` goes on with it" in out


def test_rollback_gives_the_traffic_back_and_says_what_serves(muster: Run, world: World) -> None:
    said = muster("deployments", "rollback", NAME, "--reason", "too many\x1b[2Jalarms").err
    assert said.splitlines() == [
        "line: r3 (lines/model@3) is rolled back",
        "r2 (lines/model@2) has 100 % of the traffic",
    ]
    assert world.called("r3").reason.endswith(r"at the command line: too many\x1b[2Jalarms")
    assert "r2 (lines/model@2) is rolled back" in muster("deployments", "rollback", NAME).err
    answer = muster("deployments", "rollback", NAME)
    assert (answer.code, "keeps no revision to go back to" in answer.err) == (1, True)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("asked", [("rollback", NAME), ("promote", NAME, "r2")])
def test_traffic_for_a_version_that_was_retired_is_warned_of(
    muster: Run, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    live = Lines.resolve
    monkeypatch.setattr(
        Lines, "resolve", lambda *asked: tuple(replace(one, retired="it leaks") for one in live(*asked))
    )
    said = " ".join(muster("deployments", *asked).err.split())
    assert "warning: lines/model@2 was retired: it leaks" in said
    assert "muster volumes reinstate lines/model@2" in said


@pytest.mark.parametrize("named", [(), ("r3",), ("lines/model@3",), ("volume://lines/model@3",)])
def test_promote_gives_everything_to_what_is_named_or_under_way(
    muster: Run, world: World, named: tuple[str, ...]
) -> None:
    said = muster("deployments", "promote", NAME, *named).err
    assert said.splitlines()[0] == "line: r3 (lines/model@3) has all of the traffic"
    assert world.deployment(NAME).shares == {"r3": 100}
    assert world.called("r2").kept


@pytest.mark.parametrize("command", ["promote", "rollback"])
def test_what_does_not_answer_yet_is_waited_for_and_said(
    muster: Run, world: World, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    looks = itertools.count(1)

    def pause(_: float) -> None:
        world.ready = next(looks) == 3

    world.ready = False
    monkeypatch.setattr("muster.cli.deployments.pause", pause)
    answer = muster("deployments", command, NAME)
    assert answer.code == 0
    assert re.search(r"which does not answer yet(: .*)?; waiting", answer.err)
    assert (next(looks), answer.err.count("waiting")) == (4, 1)


@pytest.mark.parametrize("command", ["promote", "rollback"])
def test_what_never_answers_is_not_said_to_serve(
    muster: Run, world: World, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    clock = itertools.count(0.0, 25.0)
    world.ready = False
    monkeypatch.setattr("muster.cli.deployments.pause", lambda _: None)
    monkeypatch.setattr("muster.cli.deployments.time.monotonic", lambda: next(clock))
    answer = muster("deployments", command, NAME)
    assert answer.code == 1
    assert "of the traffic" not in answer.err
    assert f"`muster deployments show {NAME} --watch` shows when it does" in answer.err


def test_promote_names_what_there_is(muster: Run, world: World) -> None:
    there = "there is r3 (lines/model@3), r2 (lines/model@2), r1 (lines/model@1)"
    assert there in muster("deployments", "promote", NAME, "r9").err
    promote(world, NAME, "r3", by="ann")
    assert "nothing is under way; name a revision" in muster("deployments", "promote", NAME).err


def test_rollback_of_what_never_was_names_what_there_is(world: World) -> None:
    with pytest.raises(NotFound, match="has no revision 'nope'; there is r3, r2, r1"):
        roll_back(world, NAME, by="ann", revision="nope")
    assert world.deployment(NAME).shares == {"r3": 5, "r2": 95}


def test_promote_says_what_became_of_a_revision_that_is_over(muster: Run, world: World) -> None:
    muster("deployments", "rollback", NAME)
    said = muster("deployments", "promote", NAME, "lines/model@3").err
    assert "r3 (lines/model@3) is refused: rolled back by " in said
    assert "there is r2 (lines/model@2), r1 (lines/model@1)" in said
    assert "muster run DAG --resume=strict" in said
    assert world.deployment(NAME).shares == {"r2": 100}


def test_watching_shows_the_last_seconds_until_it_is_ended(
    muster: Run, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)
    clock = itertools.count(0.0, 4.0)

    def pause(_: float) -> None:
        number = next(numbers)
        if number == 5:
            raise KeyboardInterrupt
        serving.counted = {"r2": Counts(requests=100 * number)}

    serving.counted = {"r2": Counts()}
    monkeypatch.setattr("muster.cli.deployments.pause", pause)
    monkeypatch.setattr("muster.cli.deployments.time.monotonic", lambda: next(clock))
    out = muster("deployments", "show", "flights", "--watch", "--json").out
    seen = [json.loads(line)["figures"]["r2"]["requests"] for line in out.splitlines()]
    assert seen == [0, 100, 200, 300, 300]


def test_what_another_release_left_is_shown_and_taken_away(muster: Run, home: Path) -> None:
    folder = home / "deployments" / "old"
    folder.mkdir(parents=True)
    (home / "store").mkdir()
    (folder / "state.json").write_text(
        '{"kind": "DeploymentState", "schema": 1, "name": "old", "serving": null}'
    )
    assert re.search(r"^old +down", muster("deployments", "ls").out, re.MULTILINE)
    (folder.parent / "older").mkdir()
    (folder.parent / "older" / "state.json").write_bytes((folder / "state.json").read_bytes())
    repaired = muster("deployments", "repair", "--all")  # one that cannot be repaired keeps no other from it
    assert repaired.code == 1
    assert re.findall(r"^muster: (old|older): ", repaired.err, re.MULTILINE) == ["old", "older"]
    assert repaired.err.count("another release of muster wrote it") == 2, "each error is told once"
    assert muster("deployments", "retire", "older").code == 0
    for words in (["repair"], ["repair", "old", "--all"]):
        assert "name one deployment, or give --all" in muster("deployments", *words).err
    shown = muster("deployments", "show", "old").out
    assert "another release of muster wrote it" in " ".join(shown.split())
    refused = muster("deployments", "rollback", "old")
    assert (refused.code, refused.error) == (1, None)
    assert "muster deployments retire old and deploy it again" in refused.err
    assert muster("deployments", "retire", "old").code == 0
    assert "no deployments yet" in muster("deployments", "ls").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--pause", ""], "deployment ''"),
        (["--resume", ""], "deployment ''"),
        (["--reason", "a test"], "give it with --pause NAME"),
        (["--resume", "flights", "--reason", "a test"], "give it with --pause NAME"),
        (["--resume", "flights", "--pause", "flights"], "not both"),
    ],
)
def test_what_is_paused_is_named(muster: Run, home: Path, words: list[str], told: str) -> None:
    (home / "store").mkdir(parents=True)
    refused = muster("deployments", "keep", *words)
    assert refused.code == 1
    assert told in " ".join(refused.err.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        (dumps(SavedDeployments())[:-5], "not JSON"),
        (dumps(Book(name="flights")), "expected a SavedDeployments, found 'Book'"),
        (None, "No such file"),
    ],
)
def test_what_is_no_export_is_refused_and_makes_nothing(
    muster: Run, home: Path, text: str | None, told: str
) -> None:
    if text is not None:
        (home.parent / "saved.json").write_text(text)
    refused = muster("deployments", "import", "saved.json")
    assert (refused.code, refused.error) == (1, None)
    said = " ".join(refused.err.split())
    assert said.startswith("muster: saved.json is not what `muster deployments export` writes")
    assert told in said
    assert not (home / "deployments").exists()


def saved_lost() -> str:
    """An export of two deployments, of which `lost` serves a version that no store has."""
    model = Pinned(address="volume://flights/model@1", digest="b3:" + "1" * 64)
    spec = DeploymentSpec(name="lost", model=model, image="serve", image_digest="b3:" + "2" * 64)
    live = (BookEntry(name="r1", spec=spec, since=1.0),)
    books = Book(name="lost", made=1, live=live, shares={"r1": 100}), Book(name="empty", made=4)
    return dumps(SavedDeployments(deployments=tuple(SavedDeployment(book=each) for each in books)))


@pytest.mark.parametrize(
    ("was", "is_now", "told"),
    [
        (
            '"live":[{"name":"r1"',
            '"live":[{"name":"../../../up"',
            "revision '../../../up': expected one of r1 to r1",
        ),
        ('"live":[{"name":"r1"', '"live":[{"name":"r2"', "revision 'r2': expected one of r1 to r1"),
        ('"spec":{"name":"lost"', '"spec":{"name":"other"', "revision r1 is of deployment 'other'"),
        ('"book":{"name":"empty"', '"book":{"name":"lost"', "deployment lost is there twice"),
    ],
)
def test_an_export_that_contradicts_itself_is_refused_and_makes_nothing(
    muster: Run, home: Path, was: str, is_now: str, told: str
) -> None:
    text = saved_lost()
    assert text.count(was) == 1
    (home.parent / "saved.json").write_text(text.replace(was, is_now))
    refused = muster("deployments", "import", "saved.json")
    assert (refused.code, refused.error) == (1, None)
    assert told in " ".join(refused.err.split())
    assert not (home / "deployments").exists()


def test_one_deployment_that_cannot_be_made_again_keeps_no_other_from_it(muster: Run, home: Path) -> None:
    (home / "store").mkdir(parents=True)
    (home.parent / "saved.json").write_text(saved_lost())
    done = muster("deployments", "import", "saved.json")
    assert done.code == 1
    assert re.findall(r"^muster: lost: (.*)", done.err, re.MULTILINE)
    assert "flights/model" in done.err
    assert "empty: " in done.err
    names = [
        each.book.name for each in loads(SavedDeployments, muster("deployments", "export").out).deployments
    ]
    assert names == ["empty"]


def test_a_pause_that_ends_while_it_is_read_is_none(home: Path) -> None:
    folder, over = DeploymentFolder(home, "flights"), threading.Event()
    folder.path.mkdir(parents=True)

    def pause_and_resume() -> None:
        while not over.is_set():
            (folder.path / "paused").write_text("a test")
            (folder.path / "paused").unlink()

    other = threading.Thread(target=pause_and_resume)
    other.start()
    try:
        assert {folder.paused for _ in range(20_000)} <= {"", "a test"}
    finally:
        over.set()
        other.join()

"""Bad revisions of every kind, and processes that die at any point of a release, under a real Airflow with users."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.airflow.released import NAME, Released, events, short, why
from tests.contract.test_deployments import servers
from tests.serving import onnx_graph
from tests.serving.bad_lines import answers_500, crashes, eats_memory, other_shape, slow
from tests.site import Site
from tests.waiting import eventually

from muster.core.deployment import RevisionState
from muster.core.shipped import shipped
from muster.volumes.tree import remove

pytestmark = pytest.mark.soak

SMOKE = '[{"name": "two", "inputs": {"x": [2]}}]'
DAGS = """
    from datetime import datetime, timedelta
    from airflow.sdk import dag
    from muster.airflow import DeployOperator, Resources, Rules

    START = dict(schedule=None, start_date=datetime(2024, 1, 1), params={"model": ""})
    SECOND = timedelta(seconds=1)
    COMMON = dict(
        task_id="deploy", name="line", model="{{ params.model }}", retries=30, retry_delay=SECOND,
        load_timeout=20 * SECOND, rules=Rules(fewest_requests=20),
    )
    QUIET = dict(COMMON, rules=Rules(max_p95_ratio=None))


    @dag(**START)
    def first():
        DeployOperator(**QUIET)


    @dag(**START)
    def usual():
        DeployOperator(**COMMON, steps=[20, 100], hold=60 * SECOND)


    @dag(**START)
    def alone():  # in a server of its own
        DeployOperator(**QUIET, steps=[20, 100], hold=600 * SECOND, image="alone")


    @dag(**START)
    def steps():
        DeployOperator(**QUIET, steps=[5, 25, 100], hold=3 * SECOND)


    first(), usual(), alone(), steps()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        folder = site.write("releases", DAGS)
        (folder / "smoke.json").write_text(SMOKE)
        (folder / "images" / "alone").mkdir(parents=True)
        lock = (shipped("images") / "serve" / "requirements.txt").read_text()
        (folder / "images" / "alone" / "requirements.txt").write_text(f"{lock}# the same packages\n")
        site.set("muster", inline_wait=5)
        site.up()
        yield site


@pytest.fixture(scope="module")
def released(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Released:
    return Released(site).begun("first", tmp_path_factory.mktemp("first"))


def add(released: Released, folder: Path) -> str:
    """Commit what a folder holds, which no other version does."""
    (folder / "note.txt").write_text(secrets.token_hex())
    return str(released.store.add("lines/model", folder).address)


@pytest.mark.parametrize(
    ("make", "words", "within"),
    [
        (crashes, "model.onnx", 0),
        (answers_500, "output 'y': the model answered 60000.0; expected -1000 to 5000", 0),
        (other_shape, "smoke request 'two': input 'x' is unknown; this model takes", 0),
        (eats_memory, "the model failed: ", 0),
        (slow, "95 % of its requests took up to", 20),
    ],
)
def test_a_bad_revision_is_refused_or_taken_back_and_the_task_says_why(
    site: Site, released: Released, tmp_path: Path, make: Callable[[Path], Path], words: str, within: int
) -> None:
    good, bad, told = released.champion, add(released, make(tmp_path)), len(events(site))
    with released.users() as users:
        run = site.trigger("usual", {"model": bad})
        assert site.wait("usual", run) == "failed"
    first, second, third, fourth = why(site, "usual", run)
    assert first == f"release rolled back: {short(bad)} as line"
    assert words in second
    assert second.startswith(f"at {within} % of the traffic, ") == bool(within)
    assert third == f"{short(good)} serves 100 % of the users"
    assert fourth == "all of it: muster deployments show line"
    assert users.failed == {}
    assert len(events(site)) == told
    assert int(site.task("usual", run, "deploy")["try_number"]) == 1


def test_one_that_loads_for_ever_is_refused_after_its_time(
    site: Site, released: Released, tmp_path: Path
) -> None:
    folder = onnx_graph.write_line(tmp_path / "line")
    (folder / "signature.json").unlink()
    endless = add(released, folder)
    os.mkfifo(released.store.path(endless) / "signature.json")
    with released.users() as users:
        run = site.trigger("usual", {"model": endless})
        assert site.wait("usual", run) == "failed"
    assert why(site, "usual", run)[1] == "it was not loaded and tried within 20 s (load_timeout)"
    assert users.failed == {}


def test_one_that_dies_with_traffic_is_taken_back(site: Site, released: Released, tmp_path: Path) -> None:
    good, bad = released.champion, released.version(tmp_path, slope=3.5)
    before = set(servers(NAME))
    with released.users() as users:
        run = site.trigger("alone", {"model": bad})
        eventually(lambda: released.share(bad) == 20 and len(users.answers) == 2)
        (server,) = set(servers(NAME)) - before
        os.kill(server, signal.SIGKILL)
        assert site.wait("alone", run) == "failed"
    assert why(site, "alone", run)[1].startswith("at 20 % of the traffic, ")
    assert released.champion == good
    assert users.failed == {}


def test_a_version_that_is_gone_is_named(site: Site, released: Released, tmp_path: Path) -> None:
    good, gone = released.champion, released.version(tmp_path, slope=3.7)
    version = released.store.path(gone)
    remove(version)
    run = site.trigger("usual", {"model": gone})
    assert site.wait("usual", run) == "failed"
    assert short(gone) in "\n".join(site_log(site, "usual", run))
    assert released.champion == good


def test_what_is_marked_failed_is_taken_back(site: Site, released: Released, tmp_path: Path) -> None:
    good, new = released.champion, released.version(tmp_path, slope=3.9)
    run = site.trigger("alone", {"model": new})
    site.wait_task("alone", run, "deploy", ("deferred",))
    eventually(lambda: released.share(new) == 20 and begun(released.log("alone", run)))
    site.mark("alone", run, "deploy", "failed")
    eventually(lambda: released.status.release is None)
    found = released.status.revision(new)
    assert found is not None
    assert (found.state, found.reason) == (RevisionState.REFUSED, "its task was ended by hand")
    assert released.champion == good


def begun(log: str) -> bool:
    """Whether the triggerer has started the task's trigger, by its log: before that no process hears of a mark."""
    return any(line.startswith("trigger ") and line.endswith(" starting") for line in log.splitlines())


POINTS = [  # who dies, and when its version has so many percent of the users
    ("task", 0),
    ("task", 5),
    ("scheduler", 0),
    ("worker", 5),
    ("scheduler", 5),
    ("triggerer", 5),
    ("worker", 25),
    ("triggerer", 25),
    ("scheduler", 25),
    ("triggerer", 100),
]


def test_killed_at_ten_points_every_release_goes_on(site: Site, released: Released, tmp_path: Path) -> None:
    done: list[str] = []
    with released.users() as users:
        for number, (who, percent) in enumerate(POINTS):
            new = released.version(tmp_path / str(number), slope=4.0, offset=number)
            run = site.trigger("steps", {"model": new})
            struck = eventually(partial(strike, site, released, who, new, percent, run))
            done.append(f"{struck} of {who} at {percent} %")
            assert site.wait("steps", run, seconds=300) == "success", done
            assert released.champion == new, done
    assert users.failed == {}, done
    print(f"{users.sent} requests, none lost; killed: {', '.join(done)}")


def strike(site: Site, released: Released, who: str, model: str, percent: int, run: str) -> int:
    """Kill those that there are once the version has its percent and is still under way; how many there were."""
    assert site.run_state("steps", run) not in ("success", "failed"), (
        "it was over before a process could be killed"
    )
    status = released.status
    mine, release = status.revision(model), status.release
    if mine is None or release is None or (release.revision, mine.percent) != (mine.name, percent):
        return 0
    targets: dict[str, Callable[[], list[int]]] = {"task": site.tasks, "worker": site.workers}
    found = targets[who]() if who in targets else [pid for pid in [site.component(who)] if pid]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)


def site_log(site: Site, dag_id: str, run: str) -> list[str]:
    """The last lines of a task's log as the page shows them."""
    from tests.e2e import faulty

    try_number = int(site.task(dag_id, run, "deploy")["try_number"])
    return faulty.shown(site, run, "deploy", dag=dag_id, try_number=try_number)[-12:]

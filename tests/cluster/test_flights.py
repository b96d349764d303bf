"""The reference pipeline, unchanged, on the cluster: from Airflow's trigger to a prediction, and to the next version."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.careful import WAITS, answer, careful
from tests.browser import person
from tests.cluster import author, deploying, kubectl, left, serving
from tests.cluster.deploying import Served
from tests.cluster.places import places, ran
from tests.docs.page import ROOT
from tests.e2e.author import MUSTER, Author, stages
from tests.serving.load import Load, lost
from tests.site import ENDED, Site
from tests.waiting import eventually

from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 1800  # a training on a machine that other things share
LEARNED = ("features", "validate", "train", "gate")
NAME, MODEL = "flights", "volume://flights/model@1"
REQUESTS = json.loads((ROOT / "dags" / "flights" / "smoke.json").read_text())
WHERE = "flights on the cluster, from Airflow's trigger: where each stage ran, its versions, its metrics"
RELEASED = "the next version of flights on the cluster: its steps, what users lost"
Show = Callable[[str, object], None]


@dataclass(frozen=True)
class Flown:
    """A run of ``flights`` in Airflow, and of the Dag that makes its model's card.

    :param results: what each task returned.
    :param nodes: where the pods of each job ran.
    :param seconds: from the trigger to a model that is served, and to its card.
    """

    results: Mapping[str, Mapping[str, Any]]
    nodes: Mapping[str, set[str]]
    seconds: tuple[float, float]

    def on(self, task: str) -> set[str]:
        return self.nodes.get(self.results[task].get("job_id", ""), set())


@dataclass(frozen=True)
class Alone:
    """The same Dag on one machine. :param results: of its stages. :param model: the folder of its model."""

    results: Mapping[str, Mapping[str, Any]]
    model: Path


@dataclass(frozen=True)
class Canary:
    """A version that has its first share, and waits for a person. :param users: who ask all the while."""

    model: str
    run_id: str
    users: Load


@pytest.fixture(scope="module")
def site(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An Airflow with the Dags as they are, and a connection that says which cluster, and that it serves."""
    folder = tmp_path_factory.mktemp("site")
    copy_dags(folder)
    connection = author.connection(served.of, **served.written())
    with Site(folder) as site:
        site.write("careful", careful(NAME))
        site.set("muster", connection="gpus", instance="flights")
        site.up(seconds=300)
        site.airflow_command("connections", "add", "gpus", *connection)
        yield site


@pytest.fixture(scope="module")
def flown(served: Served, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Flown:
    with places(served.of, tmp_path_factory.mktemp("places") / "places") as file:
        began = time.monotonic()
        results = succeeds(site, "flights", site.trigger("flights"))
        there = time.monotonic()
        runs = "dags/flights_report/dagRuns"
        # The model itself asks for its card.
        (told,) = eventually(lambda: site.ask_api("GET", runs)["dag_runs"])
        results |= succeeds(site, "flights_report", told["dag_run_id"])
        seconds = (there - began, time.monotonic() - began)
    return Flown(results, ran(file), seconds)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("alone")
    copy_dags(folder)
    with Author(folder) as laptop:
        done = subprocess.run(
            [MUSTER, "run", "flights", "--json"],
            cwd=folder,
            env=laptop.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        )
    return Alone(stages(json.loads(done.stdout)), FolderStore(laptop.home / "store").path(MODEL))


@pytest.fixture(scope="module")
def canary(served: Served, site: Site, flown: Flown, alone: Alone) -> Iterator[Canary]:
    """What one machine learned, beside what the cluster learned and serves."""
    assert flown.results["deploy"]["version"] == MODEL
    (first,) = served.store.resolve(MODEL)
    model = served.store.add(first.volume, alone.model, partition=first.partition).address
    assert model != MODEL
    with Load(serving.PORT, f"/v1/models/{NAME}:predict", {"inputs": REQUESTS[0]["inputs"]}) as users:
        run_id = site.trigger("careful", {"model": model})
        seen = site.wait_task("careful", run_id, "approve", (*WAITS, *ENDED), seconds=SECONDS)
        assert seen["state"] in WAITS, site.task_log("careful", run_id, "canary")
        yield Canary(model, run_id, users)


def copy_dags(folder: Path) -> None:
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))


def succeeds(site: Site, dag_id: str, run_id: str) -> dict[str, Mapping[str, Any]]:
    """Return what each task of a run returned, which comes to a good end."""
    state = site.wait(dag_id, run_id, seconds=SECONDS)
    tasks = site.states(dag_id, run_id)
    failed = [name for name, how in tasks.items() if how == "failed"]
    assert state == "success", "\n".join(f"{name}:\n{site.task_log(dag_id, run_id, name)}" for name in failed)
    return {name: site.xcom(dag_id, run_id, name) for name in tasks}


def steps(site: Site, run_id: str, task: str) -> list[str]:
    """What a release has said of its shares, once each: a try that follows on another holds its share anew."""
    tries = range(1, int(site.task("careful", run_id, task)["try_number"]) + 1)
    logs = [site.task_log("careful", run_id, task, try_number=number) for number in tries]
    told = [line for log in logs for line in log.splitlines() if " of the traffic" in line]
    return list({line.partition(" (")[0]: line for line in told}.values())


def ask(flown: Flown) -> float:
    """Return what a user is answered by the command that the deploy task names."""
    asked = shlex.split(flown.results["deploy"]["curl"])
    answered = subprocess.run(asked, capture_output=True, text=True, check=True)
    (probability,) = json.loads(answered.stdout.partition("\n\n")[2])["outputs"]["probability"]
    return float(probability)


def test_flights_on_the_cluster_learn_what_they_learn_on_one_machine(
    served: Served, flown: Flown, alone: Alone, record_property: Show
) -> None:
    for name in LEARNED:
        done, on = flown.results[name], ", ".join(sorted(flown.on(name)))
        record_property(WHERE, f"{name}: {on or 'no pod'}; {done.get('versions')}; {done['metrics']}")
    assert flown.on("features") == flown.on("validate") == {"cpu-0"}
    assert flown.on("train") <= {"a100-0", "a100-1", "k80-0"}
    assert flown.on("train")
    kubectl.until("nothing is left", lambda: not left.of_anybody(served.of))
    for name in LEARNED:
        assert alone.results[name]["metrics"] == flown.results[name]["metrics"], name


def test_a_user_is_answered_through_the_gateway_by_a_server_on_a_cpu_node(
    served: Served, flown: Flown, record_property: Show
) -> None:
    status = served.deployments().deployment(NAME)
    assert status.champion is not None
    pods = deploying.pods(served.of, NAME, status.champion.name)
    nodes = {pod["spec"]["nodeName"] for pod in pods}
    bounds, said = REQUESTS[0]["expect"]["probability"], ask(flown)
    record_property(WHERE, f"deploy: {', '.join(nodes)}; {MODEL} at {status.url}, which answers {said:.4f}")
    assert nodes == {"cpu-0"}
    assert bounds["min"] <= said <= bounds["max"]


def test_the_model_has_its_card(served: Served, flown: Flown, record_property: Show) -> None:
    (card,) = flown.results["card"]["versions"]["cards"]
    on, (deployed, carded) = ", ".join(sorted(flown.on("card"))), flown.seconds
    record_property(WHERE, f"card: {on}; {card}; {flown.results['card']['metrics']}")
    record_property(
        WHERE, f"{deployed:.0f} s from the trigger to a model that is served, {carded:.0f} s to its card"
    )
    assert flown.on("card") == {"cpu-0"}
    assert "card.html" in served.store.manifest(card)
    assert MODEL in [each.address for each in served.store.record(card).inputs["models"]]


def test_the_page_shows_the_next_version_while_it_is_a_canary(site: Site, canary: Canary) -> None:
    says = f"{canary.model.removeprefix('volume://')} is held at 5 %"
    with person.browser() as browser:
        page = person.log_in(browser, site).new_page()
        person.see_canary(page, site, NAME, says=says, name="canary-on-the-cluster.png")


def test_a_person_agrees_and_it_has_everything_step_by_step(
    served: Served, site: Site, flown: Flown, canary: Canary, record_property: Show
) -> None:
    before = ask(flown)
    answer(site, canary.run_id, "Approve")
    assert site.wait("careful", canary.run_id, seconds=SECONDS) == "success"
    told = [*steps(site, canary.run_id, "canary"), *steps(site, canary.run_id, "full")]
    sent = canary.users.sent
    eventually(lambda: canary.users.sent > sent + 100)
    for line in (*told, f"{lost(canary.users)} requests"):
        record_property(RELEASED, line)
    shares = [line.partition(": ")[2].partition(" ")[0] for line in told]
    assert shares == ["5", "25", "100", "all"], told
    assert canary.users.failed == {}
    status = served.deployments().deployment(NAME)
    there = {one.model.address: (one.percent, one.kept) for one in status.revisions}
    assert there == {MODEL: (0, True), canary.model: (100, False)}
    assert ask(flown) == pytest.approx(before, abs=1e-6), "what was learned is the same"

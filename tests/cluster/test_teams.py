"""Two teams and three persons share a cluster's cards, by the objects that the chart makes of `teams` and by the page for Kueue.

All of them have gangs waiting the whole time. A second here stands for some minutes at a site, so Kueue's half-life and interval of
the page are shortened likewise. What Kueue admitted is read from its Workloads; `muster usage` has to say the same.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import cluster, kubectl
from tests.cluster.chart import NAME, VALUES, Release, release
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.replay import Held, Recorder, admissions
from tests.cluster.test_command import Laptop
from tests.docs.page import DOCS, File, steps

from muster.airflow.teams import DagFacts
from muster.backends.base import Backend
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.status import JobState, JobStatus
from muster.core.tally import Tally
from muster.ext.teams.document import Document, read
from muster.images.folders import find_image, put_image

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

PAGE = DOCS / "howto" / "teams.md"
SCALE = 300  # seconds of a site for one second here
CARDS, OWN, CARDS_OF_A_POD = 16, 2, 2
GANGS = 60  # that have ended; half as many more are submitted
_NAMESPACE = f"--namespace={NAME}"


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user of a team. :param pods: of each gang. :param seconds: that each pod computes. :param gangs: submitted at once, more than run."""

    name: str
    team: str
    pods: int
    seconds: float
    gangs: int


PERSONS = (
    Person(name="ana", team="vision", pods=2, seconds=16, gangs=6),
    Person(name="eve", team="vision", pods=1, seconds=8, gangs=10),
    Person(name="ben", team="speech", pods=1, seconds=12, gangs=10),
)


def values(weight: int) -> dict[str, Any]:
    """Each team has two cards of its own, and borrows what is left of the site's twelve by its weight."""

    def team(name: str, gpus: int) -> dict[str, Any]:
        quotas = [{"flavor": f"{NAME}-a100", "cpu": 16, "memory": "16Gi", "gpus": gpus}]
        return {"name": name, "cohort": NAME, "quotas": quotas}

    queues = {
        **VALUES["queues"],
        "queueingStrategy": "StrictFIFO",
        "flavors": [{"name": f"{NAME}-a100", "gpuClass": "gpu-a100"}],
        "teams": [team(NAME, CARDS - 2 * OWN), team("vision", OWN), team("speech", OWN)],
    }
    persons = {each.name: f"vision-{each.name}" for each in PERSONS if each.team == "vision"}
    teams = {
        "vision": {"queue": "vision", "volumes": "sight", "users": persons, "weight": weight},
        "speech": {"queue": "speech", "volumes": "sound"},
    }
    return {"queues": queues, "teams": {"teams": teams}}


@contextmanager
def kueue_of_the_page(of: Layout) -> Iterator[None]:
    """Have Kueue as the page tells its administrator, in the time of this replay."""
    (said,) = [
        each.text for each in steps(PAGE) if isinstance(each, File) and "controller_manager" in each.path
    ]
    added = yaml.safe_load(said)
    for name in ("usageHalfLifeTime", "usageSamplingInterval"):
        number, unit = re.fullmatch(r"(\d+)([hm])", added["admissionFairSharing"][name]).groups()
        added["admissionFairSharing"][name] = f"{int(number) * {'h': 3600, 'm': 60}[unit] / SCALE:g}s"
    file = of.root / "kueue" / "config.json"
    before = file.read_text()
    try:
        file.write_text(json.dumps({**json.loads(before), **added}))
        cluster.restart(of, "kueue")
        yield
    finally:
        file.write_text(before)
        cluster.restart(of, "kueue")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("chart")
    with kueue_of_the_page(layout()), release(layout(), folder) as found:
        yield found


def document(installed: Release, folder: Path) -> Document:
    """Return the document that Airflow's pods would have."""
    said = kubectl.get(installed.layout, "configmap", f"{NAME}-teams", _NAMESPACE)["data"]["teams.toml"]
    (folder / "teams.toml").write_text(said)
    return read(folder / "teams.toml")


@dataclass
class Crowd:
    """Persons who have gangs waiting until it is over. :param jobs: whose each gang is, and `states` how it is."""

    backend: Backend
    teams: Document
    image: str
    hold: Callable[[], None]
    over: bool = False
    jobs: dict[str, Person] = field(default_factory=dict)
    states: dict[str, JobStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers, self._run = count(), secrets.token_hex(2)

    @property
    def ended(self) -> list[JobStatus]:
        return [each for each in self.states.values() if each.state.ended]

    async def run(self, held: Callable[[str], int], gangs: int) -> tuple[float, float]:
        """Let vision have all cards, and then speech come. Return when that was, and when it was over."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))  # one thread for each look
        persons = [asyncio.create_task(self._person(each)) for each in PERSONS if each.team == "vision"]
        await until(lambda: held("vision") == CARDS, persons)
        came = time.time()
        persons += [asyncio.create_task(self._person(each)) for each in PERSONS if each.team == "speech"]
        await until(lambda: len(self.ended) >= gangs, persons)
        self.over, at = True, time.time()
        self.hold()  # what runs goes on, and nothing that waits gets its cards while it is cancelled
        while going := [each for each in persons if not each.done()]:
            waits = [job_id for job_id, status in self.states.items() if status.state is JobState.QUEUED]
            await asyncio.gather(
                *(asyncio.to_thread(self.backend.cancel, job_id, wait=False) for job_id in waits)
            )
            await asyncio.wait(going, timeout=1.0)
        await asyncio.gather(*persons)
        return came, at

    async def _person(self, person: Person) -> None:
        await asyncio.gather(*(self._one_after_the_other(person) for _ in range(person.gangs)))

    async def _one_after_the_other(self, person: Person) -> None:
        while not self.over:
            job_id = f"{person.name}-{next(self._numbers)}-{self._run}"
            self.jobs[job_id] = person
            await asyncio.to_thread(self._submit, person, job_id)
            async for event in self.backend.watch(job_id):
                if event.status is not None:
                    self.states[job_id] = event.status

    def _submit(self, person: Person, job_id: str) -> None:
        """As a task of a Dag of the person's team does that the person triggered."""
        dag = DagFacts(dag_id=f"{person.name}-trains", tags=(f"team:{person.team}",), user=person.name)
        script = f"import time; time.sleep({person.seconds})"
        resources = Resources(cpus=0.05, memory_gib=0.125, gpus=CARDS_OF_A_POD, gpu_class=("gpu-a100",))
        spec = JobSpec(
            name=f"{dag.dag_id}.train",
            image="python",
            image_digest=self.image,
            roles=(Role(replicas=person.pods, command=("python", "-c", script), resources=resources),),
            grace_seconds=1.0,
            origin=Origin(dag_id=dag.dag_id, task_id="train", run_id=job_id),
        )
        tally = Tally(user=person.name, team=self.teams.of_dag(dag))
        self.backend.submit(self.teams.admit(dag, spec), job_id=job_id, tally=tally)


async def until(condition: Callable[[], bool], persons: Iterable[asyncio.Task[None]]) -> None:
    """Return once it holds; what went wrong with a person is raised at once."""
    while not condition():
        done, _ = await asyncio.wait(persons, timeout=0.5, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()


def stop(installed: Release, policy: str) -> None:
    """Have the teams' queues let nothing in, or all again."""
    for team in ("vision", "speech"):
        words = (
            "patch",
            "clusterqueue",
            team,
            "--type=merge",
            f'--patch={{"spec": {{"stopPolicy": "{policy}"}}}}',
        )
        kubectl.run(installed.layout, *words)


def card_seconds(times: Iterable[Held], *, since: float, until: float) -> float:
    return sum(max(0.0, min(each.until, until) - max(each.since, since)) * each.cards for each in times)


HEADING = (
    "weights  gangs  put back  s   who        card-s   part of  due    of it     usage: card-s  of Kueue's"
)


@pytest.mark.parametrize("weight", [1, 2])
def test_shares_on_a_replay(
    weight: int, installed: Release, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    installed.install(command="upgrade", **values(weight))
    began = time.time()
    with Recorder(installed.layout, namespace=NAME) as recorder, installed.backend() as backend:
        image = put_image(backend.store, find_image("python", [shipped("images")]))
        crowd = Crowd(backend, document(installed, tmp_path), image, partial(stop, installed, "Hold"))

        def held(team: str) -> int:
            now = time.time()
            found = admissions(recorder.samples, now=now)
            return sum(
                times[-1].cards
                for job_id, times in found.items()
                if times and times[-1].until == now and crowd.jobs[job_id].team == team
            )

        try:
            came, over = asyncio.run(crowd.run(held, GANGS))
        finally:
            with ThreadPoolExecutor(8) as threads:  # while there are some Kueue keeps the queues
                list(threads.map(backend.cancel, crowd.jobs))
            stop(installed, "None")
        kubectl.until("all cards are free", lambda: _none_is_left(backend, crowd, installed), seconds=180)
    found = admissions(recorder.samples, now=time.time())
    usage = used(installed, tmp_path, since=began)

    times = {
        each: [one for job, who in crowd.jobs.items() if who is each for one in found.get(job, ())]
        for each in PERSONS
    }
    put_back = sum(len(each) > 1 for each in found.values())
    off = {}

    def tell(who: str, mine: list[Held], all_of: list[Held], due: float, since: float) -> None:
        part = card_seconds(mine, since=since, until=over) / card_seconds(all_of, since=since, until=over)
        admitted = card_seconds(mine, since=began, until=time.time())
        told = sum(hours for key, hours in usage.items() if who in key) * 3600
        off[who] = (part / due - 1, told / admitted - 1)
        shares, usages = off[who]
        record = f"{weight}:1 {len(crowd.jobs):9} {put_back:8} {over - came:5.0f}   {who:8} {admitted:8.0f}"
        row = f"{record} {part:8.3f} {due:8.3f} {shares:+7.1%} {told:12.0f} {usages:+12.2%}"
        record_property(HEADING, row)

    everyone = [one for each in PERSONS for one in times[each]]
    for team, parts in (("vision", weight), ("speech", 1)):
        mine = [one for each in PERSONS if each.team == team for one in times[each]]
        due = (OWN + (CARDS - 2 * OWN) * parts / (weight + 1)) / CARDS
        tell(team, mine, everyone, due, came)
    for each in PERSONS:
        team = [one for other in PERSONS if other.team == each.team for one in times[other]]
        due = 1 / sum(other.team == each.team for other in PERSONS)
        tell(each.name, times[each], team, due, began)
    assert {status.state for status in crowd.ended} <= {JobState.SUCCEEDED, JobState.CANCELLED}
    assert len(crowd.ended) >= GANGS
    assert {who: share for who, (share, _) in off.items() if abs(share) > 0.1} == {}
    assert {who: told for who, (_, told) in off.items() if abs(told) > 0.01} == {}


def _none_is_left(backend: Backend, crowd: Crowd, installed: Release) -> bool:
    """Whether Kueue has none of them any more, and backend has seen so, as a triggerer does that looks all the time."""
    left = _workloads(installed)
    backend.statuses(crowd.jobs)
    return not left


def _workloads(installed: Release) -> list[Any]:
    return kubectl.get(installed.layout, "workloads.kueue.x-k8s.io", _NAMESPACE)["items"]


def used(installed: Release, folder: Path, *, since: float) -> dict[tuple[str, str], float]:
    """Return what `muster usage` says, by team and user, in hours of cards."""
    (folder / "token").write_text(installed.token())
    settings = {
        "namespace": NAME,
        "claim": f"{NAME}-store",
        "store_url": installed.url(),
        "token_file": "token",
        "kubeconfig": str(installed.kubeconfig("operator")),
        "image_prefix": "localhost",
    }
    words = ("--since", datetime.fromtimestamp(since, timezone.utc).isoformat(), "--json")
    answer = Laptop(folder, settings)("usage", "--by", "team,user", *words)
    assert answer.code == 0, answer.err
    return {(row["team"], row["user"]): row["gpu_hours_held"] for row in answer.json()["rows"]}

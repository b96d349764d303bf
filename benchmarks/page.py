"""The page's answers with 10,000 versions and 1,000 jobs, beside a bare FastAPI route that sends as much JSON.

``python -m benchmarks.page [--pairs N] [--versions N] [--jobs N] [--json]``

Both are routes of one api-server of Airflow's on loopback, so its middlewares, the session and HTTP
cost both the same; the bare route asks no other service and reads no file. "First" is the first request to a new
server, which has read none of the data yet. Its promise is a number of seconds above the bare route: the column
"by hand" is their sum.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.airflow.embedded.home import EmbeddedHome
from muster.core import wire
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.status import JobResult, JobState, JobStatus
from muster.volumes import manifest
from muster.volumes.base import Record
from muster.volumes.folder import FolderStore

DIGEST = "b3:" + "0" * 64
SMALL = 100  # volumes of ten versions beside the big one
MONTHS = 12
PAGES = {
    "first screen": "/muster/api/first",
    "jobs": "/muster/api/jobs",
    "jobs of a state, by name": "/muster/api/jobs?state=failed&text=train",
    "volumes": "/muster/api/volumes",
    "versions": "/muster/api/volumes/big/model",
    "newest of each partition": "/muster/api/volumes/big/model?by=partition",
    "versions of 200 metrics": "/muster/api/volumes/wide/model",
    "versions in the middle": "/muster/api/volumes/big/model?before=4000",
    "version and lineage": "/muster/api/version?address=big/model@5000",
    "two versions compared": "/muster/api/compare?version=big/model@5000&version=big/model@5001",
    "runs": "/muster/api/runs",
}
TIMES = 20.0
FIRST_MS = 1000.0
WIDE, METRICS = 60, 200  # versions of a volume, and the metrics of each
P95_MS, PAINTED_MS = 300.0, 1500.0
LOOKS = 100


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("HOME", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(Path(options.serve[0]), int(options.serve[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="muster-page-") as folder:
        home = Path(folder) / ".muster"
        fill(FolderStore(home / "store"), versions=options.versions, jobs=options.jobs)
        ratios = measure(home, pairs=options.pairs)
    title = f"the page with {options.versions:,} versions and {options.jobs:,} jobs"
    return show(title, ratios, as_json=options.json)


def measure(home: Path, *, pairs: int) -> list[Ratio]:
    """Return two ratios for each page: of the first request, and of the following ones."""
    ratios = []
    with running(home) as server:
        server.milliseconds("/bare/100")  # what Airflow loads with its first request is not the page's
        for name, path in PAGES.items():
            first = server.milliseconds(path)
            allowed = server.milliseconds(server.bare(path)) + FIRST_MS
            ((base, ours),) = compare(
                lambda p=path: [server.milliseconds(server.bare(p))],
                lambda p=path: [server.milliseconds(p)],
                pairs=pairs,
            )
            ratios += [
                ratio(name, base, ours, unit="ms", limit=TIMES),
                ratio("  first, to bare + 1 s", [allowed], [first], unit="ms", limit=1),
            ]
        slow = sorted(server.milliseconds(PAGES["first screen"]) for _ in range(LOOKS))[LOOKS * 95 // 100]
        ratios.append(ratio("first screen's p95, to 300 ms", [P95_MS], [slow], unit="ms", limit=1))
        painted = server.painted()
        if painted:
            ratios.append(
                ratio(
                    "painted in a browser, to 1.5 s", [PAINTED_MS] * len(painted), painted, unit="ms", limit=1
                )
            )
    return ratios


class Server:
    """A running api-server, and one connection to it, as a browser has."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._url, self._token = f"http://127.0.0.1:{port}", token
        self._headers = {"Cookie": f"_token={token}"}
        self._sizes: dict[str, int] = {}

    def milliseconds(self, path: str) -> float:
        """Send one request, read the whole answer, and return the milliseconds."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}: {body[:200]!r}")
        self._sizes[path] = len(body)
        return took * 1000

    def painted(self, *, times: int = 5) -> list[float]:
        """How long a browser without a cache takes until what runs is seen; empty where there is no browser."""
        from tests.browser.chromium import NoChromium, find

        try:
            chromium = find()
        except NoChromium as error:
            print(f"no browser, so nothing is painted: {error}", file=sys.stderr)
            return []
        took = []
        with chromium.browser() as browser:
            for _ in range(times):
                context = browser.new_context()
                context.add_cookies([{"name": "_token", "value": self._token, "url": self._url}])
                page = context.new_page()
                began = time.perf_counter()
                page.goto(f"{self._url}/muster/", wait_until="commit")
                page.get_by_role("heading", name="Newest runs").wait_for()
                took.append((time.perf_counter() - began) * 1000)
                context.close()
        return took

    def bare(self, path: str) -> str:
        """Return the bare route that sends as many bytes as the last answer to `path` had."""
        return f"/bare/{self._sizes[path]}"


@contextmanager
def running(home: Path) -> Iterator[Server]:
    """Run a new api-server over `home` while the block runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home.parent / "server.log"
    command = [sys.executable, "-m", "benchmarks.page", "--serve", str(home), str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)
    try:
        assert process.stdout is not None
        token = next((line[6:].strip() for line in process.stdout if line.startswith("token ")), None)
        if token is None:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        _await(port, deadline=time.monotonic() + 60)
        yield Server(port, token)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await(port: int, *, deadline: float) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # the interval of attempts, until the deadline above


def serve(home: Path, port: int) -> None:
    """Run an api-server with the page and the bare route, and print a session."""
    dags = home.parent / "dags"
    dags.mkdir(exist_ok=True)
    EmbeddedHome(settings=Settings(home=home, cache=Settings.load().cache), dags=dags).enter()
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = "admin:ADMIN"
    os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = "only for this benchmark, " * 4
    import uvicorn
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    bare = FastAPI()

    @bare.get("/{size}")
    def route(size: int) -> JSONResponse:
        return JSONResponse({"x": "x" * max(0, size - len('{"x":""}'))})

    app = create_app("core")
    app.mount("/bare", bare)
    app.router.routes.insert(
        0, app.router.routes.pop()
    )  # before Airflow's own routes, which match every path
    print(
        "token",
        get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="admin", role="ADMIN")),
        flush=True,
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def fill(store: FolderStore, *, versions: int, jobs: int) -> None:
    """Write versions and jobs as commits leave them, without the syncs of a real one."""
    small = min(versions // 2, SMALL * 10)
    for n in range(small):
        _version(store, f"small/volume-{n // 10:03d}", n % 10 + 1, inputs=())
    months = [_version(store, "big/features", n + 1, inputs=()) for n in range(MONTHS)]
    for n in range(versions - small - MONTHS):
        _version(store, "big/model", n + 1, inputs=(*months[: n % MONTHS + 1],))
    for n in range(WIDE):
        _version(store, "wide/model", n + 1, inputs=(), metrics={f"m{k}": k / 7 for k in range(METRICS)})
    for n in range(jobs):
        _job(store, n)


def _version(
    store: FolderStore,
    volume: str,
    number: int,
    *,
    inputs: tuple[Pinned, ...],
    metrics: dict[str, float] | None = None,
) -> Pinned:
    folder = store.layout.version(volume, number)
    (folder / "data").mkdir(parents=True)
    data = f"{volume}@{number}".encode()
    (folder / "data" / "part-0").write_bytes(data)
    text = manifest.render(
        [manifest.Entry("part-0", manifest.digest_of(data).removeprefix("b3:"), len(data))]
    )
    digest = text.splitlines()[0].decode()
    job_id = f"{volume.replace('/', '-')}-{number}"
    record: dict[str, Any] = {
        "inputs": {"features": inputs},
        "params": {"epochs": 5, "learning_rate": 0.001},
        "metrics": metrics or {"auc": 0.7 + number % 100 / 1000, "loss": 0.3, "rows": 27_000.0},
        "partition": f"2013-{number % MONTHS + 1:02d}",
        "origin": _origin(number),
    }
    whole = Record(
        volume=volume,
        number=number,
        digest=digest,
        created=time.time(),
        job_id=job_id,
        output="model",
        **record,
    )
    (folder / "MANIFEST").write_bytes(text)
    (folder / "RECORD.json").write_text(wire.dumps(whole))
    store.layout.commit(job_id).write_text(json.dumps({"outputs": {"model": [[volume, number]]}, "at": 0}))
    return Pinned(address=whole_address(volume, number), digest=digest, partition=whole.partition)


def whole_address(volume: str, number: int) -> str:
    """The pinned address of a version."""
    return f"volume://{volume}@{number}"


def _job(store: FolderStore, number: int) -> None:
    features = Pinned(address=whole_address("big/features", 1), digest=DIGEST)
    spec = JobSpec(
        name=f"dag_{number % 20}.train",
        image="train",
        image_digest=DIGEST,
        roles=(Role(replicas=2, entrypoint="flights.train:train"),),
        inputs={"features": Input(versions=(features,))},
        outputs={"model": OutputTarget(volume="big/model")},
        params={"epochs": 5, "learning_rate": 0.001},
        origin=_origin(number),
    )
    state = JobState.FAILED if number % 10 == 0 else JobState.SUCCEEDED
    status = JobStatus(
        job_id=f"train-{number:04d}",
        state=state,
        submitted=time.time(),
        started=time.time(),
        ended=time.time(),
        result=JobResult(outputs={"model": (whole_address("big/model", number + 1),)}, metrics={"auc": 0.7}),
    )
    folder = store.layout.job(status.job_id)
    folder.mkdir()
    (folder / "spec.json").write_text(wire.dumps(spec))
    (folder / "status.json").write_text(wire.dumps(status))


def _origin(number: int) -> Origin:
    return Origin(instance="benchmark", dag_id=f"dag_{number % 20}", run_id=f"run_{number}", task_id="train")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One act of a release, in a process of its own: ``python act.py FOLDER ACT …``, with that release on the import path.

What it uses is in both releases. The answer is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from both import Input, Output, machine_backend

from muster.backends.base import Backend
from muster.core.errors import MusterError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.shipped import shipped

GO = "go"
WAIT = (
    "import os, pathlib, time\n"
    "rank = os.environ['MUSTER_RANK']\n"
    "pathlib.Path('{outputs.made}', rank).write_text('rank ' + rank)\n"
    "print('up', rank, flush=True)\n"
    "while not pathlib.Path('GO').exists(): time.sleep(0.05)\n"
)


def submit(backend: Backend, folder: Path, job_id: str, address: str) -> str:
    """Start a gang of two that waits for the file ``go`` in `folder`."""
    command = ("python", "-c", WAIT.replace("GO", str(folder / GO)))
    role = Role(name="main", replicas=2, command=command, resources=Resources(memory_gib=0.2))
    job = JobSpec(
        name="two.releases",
        image="python",
        image_digest=backend.store.put(shipped("images") / "python", ["requirements.txt"]),
        roles=(role,),
        inputs={"rows": Input(versions=(backend.store.resolve(address)[0].pinned,))},
        outputs={"made": Output(volume="two/made")},
    )
    backend.submit(job, job_id=job_id, owner="try-1")
    return job_id


def look(backend: Backend, _: Path, job_id: str) -> str:
    """Return a job's state."""
    return backend.status(job_id).state.value


def end(backend: Backend, folder: Path, job_id: str) -> dict[str, object]:
    """Let a gang end, follow it to its end, and return what it came to."""
    (folder / GO).touch()

    async def follow() -> list[str]:
        return [line async for event in backend.watch(job_id) for line in event.lines]

    lines = asyncio.run(asyncio.wait_for(follow(), timeout=120))
    status = backend.status(job_id)
    made = status.result.outputs["made"] if status.result is not None else ()
    return {"state": status.state.value, "lines": sorted(lines), "made": list(made)}


def cancel(backend: Backend, _: Path, job_id: str) -> str:
    """End a job and return its state."""
    backend.cancel(job_id)
    return backend.status(job_id).state.value


def read(backend: Backend, _: Path, address: str) -> dict[str, object]:
    """Return a version's files and the job that made it."""
    data = backend.store.path(address)
    texts = {path.name: path.read_text() for path in sorted(data.iterdir())}
    return {"files": texts, "job": backend.store.record(address).job_id}


def versions(backend: Backend, _: Path, volume: str) -> list[str]:
    """Return the addresses of a volume's versions."""
    return [version.address for version in backend.store.versions(volume)]


ACTS = {each.__name__: each for each in (submit, look, end, cancel, read, versions)}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        answer = ACTS[sys.argv[2]](machine_backend(Settings.load()), folder, *sys.argv[3:])  # type: ignore[operator]
    except MusterError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))

"""A script of TensorFlow's own strategy as a gang of two, on one machine; on a cluster: tests/cluster/test_gangs.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.keras.reference import SCRIPT, losses

from muster.backends.base import Backend
from muster.backends.local.place import MachinePlace
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.images.folders import find_image, image_folders, put_image

SECONDS = 600.0  # the image may have to be built

pytestmark = [pytest.mark.slow, pytest.mark.data]


async def watch(backend: Backend, job_id: str) -> list[str]:
    return [line async for event in backend.watch(job_id) for line in event.lines]


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    settings = Settings.load()
    backend = Backend(MachinePlace(Settings(home=tmp_path / "home", cache=settings.cache)))
    role = Role(
        replicas=2, command=("python", "script.py", "{outputs.out}"), resources=Resources(memory_gib=1.5)
    )
    job = JobSpec(
        name="keras.train",
        image="keras",
        image_digest=put_image(backend.store, find_image("keras", image_folders(settings))),
        launcher=Launcher.TENSORFLOW,
        roles=(role,),
        code=backend.store.put(SCRIPT.parent, [SCRIPT.name]),
        outputs={"out": OutputTarget(volume="keras/out")},
        max_restarts=0,
    )
    backend.submit(job, job_id="keras-1")
    try:
        lines = asyncio.run(asyncio.wait_for(watch(backend, "keras-1"), timeout=SECONDS))
    finally:
        backend.cancel("keras-1")
    assert backend.status("keras-1").state is JobState.SUCCEEDED, lines
    assert "[rank 0] worker 0 of 2" in lines
    assert "[rank 1] worker 1 of 2" in lines
    found = json.loads((backend.store.path("keras/out@1") / "losses.json").read_text())
    assert found == pytest.approx(losses(), rel=1e-4)

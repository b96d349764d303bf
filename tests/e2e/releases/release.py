"""One act of a release on a deployment of this machine: ``python release.py FOLDER ACT …``; see act.py."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from both import machine_backend, roll_back

from muster.backends.base import Backend
from muster.backends.releases.driver import begin
from muster.backends.releases.plan import Plan
from muster.core.deployment import DeploymentSpec, SmokeRequest
from muster.core.errors import MusterError
from muster.core.settings import Settings

NAME = "line"
SECONDS = 60.0


def deployments(backend: Any) -> Any:
    """The deployments of a backend; the earlier release's backend is that itself."""
    return backend if hasattr(backend, "prepare") else backend.deployments


def spec(backend: Backend, lock: Path, address: str, slope: float) -> DeploymentSpec:
    """What serves y = slope * x, in the environment of a lock that both releases take."""
    smoke = SmokeRequest(name="two", inputs={"x": (2.0,)}, expect={"y": {"min": 2 * slope, "max": 2 * slope}})
    return DeploymentSpec(
        name=NAME,
        model=backend.store.resolve(address)[0].pinned,
        image="kserve",
        image_digest=backend.store.put(lock.parent, [lock.name]),
        server="kserve",  # what earlier releases have, too
        smoke=(smoke,),
    )


def drive(backend: Backend, folder: Path, address: str, slope: str, steps: str) -> str:
    """Release a version, in steps such as ``20`` or ``20,100``, to the last of them; how that ended."""
    plan = Plan(steps=tuple(map(int, steps.split(","))), hold_seconds=(0.2,))
    asked = spec(backend, folder / "kserve" / "requirements.txt", address, float(slope))
    driver = begin(deployments(backend), asked, plan=plan, by=f"test {address}")
    deadline = time.monotonic() + SECONDS
    while (outcome := driver.step()) is None:
        if time.monotonic() > deadline:
            raise MusterError(f"no end after {SECONDS} s: {deployments(backend).deployment(NAME)}")
        time.sleep(0.1)
    return outcome.ending.value


def state(backend: Backend, _: Path) -> dict[str, object]:
    """Return whether it is ready, what each revision is and has, and where it answers."""
    status = deployments(backend).deployment(NAME)
    shares = {each.name: f"{each.state.value} {each.percent}" for each in status.revisions}
    return {"ready": status.ready, "revisions": shares, "url": status.url}


def back(backend: Backend, _: Path) -> dict[str, object]:
    """Roll back by hand, and return the state."""
    roll_back(deployments(backend), NAME, by="ada", reason="worse")
    return state(backend, _)


def retire(backend: Backend, _: Path) -> list[str]:
    """Take it away, and return what is left."""
    found = deployments(backend)
    found.retire(NAME)
    names: list[str] = found.names() if hasattr(found, "names") else found.deployments()
    return names


ACTS = {each.__name__: each for each in (drive, state, back, retire)}

if __name__ == "__main__":
    try:
        answer: object = ACTS[sys.argv[2]](machine_backend(Settings.load()), Path(sys.argv[1]), *sys.argv[3:])  # type: ignore[operator]
    except MusterError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))

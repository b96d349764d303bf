"""The keeper's steps that a real server takes too rarely to wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.backends.local import keeper as room
from muster.backends.local.deployment_state import DeploymentFolder, DeploymentState
from muster.core.deployment import DeploymentSpec
from muster.core.errors import DeploymentError
from muster.core.job import Pinned


class Server:
    """A model server that dies when it is promoted."""

    left = False

    def promote(self, revision: str, *, deadline: float) -> None:
        raise DeploymentError(f"promote revision {revision}: it was ended by SIGKILL")

    def leave(self, *, since: float) -> bool:
        self.left = self.left or since >= 0
        return self.left

    def alive(self) -> bool:
        return True


def test_the_old_server_goes_though_the_new_one_dies_of_its_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "DRAIN_SECONDS", 0.0)
    model = Pinned(address="volume://f/model@1", digest=f"b3:{1:064}")
    first = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}")
    second = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{2:064}")
    folder = DeploymentFolder(tmp_path, "f")
    with folder.changing():
        folder.write(DeploymentState(name="f", port=1).want(first).promoted().want(second))
    old, new = Server(), Server()
    nothing: Any = None
    keeper: Any = room.Keeper(folder, nothing, nothing, nothing)
    keeper._server = old
    keeper._promote(new, "1", second)
    keeper._tend()
    assert old.left
    assert keeper._server is new

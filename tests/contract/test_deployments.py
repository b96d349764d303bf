"""What every backend promises about deployments, and the keepers of one machine that keep it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serving import onnx_graph
from tests.serving.load import Load
from tests.waiting import eventually

from muster.backends.local.deployment_state import DeploymentFolder
from muster.backends.local.deployments import LocalDeployments
from muster.backends.local.environments import put_image
from muster.core.deployment import DeploymentSpec, DeploymentStatus, Revision, RevisionState, SmokeRequest
from muster.core.errors import Conflict, NotFound, SpecError
from muster.core.job import Pinned
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.folder import FolderStore
from muster.volumes.tree import remove

pytestmark = pytest.mark.slow


def tensor(x: float) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}]}


def smoke(*, of_two: float) -> tuple[SmokeRequest, ...]:
    """What the line must answer for 2."""
    expect = {"y": {"min": of_two, "max": of_two}}
    return (SmokeRequest(name="two", inputs={"x": (2.0,)}, expect=expect),)


class DeploymentsContract:
    """Inherit it and give `deployments`, the `store` behind them and the `image` to serve with."""

    @pytest.fixture
    def deployments(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        return f"line-{secrets.token_hex(3)}"

    @pytest.fixture
    def version(self, store: FolderStore, tmp_path: Path) -> Callable[[float], Pinned]:
        """Commits a version of the model ``y = slope * x``."""

        def commit(slope: float) -> Pinned:
            return store.add("lines/model", onnx_graph.write_line(tmp_path / "line", slope=slope)).pinned

        return commit

    @pytest.fixture
    def spec(
        self, name: str, image: str, version: Callable[[float], Pinned]
    ) -> Callable[..., DeploymentSpec]:
        """Writes a spec of a new version that answers 2 with 2 * slope, and is expected to."""

        def write(slope: float, *, of_two: float | None = None, **more: Any) -> DeploymentSpec:
            expected = smoke(of_two=2 * slope if of_two is None else of_two)
            fields = {"model": version(slope), "smoke": expected} | more
            return DeploymentSpec(name=name, image="serve", image_digest=image, **fields)

        return write

    def ask(self, deployments: Any, name: str, x: float, *, seconds: float = 10) -> tuple[str, float]:
        """Return who answers and what."""
        port = int(deployments.deployment(name).url.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request("POST", f"/v2/models/{name}/infer", json.dumps(tensor(x)))
            answer = json.loads(connection.getresponse().read())
        return answer["model_version"], answer["outputs"][0]["data"][0]

    def settle(self, deployments: Any, spec: DeploymentSpec) -> DeploymentStatus:
        """Deploy and wait until the revision serves or is refused."""
        deployments.deploy(spec)
        eventually(lambda: newest(deployments, spec).state in (RevisionState.SERVING, RevisionState.REFUSED))
        status: DeploymentStatus = deployments.deployment(spec.name)
        return status

    def test_a_version_is_deployed_and_answers(self, deployments: Any, spec: Any, store: FolderStore) -> None:
        first = spec(2)
        status = self.settle(deployments, first)
        eventually(lambda: deployments.deployment(first.name).ready)
        assert status.champion is not None
        assert status.champion.model == first.model
        assert status.champion.share == 1
        assert self.ask(deployments, first.name, 3) == ("1", 6.0)
        assert deployments.deployments() == [first.name]
        assert store.resolve(first.model.address)[0].pins == (f"deployment/{first.name}",)

    def test_the_same_spec_twice_is_one_revision(self, deployments: Any, spec: Any) -> None:
        first = spec(2)
        for _ in range(3):
            deployments.deploy(first)
        status = self.settle(deployments, first)
        deployments.deploy(first)
        assert [r.model for r in status.revisions] == [first.model]
        assert len(deployments.deployment(first.name).revisions) == 1

    def test_a_new_version_takes_over(self, deployments: Any, spec: Any, store: FolderStore) -> None:
        old, new = spec(2), spec(3)
        self.settle(deployments, old)
        status = self.settle(deployments, new)
        eventually(lambda: self.ask(deployments, new.name, 3) == ("2", 9.0))
        assert [(r.model, r.state, r.share) for r in status.revisions] == [
            (new.model, RevisionState.SERVING, 1.0),
            (old.model, RevisionState.RETIRED, 0.0),
        ]
        eventually(lambda: store.resolve(old.model.address)[0].pins == ())
        assert store.resolve(new.model.address)[0].pins == (f"deployment/{new.name}",)

    def test_what_answers_the_smoke_test_wrongly_is_refused(
        self, deployments: Any, spec: Any, store: FolderStore
    ) -> None:
        good, bad = spec(2), spec(3, of_two=4)
        self.settle(deployments, good)
        status = self.settle(deployments, bad)
        assert status.champion is not None
        assert status.champion.model == good.model
        assert (
            newest(deployments, bad).reason
            == "smoke request 'two': output 'y' is 6.0, expected min 4 and max 4"
        )
        assert self.ask(deployments, good.name, 3) == ("1", 6.0)
        eventually(lambda: store.resolve(bad.model.address)[0].pins == ())
        assert store.resolve(good.model.address)[0].pins == (f"deployment/{good.name}",)

    def test_a_first_version_that_is_refused_leaves_nothing_that_answers(
        self, deployments: Any, spec: Any
    ) -> None:
        bad = spec(3, of_two=4)
        status = self.settle(deployments, bad)
        assert status.champion is None
        assert not status.ready
        assert "@1 was refused: smoke request 'two'" in status.reason
        with pytest.raises(ConnectionRefusedError):
            self.ask(deployments, bad.name, 2)

    def test_a_refused_version_may_be_tried_again(self, deployments: Any, spec: Any) -> None:
        bad = spec(3, of_two=4)
        self.settle(deployments, bad)
        mended = replace(bad, smoke=smoke(of_two=6))
        status = self.settle(deployments, mended)
        assert [r.state for r in status.revisions] == [RevisionState.SERVING, RevisionState.REFUSED]

    @pytest.mark.parametrize(
        ("inputs", "expect", "reason"),
        [
            ({"z": (1.0,)}, {}, "input 'z' is unknown"),
            ({"x": (-1.0,)}, {}, "input 'x': found -1.0 at position 0, expected 0 to 1000"),
            ({"x": ("a",)}, {}, "input 'x': found text 'a' at position 0, expected FP32"),
            ({"x": (1.0,)}, {"z": {"min": 0}}, "output 'z' is expected; the model answers y"),
        ],
    )
    def test_a_smoke_test_that_does_not_fit_says_where(
        self, deployments: Any, spec: Any, inputs: Any, expect: Any, reason: str
    ) -> None:
        asked = (SmokeRequest(name="odd", inputs=inputs, expect=expect),)
        status = self.settle(deployments, spec(2, smoke=asked))
        assert reason in status.revisions[0].reason

    def test_a_smoke_test_of_text_and_several_dimensions(
        self, deployments: Any, spec: Any, store: FolderStore, tmp_path: Path
    ) -> None:
        mixed = store.add("lines/mixed", onnx_graph.write_mixed(tmp_path / "mixed")).pinned
        inputs = {"code": ("UA", "elsewhere"), "day": (1, 7), "place": ((1, 2, 3), (0.5, 0, 0))}
        asked = (SmokeRequest(name="two", inputs=inputs, expect={"y": {"min": 7.5, "max": 322.5}}),)
        one = spec(2, model=mixed, smoke=asked)
        self.settle(deployments, one)
        assert [r.state for r in self.settle(deployments, one).revisions] == [RevisionState.SERVING]

    def test_a_smoke_test_of_no_finite_number_is_refused_at_once(self, deployments: Any, spec: Any) -> None:
        endless = (SmokeRequest(name="endless", inputs={"x": (float("inf"),)}),)
        with pytest.raises(SpecError, match="inf is not a finite number"):
            deployments.deploy(spec(2, smoke=endless))
        assert deployments.deployments() == []

    def test_a_version_without_a_model_is_refused(
        self, deployments: Any, spec: Any, store: FolderStore, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "weights.txt").write_text("1 2 3")
        status = self.settle(deployments, spec(2, model=store.add("lines/empty", tmp_path / "empty").pinned))
        assert "signature.json is missing" in status.revisions[0].reason

    def test_a_broken_model_is_refused_and_the_old_one_serves(
        self, deployments: Any, spec: Any, store: FolderStore, tmp_path: Path
    ) -> None:
        self.settle(deployments, spec(2))
        folder = onnx_graph.write_line(tmp_path / "line")
        (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:100])
        broken = spec(2, model=store.add("lines/broken", folder).pinned)
        status = self.settle(deployments, broken)
        assert "model.onnx cannot be loaded" in status.revisions[0].reason
        assert self.ask(deployments, broken.name, 3) == ("1", 6.0)

    def test_a_model_that_eats_its_memory_is_refused_and_the_old_one_serves(
        self, deployments: Any, spec: Any, store: FolderStore, tmp_path: Path
    ) -> None:
        self.settle(deployments, spec(2))
        greedy = store.add(
            "lines/greedy", onnx_graph.write_greedy(tmp_path / "greedy", values=1 << 30)
        ).pinned
        status = self.settle(deployments, spec(2, model=greedy, resources=Resources(memory_gib=1)))
        assert status.revisions[0].state is RevisionState.REFUSED
        assert self.ask(deployments, status.name, 3) == ("1", 6.0)

    def test_what_is_wanted_last_serves_in_the_end(self, deployments: Any, spec: Any) -> None:
        several = [spec(slope) for slope in (2, 3, 4)]
        for one in several:
            deployments.deploy(one)
        eventually(lambda: newest(deployments, several[-1]).state is RevisionState.SERVING)
        states = [r.state for r in deployments.deployment(several[0].name).revisions]
        assert states == [RevisionState.SERVING, RevisionState.RETIRED, RevisionState.RETIRED]

    def test_going_back_is_a_deployment_like_any_other(self, deployments: Any, spec: Any) -> None:
        old, new = spec(2), spec(3)
        for one in (old, new, old):
            self.settle(deployments, one)
        eventually(lambda: self.ask(deployments, old.name, 3) == ("1", 6.0))

    def test_an_older_version_does_not_take_over_from_what_serves_or_will(
        self, deployments: Any, spec: Any
    ) -> None:
        old, new = spec(2), spec(3)
        deployments.deploy(new, allow_older=False)
        with pytest.raises(Conflict, match=r"@1 would take .* back in time: @2 serves soon"):
            deployments.deploy(old, allow_older=False)
        self.settle(deployments, new)
        with pytest.raises(Conflict, match=r"@2 serves$"):
            deployments.deploy(old, allow_older=False)
        assert [r.model for r in deployments.deployment(old.name).revisions] == [new.model]
        deployments.deploy(new, allow_older=False)

    def test_of_two_that_are_deployed_at_once_the_newer_serves(self, deployments: Any, spec: Any) -> None:
        several = [spec(slope) for slope in (2, 3, 4, 5)]

        def deploy(one: DeploymentSpec) -> None:
            with contextlib.suppress(Conflict):
                deployments.deploy(one, allow_older=False)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(deploy, several))
        eventually(lambda: newest(deployments, several[-1]).state is RevisionState.SERVING)
        assert deployments.deployment(several[0].name).champion.model == several[-1].model

    @pytest.mark.parametrize("requests", [2000, pytest.param(10_000, marks=pytest.mark.soak)])
    def test_no_request_fails_over_a_release_and_a_refused_one(
        self, deployments: Any, spec: Any, requests: int
    ) -> None:
        first, second, bad = spec(2), spec(3), spec(4, of_two=0)
        self.settle(deployments, first)
        eventually(lambda: deployments.deployment(first.name).ready)
        port = int(deployments.deployment(first.name).url.rpartition(":")[2])
        with Load(port, f"/v2/models/{first.name}/infer", tensor(3)) as load:
            eventually(lambda: load.sent > requests / 10)
            self.settle(deployments, second)
            sent = load.sent
            eventually(lambda: load.sent > sent + requests / 10)
            self.settle(deployments, bad)
            eventually(lambda: load.sent > requests)
        assert load.failed == {}
        assert set(load.answers) == {"revision 1", "revision 2"}

    def test_what_cannot_be_deployed_is_refused_at_once(self, deployments: Any, spec: Any) -> None:
        good = spec(2)
        other = "b3:" + "0" * 64
        wrong = [
            (replace(good, server="triton"), SpecError, "server 'triton'"),
            (replace(good, image_digest=other), NotFound, "no code snapshot"),
            (replace(good, model=replace(good.model, digest=other)), SpecError, "written for another store"),
            (replace(good, model=replace(good.model, address="volume://lines/model@99")), NotFound, "99"),
        ]
        for one, kind, words in wrong:
            with pytest.raises(kind, match=words):
                deployments.deploy(one)
        assert deployments.deployments() == []

    @pytest.mark.parametrize("hostile", ["..", "a/b", "a\nb", "x" * 300, "", ".locks"])
    def test_a_hostile_name_is_refused(self, deployments: Any, hostile: str) -> None:
        for act in (deployments.deployment, deployments.retire):
            with pytest.raises(SpecError, match="deployment"):
                act(hostile)

    def test_retire_takes_it_away(self, deployments: Any, spec: Any, store: FolderStore) -> None:
        first = spec(2)
        self.settle(deployments, first)
        deployments.retire(first.name)
        deployments.retire(first.name)
        assert deployments.deployments() == []
        assert store.resolve(first.model.address)[0].pins == ()
        with pytest.raises(NotFound, match=r"no deployment .* known are: none"):
            deployments.deployment(first.name)
        self.settle(deployments, first)
        assert self.ask(deployments, first.name, 3) == ("1", 6.0)


def newest(deployments: Any, spec: DeploymentSpec) -> Revision:
    """Return the newest revision of a spec's version."""
    found = [r for r in deployments.deployment(spec.name).revisions if r.model == spec.model]
    assert found, f"{spec.model.address} is no revision"
    return found[0]


class TestLocalDeployments(DeploymentsContract):
    """Keepers and model servers as processes of this machine."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(home=tmp_path / "home", cache=Settings.load().cache)

    @pytest.fixture
    def store(self, settings: Settings) -> FolderStore:
        return FolderStore(settings.store)

    @pytest.fixture
    def image(self, store: FolderStore) -> str:
        return put_image(store, shipped("images") / "serve")

    @pytest.fixture
    def deployments(self, settings: Settings, store: FolderStore, name: str) -> Iterator[LocalDeployments]:
        deployments = LocalDeployments(settings, store)
        yield deployments
        for one in deployments.deployments():
            deployments.retire(one)
        eventually(lambda: not running(name), seconds=5)

    @pytest.fixture
    def folder(self, settings: Settings, name: str) -> DeploymentFolder:
        return DeploymentFolder(settings.home, name)

    def test_a_server_that_was_killed_is_back(self, deployments: Any, spec: Any, name: str) -> None:
        self.settle(deployments, spec(2))
        (server,) = servers(name)
        os.kill(server, signal.SIGKILL)
        eventually(lambda: servers(name) not in ([], [server]))
        eventually(lambda: deployments.deployment(name).ready)
        assert self.ask(deployments, name, 3) == ("1", 6.0)

    def test_keeper_and_server_killed_are_back_when_it_is_deployed_again(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder
    ) -> None:
        first = spec(2)
        status = self.settle(deployments, first)
        kill_keeper(folder)
        eventually(lambda: not running(name), seconds=60)
        assert not deployments.deployment(name).ready
        assert "deploy it again" in deployments.deployment(name).reason
        deployments.deploy(first)
        eventually(lambda: deployments.deployment(name).ready)
        assert deployments.deployment(name).url == status.url
        assert deployments.deployment(name).revisions == status.revisions
        assert self.ask(deployments, name, 3) == ("1", 6.0)

    def test_gc_and_a_lost_cache_take_no_deployment_down(
        self, store: FolderStore, settings: Settings, name: str, spec: Any, folder: DeploymentFolder
    ) -> None:
        """No job and no version names its image's lock, and the environment has to be built again."""
        passing = Settings(home=settings.home, cache=settings.home / "cache")
        (passing.cache / "images").mkdir(parents=True)
        (passing.cache / "uv").symlink_to(settings.cache / "uv")
        deployments = LocalDeployments(passing, store)
        try:
            first = spec(2)
            self.settle(deployments, first)
            kill_keeper(folder)
            eventually(lambda: not running(name), seconds=60)
            store.layout.discard(store.layout.code(first.image_digest))  # what gc does after a day
            remove(passing.cache / "images")
            deployments.deploy(first)
            eventually(lambda: deployments.deployment(name).ready)
            assert self.ask(deployments, name, 3) == ("1", 6.0)
        finally:
            deployments.retire(name)

    def test_a_release_whose_keeper_was_killed_goes_on(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder
    ) -> None:
        first, second = spec(2), spec(3)
        self.settle(deployments, first)
        deployments.deploy(second)
        kill_keeper(folder)
        eventually(lambda: not running(name), seconds=60)
        self.settle(deployments, second)
        eventually(lambda: deployments.deployment(name).ready)
        assert self.ask(deployments, name, 3) == ("2", 9.0)

    def test_a_lost_deployment_is_retired_all_the_same(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder, store: FolderStore
    ) -> None:
        first = spec(2)
        self.settle(deployments, first)
        kill_keeper(folder)
        deployments.retire(name)
        assert not folder.path.exists()
        assert store.resolve(first.model.address)[0].pins == ()

    def test_a_keeper_that_does_not_listen_is_killed(
        self,
        deployments: Any,
        spec: Any,
        name: str,
        folder: DeploymentFolder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.settle(deployments, spec(2))
        keeper = folder.keeper()
        assert keeper is not None
        os.kill(keeper.pid, signal.SIGSTOP)
        monkeypatch.setattr("muster.backends.local.deployments.RETIRE_SECONDS", 0.2)
        deployments.retire(name)
        eventually(lambda: not running(name), seconds=60)

    def test_a_port_that_was_taken_meanwhile_is_named(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder
    ) -> None:
        first = spec(2)
        port = int(self.settle(deployments, first).url.rpartition(":")[2])
        kill_keeper(folder)
        eventually(lambda: not running(name), seconds=60)
        with listening(port):
            deployments.deploy(first)
            eventually(lambda: f"port {port}" in deployments.deployment(name).reason)
            assert not deployments.deployment(name).ready
        eventually(lambda: deployments.deployment(name).ready)
        eventually(lambda: deployments.deployment(name).reason == "")

    def test_each_deployment_has_its_port(self, deployments: Any, spec: Any) -> None:
        specs = [replace(spec(2), name=f"{letter}{spec(2).name}") for letter in "ab"]
        for one in specs:
            self.settle(deployments, one)
        assert len({deployments.deployment(one.name).url for one in specs}) == 2
        for one in specs:
            deployments.retire(one.name)

    def test_another_environment_takes_over_without_a_lost_request(
        self, deployments: Any, spec: Any, name: str, store: FolderStore, tmp_path: Path
    ) -> None:
        first, second = spec(2), spec(3)
        lock = (shipped("images") / "serve" / "requirements.txt").read_text()
        (tmp_path / "image").mkdir()
        (tmp_path / "image" / "requirements.txt").write_text(f"{lock}# the same packages, another lock\n")
        second = replace(second, image_digest=put_image(store, tmp_path / "image"))
        port = int(self.settle(deployments, first).url.rpartition(":")[2])
        eventually(lambda: deployments.deployment(name).ready)
        (server,) = servers(name)
        with Load(port, f"/v2/models/{name}/infer", tensor(3)) as load:
            eventually(lambda: load.sent > 200)
            self.settle(deployments, second)
            eventually(lambda: server not in servers(name))
        assert load.failed == {}
        assert set(load.answers) == {"revision 1", "revision 2"}
        assert self.ask(deployments, name, 3) == ("2", 9.0)

    def test_clients_wait_while_a_killed_server_comes_back(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.settle(deployments, spec(2))
        eventually(lambda: deployments.deployment(name).ready)
        (server,) = servers(name)
        os.kill(server, signal.SIGKILL)
        eventually(lambda: server not in servers(name))
        assert self.ask(deployments, name, 3) == ("1", 6.0)

    def test_a_server_that_hangs_is_relieved_and_no_request_fails_that_can_be_answered(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.settle(deployments, spec(2))
        eventually(lambda: deployments.deployment(name).ready)
        (hung,) = servers(name)
        os.kill(hung, signal.SIGSTOP)
        assert self.ask(deployments, name, 3, seconds=60) == ("1", 6.0)  # it waits until another accepts it
        assert set(servers(name)) > {hung}
        os.kill(hung, signal.SIGCONT)  # it may finish, and then it goes
        eventually(lambda: hung not in servers(name))
        assert self.ask(deployments, name, 3) == ("1", 6.0)
        assert deployments.deployment(name).reason == ""

    def test_the_server_knows_no_setting_and_no_secret_of_whoever_deployed(
        self, deployments: Any, spec: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "secret")
        self.settle(deployments, spec(2))
        (server,) = servers(name)
        assert b"secret" not in Path(f"/proc/{server}/environ").read_bytes()


def kill_keeper(folder: DeploymentFolder) -> None:
    keeper = folder.keeper()
    assert keeper is not None
    assert keeper.alive
    os.kill(keeper.pid, signal.SIGKILL)


def listening(port: int) -> socket.socket:
    """Take a port as soon as the kernel has given it back."""
    taken: list[socket.socket] = []

    def take() -> bool:
        with contextlib.suppress(OSError):
            taken.append(socket.create_server(("127.0.0.1", port)))
        return bool(taken)

    eventually(take)
    return taken[0]


def running(name: str) -> list[int]:
    """Return the processes that were started for a deployment."""
    return [pid for pid, words in commands() if name.encode() in words]


def servers(name: str) -> list[int]:
    """Return the model servers of a deployment."""
    return [pid for pid, words in commands() if name.encode() in words and b"muster_serving" in words]


def commands() -> Iterator[tuple[int, list[bytes]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue

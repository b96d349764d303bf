"""What the keepers of one machine promise beside the contract: processes that die or hang, ports, environments."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import STEADY, STEPS, OnThisMachine, commands, running, servers, smoke
from tests.serving import onnx_graph
from tests.waiting import GUARD_SECONDS, eventually, promptly

from muster.backends.local.processes import Process
from muster.backends.local.serving import guardian
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.platform import local_deployments
from muster.backends.releases.decision import Ending
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.manual import promote
from muster.backends.releases.plan import Plan
from muster.cli.boot import unit
from muster.core.deployment import DeploymentSpec
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore
from muster.volumes.tree import remove

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class First:
    """A deployment whose first revision serves."""

    spec: DeploymentSpec
    deployments: Deployments
    folder: DeploymentFolder


class TestKeepers(OnThisMachine):
    """Each case has a deployment of its own."""

    @pytest.fixture
    def folder(self, settings: Settings, name: str) -> DeploymentFolder:
        return DeploymentFolder(settings.home, name)

    def test_a_keeper_ends_with_its_home(
        self, deployments: Any, spec: Any, name: str, settings: Settings
    ) -> None:
        self.serve(deployments, spec(2))
        settings.home.rename(settings.home.with_name("gone"))
        eventually(lambda: not running(name))
        assert not settings.home.exists()

    @pytest.mark.nightly
    def test_gc_and_a_lost_cache_take_no_deployment_down(
        self, store: FolderStore, settings: Settings, name: str, spec: Any, folder: DeploymentFolder
    ) -> None:
        """No job and no version names its image's lock, and the environment has to be built again."""
        passing = Settings(home=settings.home, cache=settings.home / "cache")
        (passing.cache / "images").mkdir(parents=True)
        (passing.cache / "uv").symlink_to(settings.cache / "uv")
        deployments = local_deployments(passing, store)
        try:
            first = spec(2)
            self.serve(deployments, first)
            end_keeping(folder, name)
            store.layout.discard(store.layout.code(first.image_digest))  # what gc does after a day
            remove(passing.cache / "images")
            deployments.prepare(first, by="test")
            eventually(lambda: deployments.deployment(name).ready)
            assert self.infer(deployments, name, 3) == ("r1", 6.0)
        finally:
            deployments.retire(name)

    @pytest.mark.nightly
    def test_a_release_whose_keeper_was_killed_goes_on(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder
    ) -> None:
        first, second = spec(2), spec(3)
        self.serve(deployments, first)
        deployments.prepare(second, by="test")
        end_keeping(folder, name)
        self.serve(deployments, second)
        eventually(lambda: deployments.deployment(name).ready)
        assert self.infer(deployments, name, 3) == ("r2", 9.0)

    @pytest.mark.nightly
    def test_a_lost_deployment_is_retired_all_the_same(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder, store: FolderStore
    ) -> None:
        first = spec(2)
        self.serve(deployments, first)
        kill_keeper(folder)
        deployments.retire(name)
        assert not folder.path.exists()
        assert store.resolve(first.model.address)[0].pins == ()

    @pytest.mark.nightly
    def test_a_keeper_that_does_not_listen_is_killed(
        self,
        deployments: Any,
        spec: Any,
        name: str,
        folder: DeploymentFolder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.serve(deployments, spec(2))
        keeper = folder.keeper()
        assert keeper is not None
        os.kill(keeper.pid, signal.SIGSTOP)
        monkeypatch.setattr("muster.backends.local.serving.platform.RETIRE_SECONDS", 0.2)
        deployments.retire(name)
        eventually(lambda: not running(name))

    def test_a_port_that_was_taken_meanwhile_is_named(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder
    ) -> None:
        first = spec(2)
        port = int(self.serve(deployments, first).url.rpartition(":")[2])
        end_keeping(folder, name)
        with listening(port):
            deployments.prepare(first, by="test")
            eventually(lambda: f"port {port}" in deployments.deployment(name).reason)
            assert not deployments.deployment(name).ready
        eventually(lambda: deployments.deployment(name).ready)
        eventually(lambda: deployments.deployment(name).reason == "")

    @pytest.mark.nightly
    def test_each_deployment_has_its_port(self, deployments: Any, spec: Any) -> None:
        specs = [replace(spec(2), name=f"{letter}{spec(2).name}") for letter in "ab"]
        for one in specs:
            self.serve(deployments, one)
        assert len({deployments.deployment(one.name).url for one in specs}) == 2
        for one in specs:
            deployments.retire(one.name)

    def test_another_environment_takes_over_without_a_lost_request(
        self, deployments: Any, spec: Any, name: str, elsewhere: str
    ) -> None:
        first, second = spec(2), replace(spec(3), image_digest=elsewhere)
        self.serve(deployments, first)
        (server,) = servers(name)
        with self.load(deployments, name) as load:
            driver = self.begin(deployments, second, STEPS, by="test")
            assert self.finish(driver).ending is Ending.DONE
            assert server in servers(name)  # it holds what is kept
            third = replace(spec(4), image_digest=second.image_digest)
            assert self.release(deployments, third).ending is Ending.DONE
            eventually(lambda: server not in servers(name))
        assert load.failed == {}
        assert set(load.answers) == {"revision r1", "revision r2", "revision r3"}
        assert self.infer(deployments, name, 3) == ("r3", 12.0)

    @pytest.fixture
    def elsewhere(self, store: FolderStore, tmp_path: Path) -> str:
        """The same packages as another image's."""
        lock = (shipped("images") / "serve" / "requirements.txt").read_text()
        (tmp_path / "image").mkdir()
        (tmp_path / "image" / "requirements.txt").write_text(f"{lock}# the same packages, another lock\n")
        return put_image(store, tmp_path / "image")

    @pytest.mark.parametrize("percent", [pytest.param(20, marks=pytest.mark.nightly), 60])
    def test_a_revision_whose_process_dies_is_taken_back_and_its_share_is_answered(
        self, deployments: Any, spec: Any, name: str, elsewhere: str, percent: int
    ) -> None:
        first, second = spec(2), replace(spec(3), image_digest=elsewhere)
        self.serve(deployments, first)
        (server,) = servers(name)
        with self.load(deployments, name) as load:
            plan = Plan(steps=(percent, 100), hold_seconds=(600.0,), rules=STEADY)
            driver = self.begin(deployments, second, plan, by="test")
            eventually(lambda: not driver.step() and load.answers["revision r2"] > 100)
            (other,) = set(servers(name)) - {server}
            os.kill(other, signal.SIGKILL)
            outcome = self.finish(driver)
            sent = load.sent
            eventually(lambda: load.sent > sent + 500)
        assert outcome.ending is Ending.ROLLED_BACK
        assert load.failed == {}
        assert deployments.deployment(name).shares == {"r1": 100}
        eventually(lambda: servers(name) == [server])

    def test_users_do_not_wait_for_a_canary_that_hangs(
        self, deployments: Any, spec: Any, name: str, elsewhere: str, folder: DeploymentFolder
    ) -> None:
        self.serve(deployments, spec(2))
        (server,) = servers(name)
        second = replace(spec(3), image_digest=elsewhere)
        driver = self.begin(
            deployments, second, Plan(steps=(60, 100), hold_seconds=(600.0,), rules=STEADY), by="test"
        )
        eventually(lambda: not driver.step() and deployments.deployment(name).called("r2").percent == 60)
        eventually(lambda: {self.infer(deployments, name, 3)[0] for _ in range(20)} == {"r1", "r2"})
        (hung,) = set(servers(name)) - {server}
        os.kill(hung, signal.SIGSTOP)

        def answered() -> bool:
            with contextlib.suppress(TimeoutError):
                return {self.infer(deployments, name, 3, seconds=0.5)[0] for _ in range(40)} == {"r1"}
            return False

        eventually(answered)
        state = folder.read()
        assert state is not None
        assert state.called("r2").restarts == 0  # long before it is given up
        os.kill(hung, signal.SIGCONT)
        eventually(lambda: {self.infer(deployments, name, 3)[0] for _ in range(40)} == {"r1", "r2"})

    @pytest.mark.nightly
    def test_what_died_together_comes_back_apart(
        self, deployments: Any, spec: Any, name: str, folder: DeploymentFolder
    ) -> None:
        """A canary that dies again, while no process drives its release, takes no other with it."""
        self.serve(deployments, spec(2))
        driver = self.begin(deployments, spec(3), replace(STEPS, hold_seconds=(600.0,)), by="test")
        eventually(lambda: not driver.step() and deployments.deployment(name).called("r2").percent == 20)
        (server,) = servers(name)
        os.kill(server, signal.SIGKILL)

        def apart() -> bool:
            state = folder.read()
            assert state is not None
            return len(set(state.ports.values())) == 2

        eventually(apart)
        assert len(servers(name)) == 2
        eventually(lambda: {self.infer(deployments, name, 3)[0] for _ in range(20)} == {"r1", "r2"})

    def test_a_canary_whose_keeper_is_killed_goes_on_and_a_rollback_does_not_wait_for_a_slow_load(
        self,
        deployments: Any,
        spec: Any,
        name: str,
        folder: DeploymentFolder,
        store: FolderStore,
        tmp_path: Path,
    ) -> None:
        self.serve(deployments, spec(2))
        driver = self.begin(deployments, spec(3), replace(STEPS, hold_seconds=(600.0, 600.0, 0.0)), by="test")
        eventually(lambda: not driver.step() and deployments.deployment(name).called("r2").percent == 20)
        kill_keeper(folder)
        eventually(lambda: not driver.step() and deployments.deployment(name).ready)
        assert deployments.deployment(name).shares == {"r1": 80, "r2": 20}
        promote(deployments, name, "r2", by="ann")
        assert self.finish(driver).ending is Ending.DONE
        eventually(lambda: self.infer(deployments, name, 3) == ("r2", 9.0))
        slow = onnx_graph.write_line(tmp_path / "slow")
        (slow / "signature.json").unlink()
        endless = store.add("lines/slow", slow).pinned
        os.mkfifo(store.path(endless.address) / "signature.json")  # loading it never ends
        deployments.prepare(spec(5, model=endless), by="other")
        eventually(lambda: deployments.deployment(name).called("r3").reason)
        promote(deployments, name, "r1", by="ann")
        promptly(lambda: self.infer(deployments, name, 3) == ("r1", 6.0), seconds=2)

    def test_a_server_that_hangs_is_relieved_and_no_request_fails_that_can_be_answered(
        self, deployments: Any, spec: Any, name: str
    ) -> None:
        self.serve(deployments, spec(2))
        eventually(lambda: deployments.deployment(name).ready)
        (hung,) = servers(name)
        os.kill(hung, signal.SIGSTOP)
        assert self.infer(deployments, name, 3, seconds=GUARD_SECONDS) == (
            "r1",
            6.0,
        )  # it waits until another accepts it
        assert set(servers(name)) > {hung}
        os.kill(hung, signal.SIGCONT)  # it may finish, and then it goes
        eventually(lambda: hung not in servers(name))
        assert self.infer(deployments, name, 3) == ("r1", 6.0)
        assert deployments.deployment(name).reason == ""


class TestOneKeeper(OnThisMachine):
    """Cases after which all is as it was: one deployment of ``y = 2 * x``, whose first revision answers, is enough for them."""

    @pytest.fixture(scope="class")
    @classmethod
    def first(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
        """A deployment that was made by a process with a secret in its environment."""
        place = tmp_path_factory.mktemp("first")
        settings = Settings(home=place / "home", cache=Settings.load().cache)
        store, name = FolderStore(settings.store), f"line-{secrets.token_hex(3)}"
        spec = DeploymentSpec(
            name=name,
            image="serve",
            image_digest=put_image(store, shipped("images") / "serve"),
            server="serve",
            model=store.add(f"lines/{name}", onnx_graph.write_line(place / "line", slope=2)).pinned,
            smoke=smoke(of_two=4),
        )
        first = First(spec, local_deployments(settings, store), DeploymentFolder(settings.home, name))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "secret")
                cls().serve(first.deployments, spec)
            yield first
        finally:
            first.deployments.retire(name)
            eventually(lambda: not running(name))

    @pytest.fixture
    def name(self, first: First) -> str:
        return first.spec.name

    @pytest.fixture
    def folder(self, first: First) -> DeploymentFolder:
        return first.folder

    @pytest.fixture
    def deployments(self, first: First, name: str) -> Deployments:
        """As it is once what a test before has done is mended."""
        eventually(lambda: first.deployments.deployment(name).ready and len(servers(name)) == 1)
        return first.deployments

    def test_no_process_knows_a_setting_or_a_secret_of_whoever_deployed(
        self, deployments: Any, name: str, folder: DeploymentFolder
    ) -> None:
        keeper = folder.keeper()
        assert keeper is not None
        for pid in (*servers(name), *guardians(name), keeper.pid):
            assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()

    def test_a_guardian_that_was_killed_is_replaced(
        self, deployments: Any, name: str, folder: DeploymentFolder
    ) -> None:
        (guardian,) = guardians(name)
        os.kill(guardian, signal.SIGKILL)
        eventually(lambda: guardians(name) not in ([], [guardian]))
        (another,) = guardians(name)
        killed = kill_keeper(folder)
        eventually(lambda: folder.keeper() != killed and deployments.deployment(name).ready)
        assert self.infer(deployments, name, 3) == ("r1", 6.0)
        keeper = folder.keeper()
        assert keeper is not None
        assert keeper.pid == another
        assert len(guardians(name)) == 1

    def test_a_keeper_that_was_killed_is_back_by_itself(
        self, deployments: Any, name: str, folder: DeploymentFolder
    ) -> None:
        """Users notice nothing: the server goes on, and the next keeper commands it."""
        before, said, kept = deployments.deployment(name), keeper_log(folder), servers(name)
        with self.load(deployments, name) as load:
            for _ in range(2):
                killed, sent = kill_keeper(folder), load.sent
                eventually(lambda: folder.keeper() != killed and load.sent > sent + 50)  # noqa: B023
                after = deployments.deployment(name)
                assert after.ready
                assert (after.url, after.token, after.revisions) == (
                    before.url,
                    before.token,
                    before.revisions,
                )
        assert load.failed == {}
        assert servers(name) == kept
        eventually(
            lambda: (
                keeper_log(folder).removeprefix(said).count("the keeper is gone; it is started again") == 2
            )
        )

    def test_a_keeper_and_its_server_that_were_killed_lose_no_client(
        self, deployments: Any, name: str, folder: DeploymentFolder
    ) -> None:
        (server,) = servers(name)
        os.kill(server, signal.SIGSTOP)  # so that it answers no request on its way out
        kill_keeper(folder)
        os.kill(server, signal.SIGKILL)
        assert self.infer(deployments, name, 3, seconds=GUARD_SECONDS) == (
            "r1",
            6.0,
        )  # it waits until another accepts it

    def test_what_was_killed_is_back_when_the_unit_of_the_boot_is_started(
        self, deployments: Any, name: str, folder: DeploymentFolder, settings: Settings
    ) -> None:
        end_keeping(folder, name)
        status = deployments.deployment(name)
        assert (status.ready, status.reason) == (
            False,
            f"its keeper is gone: `muster deployments repair {name}` brings it back",
        )
        text = unit(replace(settings, home=folder.path.parents[1]), "default.target")
        started = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        booted = subprocess.Popen(
            shlex.split(started["ExecStart"]),
            env=dict(each.split("=", 1) for each in shlex.split(started["Environment"])),
            cwd="/",
            text=True,
            stderr=subprocess.PIPE,
        )
        try:
            for _ in range(2):  # and again when all of it dies while the unit runs
                eventually(lambda: deployments.deployment(name).ready)
                assert self.infer(deployments, name, 3) == ("r1", 6.0)
                end_keeping(folder, name)
            eventually(lambda: deployments.deployment(name).ready)
        finally:
            booted.terminate()
            _, said = booted.communicate(timeout=GUARD_SECONDS)
        assert (booted.returncode, said.count(f"{name}: its keeper is brought up again")) == (0, 3)
        assert self.infer(deployments, name, 3) == ("r1", 6.0)  # it goes on without the unit

    def test_keeper_and_server_killed_are_back_when_it_is_deployed_again(
        self, deployments: Any, first: First, name: str, folder: DeploymentFolder
    ) -> None:
        status, said = deployments.deployment(name), keeper_log(folder)
        with contextlib.closing(http.client.HTTPConnection(status.url.removeprefix("http://"))) as client:
            client.request("GET", "/v2/health/ready", headers={"Connection": "close"})
            # The server closes it, and such a connection holds the port for a minute.
            assert client.getresponse().read()
        end_keeping(folder, name)
        assert not deployments.deployment(name).ready
        assert f"`muster deployments repair {name}`" in deployments.deployment(name).reason
        deployments.prepare(first.spec, by="test")
        eventually(lambda: deployments.deployment(name).ready)
        assert deployments.deployment(name).url == status.url
        assert deployments.deployment(name).revisions == status.revisions
        assert self.infer(deployments, name, 3) == ("r1", 6.0)
        assert "port " not in keeper_log(folder).removeprefix(said)  # it was free at the first try

    def test_a_server_that_was_killed_is_back_and_clients_wait_for_it(
        self, deployments: Any, name: str
    ) -> None:
        (server,) = servers(name)
        os.kill(server, signal.SIGKILL)
        eventually(lambda: server not in servers(name))
        assert self.infer(deployments, name, 3) == ("r1", 6.0)
        eventually(lambda: servers(name) not in ([], [server]))
        eventually(lambda: deployments.deployment(name).ready)


def keeper_log(folder: DeploymentFolder) -> str:
    """What the keepers of a deployment have said."""
    return (folder.path / "keeper.log").read_text()


def kill_keeper(folder: DeploymentFolder) -> Process:
    """Kill the keeper of a deployment, and return who it was."""
    keeper = folder.keeper()
    assert keeper is not None
    assert keeper.alive
    os.kill(keeper.pid, signal.SIGKILL)
    return keeper


def end_keeping(folder: DeploymentFolder, name: str) -> None:
    """Kill the keeper, its guardian and the servers at one moment, as the end of the machine does."""
    keeper = folder.keeper()
    assert keeper is not None
    assert keeper.alive
    os.killpg(os.getpgid(keeper.pid), signal.SIGKILL)
    # A process that is killed gives back its memory, and with it its words, before its locks.
    eventually(lambda: not running(name) and not folder.kept())


def listening(port: int) -> socket.socket:
    """Take a port as soon as the kernel has given it back."""
    taken: list[socket.socket] = []

    def take() -> bool:
        with contextlib.suppress(OSError):
            taken.append(socket.create_server(("127.0.0.1", port)))
        return bool(taken)

    eventually(take)
    return taken[0]


def guardians(name: str) -> list[int]:
    """Return the guardians of a deployment's keeper."""
    return [
        pid for pid, words in commands() if name.encode() in words and guardian.__file__.encode() in words
    ]

"""What every platform promises of a model that answers in parts: each comes when it is computed, and none is computed for who has left."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_deployments import OnThisMachine
from tests.contract.test_deployments_of_python import PythonLines
from tests.contract.test_grpc import GrpcLines
from tests.serving.streaming_model import write_words
from tests.serving.test_grpc_streaming import streaming as over_grpc
from tests.serving.test_streaming import asking, next_event, request, word
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.releases.decision import Ending
from muster.core.deployment import DeploymentSpec, SmokeRequest, Workers

pytestmark = [pytest.mark.slow, pytest.mark.data]

# Two workers share the folder for temporary files: one answers in parts, by the other a test tells it to go on, on
# whatever machine they are.
PREDICT = """\
import os
import time
from pathlib import Path


def load(folder):
    return None


def predict(model, inputs):
    return parts(int(inputs["count"][0]), *str(inputs["act"][0]).split())


def parts(count, act="", path=""):
    if act == "make":
        Path(path).touch()
    if act == "look":
        yield part("there" if Path(path).exists() else "missing")
        return
    try:
        for number in range(count):
            while act == "wait" and number and not Path(f"{path}.{number}").exists():
                time.sleep(0.01)  # the pace of looking
            yield part(f"w{number}")
    finally:
        if act == "run":
            Path(f"{path}.closed").touch()


def part(word):
    return {"word": [word], "pid": [os.getpid()]}
"""
Next = Callable[[], str | None]


class StreamsContract(PythonLines, GrpcLines):
    """Inherit it as ``Lines``."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        """The beginning of paths that the deployment's workers may write."""
        return str(tmp_path / "place")

    @pytest.fixture
    def words(
        self, store: Any, volume: str, name: str, image: str, tmp_path: Path
    ) -> Callable[..., DeploymentSpec]:
        """Write a spec of a version that answers as many words as it is asked for."""
        pinned = store.add(volume, write_words(tmp_path / "words", predict=PREDICT)).pinned
        workers = Workers(
            image=self.server, image_digest=image, count=2, stream=True, request_timeout_seconds=GUARD_SECONDS
        )

        def write(*, least: int = 1, **more: Any) -> DeploymentSpec:
            asked = {"count": (2,), "act": ("",)}
            two = SmokeRequest(name="two", inputs=asked, expect={"pid": {"min": least}})
            fields = {"model": pinned, "workers": workers, "smoke": (two,), **more}
            return DeploymentSpec(
                name=name, image=self.server, image_digest=image, server=self.server, **fields
            )

        return write

    def parts(self, deployments: Any, name: str, token: str) -> tuple[int, list[str]]:
        """Return status and lines of an answer of two parts."""
        port, host = self.door(deployments, name)
        headers = {"Host": host, "Authorization": f"Bearer {token}"}
        with asking(port, request(2), f"/v2/models/{name}", headers) as answer:
            return answer.status, answer.read().decode().split("\n\n")

    def act(self, deployments: Any, name: str, act: str) -> str | None:
        """Have a worker do something; return the word that it answers, None where nothing answers yet."""
        port, host = self.door(deployments, name)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_SECONDS)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request(
                "POST", f"/v2/models/{name}/infer", json.dumps(request(1, act)), {"Host": host}
            )
            answer = connection.getresponse()
            found = answer.read()
            return word(json.loads(found)) if answer.status == http.HTTPStatus.OK else None
        return None

    @contextmanager
    def over(self, way: str, deployments: Any, name: str, count: int, act: str) -> Iterator[Next]:
        """Ask for parts over ``http`` or ``grpc``; give what waits for the next word. At the end the client leaves."""
        if way == "grpc":
            port, host = self.grpc_door(deployments, name)
            with over_grpc(port, host=host) as client:
                client.ask(count, act, model=name)
                yield lambda: client.words(1)[0]
            return
        port, host = self.door(deployments, name)
        with asking(port, request(count, act), f"/v2/models/{name}", {"Host": host}) as answer:
            assert answer.status == 200, answer.read()
            yield lambda: (event := next_event(answer)) and word(event)

    def test_smoke_requests_judge_the_joined_answer_and_who_may_ask_gets_its_parts(
        self, deployments: Any, words: Callable[..., DeploymentSpec], name: str
    ) -> None:
        assert self.release(deployments, words(tokens=True)).ending is Ending.DONE
        token = deployments.make_token(name, "shop")
        status, lines = eventually(
            lambda: (found := self.parts(deployments, name, token))[0] == 200 and found
        )
        assert [line[:6] for line in lines] == ["data: ", "data: ", ""]
        assert self.parts(deployments, name, "another")[0] == 401
        again = self.release(deployments, words(least=1 << 40))
        assert (again.ending, "pid" in again.reason) == (Ending.ROLLED_BACK, True), again
        assert self.parts(deployments, name, token)[0] == status

    @pytest.mark.parametrize(  # over gRPC: serving/test_grpc_streaming.py
        "way", ["http", pytest.param("grpc", marks=pytest.mark.nightly)]
    )
    def test_each_part_comes_before_the_next_and_none_is_computed_for_who_left(
        self, deployments: Any, words: Callable[..., DeploymentSpec], name: str, place: str, way: str
    ) -> None:
        outcome = self.release(deployments, words(grpc=way == "grpc"))
        assert outcome.ending is Ending.DONE, outcome
        eventually(lambda: self.act(deployments, name, "") == "w0")
        with self.over(way, deployments, name, 3, f"wait {place}") as next_word:
            assert next_word() == "w0"
            for number in (1, 2):  # until then its worker does not go on
                assert self.act(deployments, name, f"make {place}.{number}") == "w0"
                assert next_word() == f"w{number}"
            if way == "http":  # no part over gRPC is known as the last
                assert next_word() is None
        with self.over(way, deployments, name, 1 << 40, f"run {place}") as next_word:
            assert next_word() == "w0"
            assert self.act(deployments, name, f"look {place}.closed") == "missing"
        eventually(lambda: self.act(deployments, name, f"look {place}.closed") == "there")
        (counted,) = deployments.counts(name).values()
        assert (counted.failed, counted.refused) == (0, 0)


class TestStreamsOnThisMachine(OnThisMachine, StreamsContract):
    """In workers that the front starts."""

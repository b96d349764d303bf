"""Who may ask a deployment, and how much: what is refused before anything is deployed."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core.data import Pinned
from muster.core.deployment import Batch, DeploymentSpec, RequestLimits, RequestLog, Workers, check_streams
from muster.core.errors import SpecError
from muster.core.wire import dumps, dumps_every_field, loads

DIGEST = "b3:" + "ab" * 32


def spec(**more: Any) -> DeploymentSpec:
    model = Pinned(address="volume://flights/model@1", digest=DIGEST)
    return DeploymentSpec(name="flights", model=model, image="serve", image_digest=DIGEST, **more)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "10.0.0.1"])
def test_beyond_this_machine_tokens_are_needed(host: str) -> None:
    with pytest.raises(
        SpecError, match=rf"all of them could ask: write host='{host}', tokens=True, and `muster depl"
    ):
        spec(host=host)
    assert spec(host=host, tokens=True).host == host


@pytest.mark.parametrize("host", ["", "localhost", "::", "0.0.0.0:80", "1.2.3", "0", 7, None])
def test_a_host_is_an_address(host: Any) -> None:
    with pytest.raises(SpecError, match=r"need an IPv4 address of this machine, such as 0\.0\.0\.0"):
        spec(host=host, tokens=True)


def test_loopback_needs_none_and_digests_of_old_specs_stay() -> None:
    assert spec(host="127.0.0.2").tokens is False
    assert not {"host", "tokens", "limits"} & {*dumps_every_field(spec()).split('"')}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"rate": float("inf")}, "rate is inf"),
        ({"rate": "fast"}, "rate is 'fast': need a number"),
        ({"rate": True}, "rate is True: need a number"),
        ({"rate": 5, "burst": 0}, "burst is 0: need a whole number"),
        ({"rate": 5, "burst": 1.5}, "burst is 1.5: need a whole number"),
        ({"burst": 5}, "burst is 5: need a whole number of 1 or more, beside a rate"),
        ({"body_mib": 0}, "body_mib is 0"),
        ({"body_mib": 17}, "body_mib is 17: need more than 0, at most 16"),
    ],
)
def test_limits_that_mean_nothing_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        RequestLimits(**given)


def test_a_burst_is_a_second_s_worth_where_none_is_said() -> None:
    assert RequestLimits(rate=50).order() == {"rate": 50.0, "burst": 50, "body_bytes": 16 << 20}
    assert RequestLimits(rate=0.1).order()["burst"] == 1
    assert RequestLimits(body_mib=0.5).order() == {"rate": None, "burst": None, "body_bytes": 1 << 19}


def workers(**more: Any) -> Workers:
    return Workers(image="tables", image_digest=DIGEST, **more)


def test_an_answer_in_parts_is_neither_batched_nor_logged() -> None:
    with pytest.raises(SpecError, match="stream and batch: a predictor that yields its answer in parts"):
        workers(stream=True, batch=Batch())
    with pytest.raises(SpecError, match="stream and log: an answer in parts has not the rows of its request"):
        spec(workers=workers(stream=True), log=RequestLog())
    assert spec(workers=workers(), log=RequestLog()).log


def test_only_code_of_the_author_s_can_answer_in_parts() -> None:
    check_streams("volume://words/model@1", ["model.onnx", "predict.py", "signature.json"])
    for files in (["model.onnx"], ["model.skops", "beside/predict.py"]):
        with pytest.raises(SpecError, match=r"stream: volume://words/model@1 holds no predict\.py"):
            check_streams("volume://words/model@1", files)


def test_whether_a_model_streams_is_written_only_where_it_does() -> None:
    whole, parts = spec(workers=workers()), spec(workers=workers(stream=True))
    assert "stream" not in dumps_every_field(whole) + str(whole.worker_setup())
    assert loads(DeploymentSpec, dumps(parts)) == parts
    assert (parts.worker_setup() or {})["stream"] is True

"""Clients and pods of earlier releases are understood: what they said was recorded, and is said again here.

``recorded/`` holds two releases, from before and after the calls of held outputs and checkpoints.
"""

import json
import re
import zlib
from base64 import b64decode
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.unit.volumes.service.conversation import conversation, plain, recorded
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.core.errors import SpecError
from muster.core.replica import PartManifest, Report
from muster.core.status import JobStatus
from muster.core.wire import dumps_every_field, loads
from muster.volumes import fsck
from muster.volumes.base import Version
from muster.volumes.service.app import Checking
from muster.volumes.service.calls import Count
from muster.volumes.service.table import TABLE
from muster.volumes.service.tokens import operator_token

KINDS = [
    *(kind for row in TABLE for kind in (row.message, row.sent and row.sent.kind) if kind is not None),
    *(JobStatus, Report, PartManifest, Version, Checking, fsck.Report, Count),
]
RECORDED = Path(__file__).parent / "recorded"


def load(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


def document(text):
    """Lines of JSON as what they say, anything else as it is; what an error says to people may change."""
    text = re.sub(
        r'"freed_bytes":\d+', '"freed_bytes":0', text.replace("MOMENT", "1.5")
    )  # as long as messages are
    try:
        said = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text
    return [_whole(each) if isinstance(each, dict) else each for each in said]


def _whole(said):
    """A message with the fields that were not written since they equal their defaults."""
    if "error" in said:
        return {**said, "message": ""}
    if not isinstance(said, dict) or "kind" not in said:
        return said
    for kind in KINDS:
        if kind.__name__ == said["kind"]:
            with suppress(SpecError):  # another one of that name
                return json.loads(dumps_every_field(loads(kind, json.dumps(said))))
    raise AssertionError(f"no {said['kind']} is known that says {said}")


def holds(now, before):
    """Whether `now` says all that `before` says: later releases may add fields, and no more."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(name in now and holds(now[name], value) for name, value in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(now) == len(before) and all(map(holds, now, before))
    return now == before or (now is None and before == {})  # nothing, left out or empty


def asked(exchange):
    """What was asked: of a manifest this release asks for the first bytes, which are all of a small one."""
    whole = exchange["range"] if exchange["path"] != "/v1/manifest" else ""
    return exchange["method"], exchange["path"], exchange["query"], whole


def test_the_client_asks_as_the_release_before_did_and_is_answered_so(tmp_path):
    now, before = conversation(tmp_path), load("second")
    assert [asked(exchange) for exchange in now] == [asked(exchange) for exchange in before]
    for mine, theirs in zip(now, before, strict=True):
        in_part = mine["path"] == "/v1/manifest"
        assert mine["status"] == (206 if in_part else theirs["status"]), mine
        assert mine["bytes"] == theirs["bytes"], asked(mine)
        assert holds(document(mine["body"]), document(theirs["body"])), asked(mine)
        assert holds(document(mine["answer"]), document(theirs["answer"])), asked(mine)


@pytest.mark.parametrize("release", ["first", "second"])
def test_earlier_clients_and_pods_are_answered_as_they_were(tmp_path, release):
    with recorded(tmp_path) as (url, keys, recorder):
        token = operator_token(keys, lifetime_seconds=3600)
        client = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=GUARD_SECONDS
        )
        with client:
            for number, exchange in enumerate(load(release)):
                _prepare(exchange, tmp_path / "store" / "staging" / "a-1" / "1")
                if exchange["status"] == 401 or "no token" in exchange["answer"]:
                    continue  # asked with a pod's token, for what only operators may see
                until(
                    lambda number=number, exchange=exchange: _said(
                        client, recorder, number, exchange, tmp_path
                    ),
                    lambda said, exchange=exchange: (
                        said["status"] == exchange["status"]
                        and holds(document(said["answer"]), document(exchange["answer"]))
                    ),
                )


def _prepare(exchange, attempt):
    """Write what a pod wrote before it asked for this."""
    if exchange["path"].endswith("/saved"):
        (attempt / "checkpoints" / "step-5").write_bytes(b"weights")
    if exchange["path"].endswith("/seal"):
        (attempt / "main-0" / "out" / "x").write_bytes(b"abc")


def _said(client, recorder, number, exchange, folder):
    """Ask as it was asked, with another name by chance where there was one; return what crossed the wire."""
    body = zlib.decompress(b64decode(exchange["bytes"])) if exchange["bytes"] else exchange["body"].encode()
    name = f"{number:016x}".encode()
    response = client.request(
        exchange["method"],
        exchange["path"].replace("CHANCE", name.decode()),
        params=exchange["query"].replace("CHANCE", name.decode()),
        headers={"range": exchange["range"]} if exchange["range"] else {},
        content=body.replace(b"CHANCE", name),
    )
    assert response.status_code
    return plain(recorder.exchanges[-1], root=str(folder / "store"))

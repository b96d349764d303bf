"""The table of calls: what follows from the protocols' signatures, and that each store has them all."""

import inspect
import json
from dataclasses import MISSING, fields

import pytest
from tests.unit.volumes.memory import MemoryLedger, MemoryStore

from muster.core.errors import SpecError
from muster.volumes.folder import FolderStore
from muster.volumes.ledger import FolderLedger
from muster.volumes.protocols import Attempts, Ledger, LocalStore, ServedStore, VersionStore
from muster.volumes.service.client import ServiceLedger, ServiceStore
from muster.volumes.service.table import ROWS, TABLE, Row


def calls(protocol):
    return {
        name: method
        for name, method in inspect.getmembers(protocol, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("store", "protocol"),
    [
        (FolderStore, LocalStore),
        (MemoryStore, LocalStore),
        (ServiceStore, ServedStore),
        (FolderLedger, Ledger),
        (MemoryLedger, Ledger),
        (ServiceLedger, Ledger),
    ],
)
def test_a_store_has_every_call_of_its_protocol(store, protocol):
    for name in calls(protocol):
        assert callable(getattr(store, name)), name


def test_no_call_of_a_store_returns_a_path_but_those_of_local_stores():
    local = set(calls(LocalStore)) - set(calls(VersionStore)) - set(calls(Attempts))
    assert {"path", "code", "stage", "staging"} <= local
    for protocol in LocalStore.__mro__[1:]:
        for method in calls(protocol).values():
            assert "Path" not in str(inspect.signature(method).return_annotation), method


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.method.__qualname__)
def test_a_row_has_all_arguments_of_its_method(row):
    parameters = set(row.signature.parameters) - {"self"}
    carried = set(row.message.__dataclass_fields__) if row.message else parameters
    assert {row.names.get(name, name) for name in parameters if f"{{{name}}}" not in row.path} <= carried
    assert row.turns in ("quick", "working", "starting")


def test_a_call_comes_out_as_it_went_in():
    row = ROWS[Attempts.commit]
    path, query, body = row.request(("a-1",), {"attempt": 2, "metrics": {"auc": 0.5}, "modules": ["a.py"]})
    assert (path, query) == ("/v1/jobs/a-1/commit", {})
    assert json.loads(body or b"")["kind"] == "Order"
    received = row.arguments({"job_id": "a-1"}, {}, body or b"")
    assert received == {"job_id": "a-1", "attempt": 2, "metrics": {"auc": 0.5}, "modules": ("a.py",)}


def test_what_an_earlier_client_does_not_send_has_its_default():
    sent = b'{"kind":"Rules","schema":1,"volumes":[],"keep_last":2,"job_days":30.0,"young_days":0.0}'
    (row,) = (row for row in TABLE if row.path == "/v1/gc/plan")
    assert row.arguments({}, {}, sent)["checkpoint_days"] == 7.0


def test_a_field_may_be_left_out_only_where_earlier_releases_have_its_default_too():
    kinds = [kind for row in TABLE for kind in (row.message, row.sent and row.sent.kind) if kind is not None]
    own = {
        (kind.__name__, field.name): field.default
        for kind in kinds
        for field in fields(kind)
        if kind.__module__ in ("types", "muster.volumes.service.table") and field.default is not MISSING
    }
    assert own == {
        ("NewJob", "owner"): None,
        ("NewJob", "kept"): "",  # of a budget, which no earlier release has
        ("Copying", "partition"): None,
        ("Copying", "note"): "",
        ("Claim", "expected"): None,
        ("Begin", "replicas"): None,  # of an elastic gang, which no earlier release has
        ("Place", "replicas"): None,
        ("Order", "metrics"): None,
        ("Order", "modules"): None,
        ("Why", "reason"): "",
        ("Current", "taken"): False,
        ("Rules", "volumes"): (),
        ("Rules", "keep_last"): 3,
        ("Rules", "keep_partitions"): None,
        ("Rules", "partition_days"): None,
        ("Rules", "job_days"): 30.0,
        ("Rules", "young_days"): 0.0,
        ("Rules", "checkpoint_days"): 7.0,
        ("Rules", "now"): False,
        ("Swept", "resumable"): (),
        ("Swept", "freed_bytes"): 0,
        ("Swept", "at_once"): False,
    }


def test_a_query_lacks_nothing_and_its_numbers_are_numbers():
    row = Row(VersionStore.newest, "GET", "/v1/versions", answer="Versions.versions")
    assert row.arguments({}, {"volume": "a/b", "limit": "3"}, b"") == {"volume": "a/b", "limit": 3}
    with pytest.raises(SpecError, match="lacks its parameter 'volume'"):
        row.arguments({}, {"limit": "3"}, b"")
    with pytest.raises(SpecError, match="need a whole number"):
        row.arguments({}, {"volume": "a/b", "limit": "many"}, b"")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=3", "lacks its parameter 'volume'"),
        ("", "lacks its parameter 'volume'"),
        ("volume=a/b&limit=-1", "need a whole number"),
    ],
)
def test_what_fits_no_row_of_an_address_is_refused(service, query, said):
    with service.asking(service.token()) as client:
        answer = client.get(f"/v1/versions?{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, "SpecError")
    assert said in answer.json()["message"]

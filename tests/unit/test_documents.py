"""What every document promises to the release before and the one after (docs/adr/past/0022-two-releases.md)."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import pkgutil
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from tests.unit.documents import (
    DERIVED,
    LIST,
    READERS,
    READS,
    calls,
    default,
    documents,
    fields,
    full,
    given,
    least,
    lines,
    names,
    needed,
    refused,
    sources,
    triggers,
)

from muster.airflow.attempts.attempt import Attempt
from muster.airflow.embedded.home import RequestNotes
from muster.core import wire
from muster.core.errors import Corrupt, SpecError
from muster.volumes.commit import read_plan
from muster.volumes.commit_records import read_commit
from muster.volumes.folder import FolderStore
from muster.volumes.layout import open_layout
from muster.volumes.service import tokens

TRIGGERS = [name for name in names() if name.endswith("Trigger")]
KINDS = [name for name in names() if name not in TRIGGERS]
LEFT_OUT = {"Role": ("command", "ends_with"), "Dimension": ("choices",), "Workers": ("stream",)}
"""Fields that a full document has at their default, since another one is set."""

# Modules that read JSON without muster.core.wire, and whose. A new one is either read by wire, or told here
# and tried below.
BY_HAND = {
    "airflow.embedded.home": "a RunResult in an envelope; what cannot be read is asked of Airflow",
    "airflow.embedded.load": "a param that a user typed",
    "airflow.embedded.runs": "an Attempt, tried below",
    "airflow.lineage": "what Great Expectations says",
    "airflow.operators.releasing": "a user's smoke requests",
    "airflow.operators.validate": "what Great Expectations says, and a user's expectations",
    "ext.page.routes_volumes": "a version's own JSON lines",
    "ext.plan.routes": "of a process of its own, and params of a user",
    "ext.usage.log": "a line for each job, read by its places; tried in unit/ext/usage/test_log.py",
    "ext.up.home": "secrets by name",
    "ext.support.blanking": "what others wrote into an annotation or a text",
    "backends.kubernetes.api.client": "Kubernetes'",
    "backends.kubernetes.api.refusals": "Kubernetes'",
    "backends.kubernetes.api.watching": "Kubernetes'",
    "backends.kubernetes.collecting": "a process of the same release's, in the model server's image",
    "backends.kubernetes.manifests.bootstrap": "its own arguments, and an error's text",
    "backends.kubernetes.serving.kinds": "image and command of each container",
    "backends.kubernetes.serving.route": "shares by revision",
    "backends.kubernetes.state.faults": "whether a line is JSON",
    "backends.releases.inference": "a model server's",
    "backends.local.serving.server": "a model server's",
    "backends.local.spawn": "of the process that starts it",
    "ext.mirrors.opening": "which layout a mirror has",
    "ext.search.mlflow.reach": "of a process of the same release, which answers with MLflow's own values",
    "ext.search.mlflow.helper": "calls, of the process that starts it",
    "backends.request_log": "a process of the same release's, in the model server's image",
    "ext.search.tracking": "tags for MLflow, which an author may give",
    "ext.notebook.commands": "what its own --check prints",
    "cli.transfer": "of the program in an image of the same release, in a process of its own",
    "cli.warm.place": "of a process of the same release",
    "cli.warm.server": "of a process of the same release: the key compares all imported files",
    "ext.notebook.kernel": "inputs, of the command that starts it",
    "core.comparison": "a spec, for its digest",
    "core.wire": "all documents",
    "images.interpreter": "what its own program prints in a Python",
    "volumes.commit": "wire.build",
    "volumes.commit_records": "tried below",
    "volumes.layout": "tried below",
    "volumes.ledger": "two specs, compared as written",
    "ext.mirrors.scan": "whose versions a store holds; read for what is known",
    "ext.mirrors.open_layout": "small files of its own, read for what is known",
    "volumes.partitions": "a copy, which of another shape counts as none; tried in unit/volumes/test_partitions.py",
    "volumes.event_logs": "events, a line each, of which an extension reads what it wrote",
    "ext.search.results": "the table of an ended search's trials, of which a later one reads params and values",
    "volumes.series": "its own file, by format; tried in unit/core/test_series.py",
    "volumes.service.client": "a progress line",
    "volumes.service.refusals": "an error's text",
    "volumes.service.starts": "attempts by start",
    "volumes.service.tokens": "wire.build",
    "volumes.tombstones": "its own files, by digest; tried in unit/volumes/test_tombstones.py",
    "worker.launchers.launcher": "tags for MLflow, which an author may give",
    "worker.store": "a count, and an error's text",
}


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> type:
    """The document of that name."""
    return documents()[request.param]


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_document_is_read_back_equal_and_every_field_that_was_set_is_written(kind: type) -> None:
    document = full(kind)
    said = wire.written(document)
    assert wire.build(kind, json.loads(json.dumps(said))) == document
    assert said.keys() == fields(kind).keys() - set(LEFT_OUT.get(kind.__name__, ()))


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_what_equals_its_default_is_not_written(kind: type) -> None:
    document = least(kind)
    said = wire.written(document)
    assert wire.build(kind, json.loads(json.dumps(said))) == document
    assert said.keys() == needed(kind)
    assert wire.plain(document).keys() == fields(kind).keys()  # what --json shows has every key


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_what_a_document_does_not_know_is_refused_by_name_and_so_is_what_it_lacks(kind: type) -> None:
    said = wire.written(least(kind))
    with pytest.raises(SpecError, match="unknown field 'later'"):
        wire.build(kind, {**said, "later": 1})
    for name, field in fields(kind).items():
        if default(field) is dataclasses.MISSING:
            with pytest.raises(SpecError, match=f"'{name}'"):
                wire.build(kind, {key: value for key, value in said.items() if key != name})


@pytest.mark.parametrize(
    "kind", [each for each in KINDS if each != "muster.volumes.service.tokens.Token"], indirect=True
)
def test_a_line_says_its_kind_and_schema_and_another_one_is_refused(kind: type) -> None:
    """A token is signed as it is, and has no such line."""
    said = json.loads(wire.dumps(full(kind)))
    assert wire.loads(kind, json.dumps(said)) == full(kind)
    for changed in ({"schema": wire.SCHEMA_VERSION + 1}, {"kind": "Later"}):
        with pytest.raises(SpecError, match=f"schema {wire.SCHEMA_VERSION + 1}|found 'Later'"):
            wire.loads(kind, json.dumps({**said, **changed}))


@pytest.mark.parametrize("path", TRIGGERS)
@pytest.mark.parametrize("all_of_them", [True, False])
def test_airflow_stores_the_keywords_of_a_trigger_that_are_not_at_their_default(
    path: str, all_of_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TopicTrigger wants Kafka's client to be installed
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    kind = triggers()[path]
    keywords = given(kind, all_of_them=all_of_them)
    assert kind(**keywords).serialize() == (path, keywords)
    assert pkgutil.resolve_name(path) is kind, "the triggerer finds it by what was stored"


def test_every_document_is_tried() -> None:
    assert (sorted(KINDS), sorted(TRIGGERS)) == (sorted(documents()), sorted(triggers()))


def test_documents_are_those_of_the_listing_and_the_schema_moves_with_it() -> None:
    listed, found = LIST.read_text().splitlines(), list(lines())
    assert (refused(listed, found), sorted({*found} ^ {*listed})) == ([], []), (
        "python -m tests.unit.documents writes the list anew; see there"
    )


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (["schema 1", "a.B", "a.B.x: int", "a.B.y: str = ''"], []),
        (["schema 1", "a.B", "a.B.x: int", "a.C", "a.C.z: int"], []),
        (["schema 1", "a.B", "a.B.x: int", "a.B.y: str"], ["a new field needs a default: a.B.y: str"]),
        (["schema 1", "a.B", "a.B.x: str"], ["taken away or changed: a.B.x: int", "a new field needs a default: a.B.x: str"]),
        (["schema 1", "a.B", "a.B.x: int = 0"], ["taken away or changed: a.B.x: int"]),
        (["schema 1"], ["taken away or changed: a.B", "taken away or changed: a.B.x: int"]),
        (["schema 1", "c.B", "c.B.x: int", "c.B.y: str = ''"], []),
        (["schema 1", "c.B", "c.B.x: str"], ["taken away or changed: c.B.x: int", "a new field needs a default: c.B.x: str"]),
        (["schema 2"], []),
    ],
)  # fmt: skip
def test_while_the_schema_stays_a_listing_only_gains_what_has_a_default(
    now: list[str], said: list[str]
) -> None:
    assert refused(["schema 1", "a.B", "a.B.x: int"], now) == said


def test_a_trigger_stays_in_its_module() -> None:
    before, now = (["schema 1", f"{module}.BTrigger", f"{module}.BTrigger.x: int"] for module in "ac")
    assert refused(before, now)[0] == "taken away or changed: a.BTrigger"


def test_every_call_that_reads_a_document_names_it_or_is_known() -> None:
    found = {
        ast.unparse(call.args[0]) for _, tree in sources(READS) for call in calls(tree, READERS) if call.args
    }
    unknown = {name for name in found if not name.rpartition(".")[2][:1].isupper()}
    assert unknown == DERIVED


def test_json_that_is_read_without_wire_is_known() -> None:
    found = {
        module.removeprefix("muster.")
        for module, tree in sources("json.loads")
        if any(calls(tree, {"json.loads"}))
    }
    assert found == BY_HAND.keys()


# What muster reads by hand: states and records are read for what is known, and keep what is not; orders are refused.


def test_a_commit_record_of_a_later_release_is_read(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    path = store.layout.commit("train-1")
    path.write_text(json.dumps({"outputs": {"m": [["raw/m", 1]]}, "later": 1}))
    commit = read_commit(store.layout, "train-1")
    assert commit is not None
    assert (commit.places, commit.records) == ([("raw/m", 1)], {})


def test_a_store_of_a_later_release_is_opened_unless_its_format_moved(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    (marker,) = (
        path for path in store.layout.root.iterdir() if path.is_file() and "format" in path.read_text()
    )
    document = json.loads(marker.read_text())
    del document["digest"]  # of the fields that this release writes
    marker.write_text(json.dumps({**document, "later": 1}))
    assert open_layout(store.layout.root) == store.layout


def test_an_attempt_of_a_later_release_is_read() -> None:
    attempt = Attempt(nonce="n", max_tries=3, number=2)
    assert Attempt.load({**attempt.dump(), "later": 1}) == attempt


def test_the_plan_of_a_commit_of_a_later_release_is_refused_by_name(tmp_path: Path) -> None:
    placed = {"folder": "0", "output": "m", "volume": "raw/m", "number": 1}
    (tmp_path / "PLAN").write_text(json.dumps([placed]))
    (plan,) = read_plan(tmp_path) or ()
    assert (plan.partition, plan.record) == (None, "")  # an earlier release wrote it
    (tmp_path / "PLAN").write_text(json.dumps([{**placed, "later": 1}]))
    with pytest.raises(Corrupt, match=r"PLAN: Placed: unknown field 'later'.*run the release of muster that"):
        read_plan(tmp_path)


def test_the_note_of_a_run_of_a_later_release_is_refused_by_name(tmp_path: Path) -> None:
    notes = RequestNotes(tmp_path)
    (tmp_path / "r.asked").write_text(json.dumps({"run_id": "r", "dag_id": "d", "params": {}, "later": 1}))
    with pytest.raises(SpecError, match=r"r\.asked: Asked: unknown field 'later'.*or delete the file"):
        notes.left("d")


def test_a_token_of_a_later_release_is_refused_by_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(tokens.Token):
        later: int = 0

    keys = (b"k" * 32,)
    plain, more = (
        tokens.sign(keys, Later(kind=tokens.TokenKind.OPERATOR, expires=2e9 * 2, later=later))
        for later in (0, 1)
    )
    assert tokens.verify(keys, plain).kind is tokens.TokenKind.OPERATOR  # it uses nothing new
    with pytest.raises(tokens.TokenRefused, match=r"unknown field 'later'.*ask the store service's operator"):
        tokens.verify(keys, more)

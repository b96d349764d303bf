"""`muster usage` as a person types it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.backends.releases.world import World, spec
from tests.unit.ext.usage.test_table import line
from typer.testing import CliRunner, Result

from muster.backends.releases.manual import promote
from muster.cli.app import app
from muster.core.deployment import RevisionState
from muster.core.text import as_shown
from muster.ext.usage import log
from muster.volumes.folder import FolderStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    now = time.time()
    store = FolderStore(tmp_path / "store")
    held = [(now - 7200.0, now, 2, 2)]
    log.append(store.layout.root, line(ended=now, held=held))
    log.append(store.layout.root, line(job_id="b", made=[], ended=now, held=held, dag="x", gpu_share=None))
    return store


def usage(*words: str) -> Result:
    return CliRunner().invoke(app, ["usage", *words])


@pytest.mark.usefixtures("store")
def test_a_table_and_what_it_leaves_out() -> None:
    done = usage()
    assert done.exit_code == 0
    title, flights, other = [line.split() for line in done.stdout.splitlines()]
    assert title[:5] == ["dag", "jobs", "GPU-hours", "used", "wasted"]
    assert flights == ["flights", "1", "4.00", "3.00", "1.00", "16", "4.00", "12"]
    assert other[:5] == ["x", "1", "4.00", "0.00", "0.00"]
    assert "not measured, so neither used nor wasted: 4.00 GPU-hours" in done.stderr


@pytest.mark.usefixtures("store")
def test_what_one_version_cost_though_gc_deleted_it() -> None:
    done = usage("flights/model@7", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["model"], row["jobs"], row["gpu_hours_held"]) == ("flights/model@7", 1, 4.0)
    assert "flights/model@7 cost 4.00 GPU-hours, 1.00 wasted" in usage("flights/model@7").stdout


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--by", "dag,colour"),
            "'colour' is no column of usage: name one or more of dag, task, team, user, class, state, volume, model",
        ),
        (
            ("--since", "yesterday"),
            "'yesterday' is no time: write minutes as 90m, hours as 24h, days as 7d, or a date as 2026-11-01",
        ),
    ],
)
def test_a_wrong_word_is_refused_by_exit_code_2(words: tuple[str, ...], said: str) -> None:
    done = usage(*words)
    assert done.exit_code == 2
    assert said in " ".join(as_shown(done.stderr).replace("│", " ").split())


@pytest.mark.usefixtures("store")
def test_no_model_is_deployed() -> None:
    done = usage("--by", "model")
    assert done.exit_code == 0
    assert "no deployment serves a model" in done.stderr


def test_a_version_that_two_deployments_serve_has_both_names(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    for name in ("line", "line-eu"):
        made = world.prepare(replace(spec(2), name=name), by="task")
        world.played.change(name, made.name, state=RevisionState.READY, ready=1)
        promote(world, name, made.name, by="task")
    monkeypatch.setattr("muster.ext.usage.commands.open_deployments", lambda: world)
    now = time.time()
    log.append(
        store.layout.root,
        line(job_id="m", made=["volume://lines/model@2"], ended=now, held=[(now - 3600, now, 1, 1)]),
    )
    (row,) = json.loads(usage("--by", "model", "--json").stdout)["rows"]
    assert (row["model"], row["gpu_hours_held"]) == ("line, line-eu (lines/model@2)", 1.0)

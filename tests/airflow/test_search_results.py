"""What a search keeps of its trials, and a gang that starts from the checkpoints of one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.volumes.folder import FolderStore

STEPS = """
    from pathlib import Path

    def climb(model: Path, checkpoints: Path, *, x: float, epochs: int) -> None:
        saved = checkpoints / "epoch"
        epoch = int(saved.read_text()) if saved.exists() else 0
        print("from", epoch, flush=True)
        while epoch < epochs:
            epoch += 1
            saved.with_suffix(".part").write_text(str(epoch))
            saved.with_suffix(".part").replace(saved)
            print(f"muster: epoch={epoch}/4 height={1 - (x - 0.6) ** 2}", flush=True)
        (model / "x").write_text(str(x))
"""
SEARCH = """
from muster.airflow import SearchOperator, uniform
SearchOperator(
    task_id="search", image="python", entrypoint="{name}.steps:climb", outputs={{"model": "{name}/model"}},
    space={{"x": uniform(0, 1)}}, metric="height", trials=4, rungs=(2, 4), until="epochs", at_once=2,
    resources=Resources(cpus=0.2, memory_gib=0.2), results="{name}/search", keep_checkpoints={keep},
)
"""
GANG = """
GangOperator(
    task_id="on", image="python", entrypoint="{name}.steps:climb", launcher="plain", outputs={{"model": "{name}/on"}},
    params={{"x": 0.5, "epochs": 6}}, resources=Resources(cpus=0.2, memory_gib=0.2),
    inputs={{"checkpoints": "{name}/search@latest/checkpoints/{trial}"}},
)
"""


def test_a_gang_starts_from_the_checkpoints_of_a_trial_that_the_search_kept(
    write_dag: Callable[..., None],
    dag_folder: Path,
    run: Callable[..., Any],
    seen: Any,
    store: FolderStore,
) -> None:
    name = dag_folder.name
    write_dag(SEARCH.format(name=name, keep=2), steps=STEPS)
    assert run().succeeded
    results = store.path(f"{name}/search@1")
    table = json.loads((results / "trials.json").read_text())
    kept = sorted(int(path.name) for path in (results / "checkpoints").iterdir())
    by_value = sorted(table["trials"], key=lambda trial: -trial["value"])
    assert kept == sorted(trial["trial"] for trial in by_value[:2])
    assert (results / "checkpoints" / str(table["best"]) / "epoch").read_text() == "4", (
        "it ended with a model, too"
    )
    assert any("checkpoints of 2 trials are kept" in line for line in [*seen.text, *seen.notes]), seen.text
    assert not store.held()
    write_dag(GANG.format(name=name, trial=table["best"]), steps=STEPS)
    assert run().succeeded
    assert "on: [rank 0] from 4" in seen.text or any("from 4" in line for line in seen.text)
    (made,) = store.resolve(f"{name}/on")
    (given,) = store.record(made.address).inputs["checkpoints"]
    assert given.address == f"volume://{name}/search@1"
    write_dag(GANG.format(name=name, trial=99), steps=STEPS)
    failed = run()
    assert not failed.succeeded
    assert "holds no folder 'checkpoints/99'" in str(failed)
    assert f"in checkpoints there is {', '.join(map(str, kept))}" in str(failed)


def test_a_search_keeps_no_checkpoints_where_none_are_wanted(
    write_dag: Callable[..., None], dag_folder: Path, run: Callable[..., Any], store: FolderStore
) -> None:
    write_dag(SEARCH.format(name=dag_folder.name, keep=0), steps=STEPS)
    assert run().succeeded
    files = store.manifest(f"{dag_folder.name}/search@1")
    assert set(files) == {"trials.json", "trials.csv", "curves.csv"}
    assert not store.held()

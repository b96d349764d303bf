"""Stages that take what was made before, under a real Airflow: what is kept, what is not, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.embedded.result import RunResult
from muster.core.errors import SpecError
from muster.volumes.folder import FolderStore

Run = Callable[..., RunResult]
Write = Callable[..., None]

CHAIN = """
first = JobOperator(
    task_id="first", image="python", entrypoint="{name}.steps:first", resources=SMALL, cache=True,
    outputs={{"numbers": "{name}/numbers"}}, params={{"count": "{{{{ params.count }}}}"}},
)
second = JobOperator(
    task_id="second", image="python", entrypoint="{name}.steps:second", resources=SMALL,
    inputs={{"numbers": {given}}}, outputs={{"total": "{name}/total"}}{more},
)
first >> second
"""

STEPS = """
from pathlib import Path
from {name}.words import WORD

def first(numbers: Path, count: int) -> dict[str, float]:
    (numbers / "n").write_text("\\n".join(map(str, range(count))))
    return {"count": count}

def second(numbers: Path, total: Path) -> None:
    (total / "sum").write_text(WORD + str(sum(map(int, (numbers / "n").read_text().split()))))
"""

PARAMS = "{'count': Param(4, type='integer')}"


@pytest.fixture
def chain(write_dag: Write, dag_folder: Path) -> Callable[..., None]:
    """Write the two stages, of which the second names its input by XCom or by a selector."""
    name = dag_folder.name

    def write(
        *, given: str = 'first.versions["numbers"]', more: str = ", cache=True", word: str = "WORD = ''"
    ) -> None:
        write_dag(
            CHAIN.format(name=name, given=given, more=more),
            params=PARAMS,
            steps=STEPS.replace("{name}", name),
            words=word,
            idle="# not imported",
        )

    return write


def states(result: RunResult) -> list[str]:
    return ["kept" if stage.kept else stage.state for stage in result.stages]


def events(uri: str) -> int:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        query = select(func.count()).where(AssetEvent.asset_id == AssetModel.id, AssetModel.uri == uri)
        return int(session.scalar(query) or 0)


def test_the_same_again_is_kept_and_what_differs_is_said(
    chain: Callable[..., None], dag_folder: Path, run: Run, store: FolderStore, seen: Any
) -> None:
    name = dag_folder.name
    chain()
    made = run()
    assert states(made) == ["success", "success"]
    again = run()
    assert states(again) == ["kept", "kept"]
    for before, now in zip(made.stages, again.stages, strict=True):
        assert (now.versions, now.metrics, now.job_id) == (before.versions, before.metrics, before.job_id)
        assert now.overhead_seconds is None
    (line,) = [line for line in seen.text if line.startswith("first: [muster] kept")]
    assert line.startswith(f"first: [muster] kept {name}/numbers@1 of 2")
    assert line.endswith(": same code, image, inputs and params")
    assert len(store.versions(f"{name}/numbers")) == 1
    assert events(f"volume://{name}/numbers") == events(f"volume://{name}/total") == 1
    (dag_folder / "idle.py").write_text("# a comment in a file that is not imported")
    assert states(run()) == ["kept", "kept"]
    seen.text.clear()
    assert states(run({"count": "5"})) == ["success", "success"]
    assert _said(seen, "first: [muster] not kept") == f"count 4 → 5 (compared with {name}/numbers@1 of "
    assert _said(seen, "second: [muster] not kept").startswith(f"input numbers: {name}/numbers@1 → @2 (comp")
    assert states(run({"count": "4"})) == ["kept", "kept"], "each reads what the other returned"
    seen.text.clear()
    (dag_folder / "words.py").write_text("WORD = '1'")
    assert states(run()) == ["success", "success"], "imported at second hand"
    assert _said(seen, "first: [muster] not kept").startswith(f"{name}/words.py changed (compared with ")


def _said(seen: Any, start: str) -> str:
    """The one line that begins so, up to its date."""
    (line,) = [line for line in seen.text if line.startswith(start)]
    text: str = line.removeprefix(start).lstrip(": ")
    return text[: text.index(" of 2") + 4]


def test_what_may_not_be_kept_is_made_again(
    chain: Callable[..., None], dag_folder: Path, run: Run, store: FolderStore, seen: Any
) -> None:
    name = dag_folder.name
    chain()
    run()
    assert states(run(no_cache=True)) == ["success", "success"]
    with pytest.raises(SpecError, match="a resumed run keeps what it made: leave --no-cache out"):
        run(resume="keep", no_cache=True)
    assert states(run()) == ["kept", "kept"]
    assert states(run(start="second")) == ["kept", "success"], "a person wants it made again"
    for version in store.versions(f"{name}/total"):
        store.retire(version.address, reason="wrong")
    assert states(run()) == ["kept", "success"]
    chain(more=", cache=True, cache_key={'rows of': 'Tuesday'}")
    assert states(run()) == ["kept", "success"]
    assert any('cache_key null → {"rows of": "Tuesday"}' in line for line in seen.text)
    chain(more=", cache=None")
    assert states(run()) == ["kept", "success"], "[muster] cache is False"


def test_a_resume_compares_the_whole_stage(
    chain: Callable[..., None], run: Run, dag_folder: Path, store: FolderStore
) -> None:
    chain(more="")
    run()
    chain(more=", env={'MODE': 'x'}")
    kept = run(resume="keep")
    assert states(kept) == ["kept", "kept"]
    (warning,) = kept.warnings
    assert warning.startswith('second is kept, although env MODE none → "x" since it ran')
    strict = run(resume="strict")
    assert states(strict) == ["kept", "success"]
    made = store.newest(f"{dag_folder.name}/total", limit=1)[0].address
    store.retire(made, reason="wrong")
    assert [warning.partition(" since it ran")[0] for warning in run(resume="keep").warnings] == [
        f"second is kept, although {made.removeprefix('volume://')} was retired (wrong)"
    ]
    store.reinstate(made)
    assert run(resume="strict").warnings == ()


def test_what_a_selector_would_not_find_is_made_again(
    chain: Callable[..., None], dag_folder: Path, run: Run, seen: Any
) -> None:
    name = dag_folder.name
    chain(given=f'"volume://{name}/numbers"')
    run()
    run({"count": 5})
    seen.text.clear()
    assert states(run({"count": 4})) == ["success", "kept"]
    assert any(f"{name}/numbers@2 came after {name}/numbers@1" in line for line in seen.text)
    assert states(run({"count": 4})) == ["kept", "kept"], "the same content under another number is as good"


def test_a_failed_validation_is_never_kept_and_a_passed_one_is(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore
) -> None:
    name = dag_folder.name
    suite = '{"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "COLUMN"}}]}'
    write_dag(
        f"""
        rows = JobOperator(
            task_id="rows", image="python", entrypoint="{name}.steps:rows", resources=SMALL, cache=True,
            outputs={{"rows": "{name}/rows"}},
        )
        ValidateOperator(task_id="validate", volume=rows.versions["rows"], suite="suite.json", cache=True, retries=0)
        """,
        steps="""
        from pathlib import Path
        def rows(rows: Path) -> None:
            (rows / "a.csv").write_text("a,b\\n1,2\\n")
        """,
    )
    (dag_folder / "suite.json").write_text(suite.replace("COLUMN", "a"))
    assert states(run()) == ["success", "success"]
    assert states(run()) == ["kept", "kept"]
    (dag_folder / "suite.json").write_text(suite.replace("COLUMN", "c"))
    for _ in range(2):
        assert states(run())[1] == "failed"
    assert len(store.versions(f"{name}/rows-validation")) == 3

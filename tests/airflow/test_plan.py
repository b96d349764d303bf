"""What a plan says of a Dag before it runs, under a real Airflow."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError
from muster.ext.plan.commands import plan_dag
from muster.ext.plan.plan import Does, PlannedStage, RunPlan, When
from muster.volumes.folder import FolderStore

Write = Callable[..., None]

CHAIN = """
first = JobOperator(
    task_id="first", image="python", resources=SMALL, outputs={{"rows": "{name}/rows"}},
    command=["python", "-c", "open('{{outputs.rows}}/n', 'w').write('{{params.count}}')"],
    params={{"count": "{{{{ params.count }}}}"}},
)
second = GangOperator(
    task_id="second", image="python", replicas=2, resources=Resources(memory_gib=0.5, cpus=2),
    command=["python", "-c", "print(1)"], inputs={{"rows": first.versions["rows"]}},
    outputs={{"model": "{name}/model"}},
)
gate = GateOperator(task_id="gate", volume=second.versions["model"], require={{"auc": ">= 0.5"}})
DeployOperator(task_id="deploy", name="{deployed}", model=gate.passed, smoke=None)
"""


@pytest.fixture
def plan(home: EmbeddedHome, dag_folder: Path) -> Callable[..., RunPlan]:
    def ask(params: Mapping[str, Any] | None = None) -> RunPlan:
        return plan_dag(dag_folder.name, params=params, settings=home.settings, dags=home.dags)

    return ask


def stages(plan: RunPlan) -> dict[str, PlannedStage]:
    return {stage.label: stage for stage in plan.stages}


def write_chain(write_dag: Write, dag_folder: Path) -> None:
    text = CHAIN.format(name=dag_folder.name, deployed=dag_folder.name.replace("_", "-")[:20].strip("-"))
    write_dag(text, params="{'count': Param(4, type='integer')}")


def test_what_runs_waits_for_and_costs(
    write_dag: Write, dag_folder: Path, plan: Callable[..., RunPlan], store: FolderStore
) -> None:
    write_chain(write_dag, dag_folder)
    jobs = store.ledger.jobs()
    found = plan({"count": "5"})
    assert found.params == {"count": 5}
    first, second, gate, deploy = stages(found).values()
    assert (first.does, second.does, gate.does, deploy.does) == (
        Does.RUNS,
        Does.RUNS,
        Does.ASKS,
        Does.DEPLOYS,
    )
    assert first.start is not None
    assert second.start is not None
    assert first.start.when is When.NOW
    assert first.start.ends is None, "no run of it has ended here"
    assert second.start.when is When.UNKNOWN
    assert second.start.why == "how long first takes is not known: no run of it has ended here"
    assert second.inputs == {"rows": ("what first makes",)}
    assert second.needs["cpu"] == 4
    assert (found.cpu_hours, found.ends) == (0.0, None)
    assert deploy.deploys is not None
    assert (deploy.deploys.model, deploy.deploys.instead_of) == ("what gate passes", None)
    assert store.ledger.jobs() == jobs  # nothing is submitted


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_what_can_never_run_says_why_and_its_run_has_no_end(
    write_dag: Write, plan: Callable[..., RunPlan], run: Callable[..., Any]
) -> None:
    small = 'JobOperator(task_id="small", image="python", command=["true"], resources=SMALL)\n'
    write_dag(small)
    assert run().succeeded
    assert plan().ends is not None
    write_dag(
        small
        + 'JobOperator(task_id="huge", image="python", command=["true"], resources=Resources(memory_gib=100_000))'
    )
    found = plan()
    small_again, huge = found.stages
    assert small_again.start is not None
    assert small_again.start.ends is not None
    assert found.ends is None
    assert huge.start is not None
    assert huge.start.when is When.NEVER
    assert "GiB" in huge.start.why


def test_a_stage_that_has_nothing_to_do_yet_is_no_error(
    write_dag: Write, plan: Callable[..., RunPlan], dag_folder: Path
) -> None:
    write_dag(
        f'from muster.airflow import CompactOperator\nCompactOperator(task_id="join", volume="{dag_folder.name}/rows")'
    )
    assert stages(plan())["join"].does is Does.RUNS


def test_a_volume_that_a_stage_before_writes_is_not_known(
    write_dag: Write, dag_folder: Path, plan: Callable[..., RunPlan], store: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "n").write_text("1")
    store.add(f"{dag_folder.name}/rows", tmp_path / "rows")
    name = dag_folder.name
    write_dag(f"""
        first = JobOperator(task_id="first", image="python", command=["true"], outputs={{"rows": "{name}/rows"}})
        second = JobOperator(
            task_id="second", image="python", command=["true"], inputs={{"rows": "volume://{name}/rows@latest"}}
        )
        other = JobOperator(
            task_id="other", image="python", command=["true"], inputs={{"rows": "volume://{name}/rows@latest"}}
        )
        first >> second
    """)
    found = stages(plan())
    assert found["second"].inputs == {"rows": ("what first makes",)}
    assert found["other"].inputs == {"rows": (f"volume://{name}/rows@1",)}


def test_what_is_not_there_yet_is_no_refusal_where_a_stage_before_makes_it(
    write_dag: Write, dag_folder: Path, plan: Callable[..., RunPlan]
) -> None:
    name = dag_folder.name
    write_dag(f"""
        first = JobOperator(
            task_id="first", image="python", command=["true"], outputs={{"rows": Output(volume="{name}/rows", partition="*")}}
        )
        second = JobOperator(
            task_id="second", image="python", command=["true"], inputs={{"rows": "volume://{name}/rows@<2013-10"}}
        )
        alone = JobOperator(
            task_id="alone", image="python", command=["true"], inputs={{"rows": "volume://{name}/rows@latest"}}
        )
        gate = GateOperator(task_id="gate", volume="volume://{name}/rows@latest", require={{"n": "> 1"}})
        first >> [second, gate]
    """)
    found = stages(plan())
    assert found["second"].does is Does.RUNS
    assert found["second"].inputs == {"rows": ("what first makes",)}
    assert found["gate"].does is Does.ASKS
    assert found["alone"].does is Does.REFUSED
    assert f"no volume {name}/rows" in found["alone"].why


def test_mapped_instances_are_planned_one_by_one(write_dag: Write, plan: Callable[..., RunPlan]) -> None:
    write_dag("""
        JobOperator.partial(task_id="fit", image="python", command=["true"], resources=SMALL).expand(
            params=[{"rate": 0.1}, {"rate": 0.2}]
        )
    """)
    found = plan()
    assert [stage.label for stage in found.stages] == ["fit[0] rate=0.1", "fit[1] rate=0.2"]
    assert all(stage.start and stage.start.when is When.NOW for stage in found.stages)


def test_errors_of_a_stage_are_its_own(write_dag: Write, plan: Callable[..., RunPlan]) -> None:
    write_dag("""
        JobOperator(task_id="gone", image="python", command=["true"], inputs={"rows": "volume://never/made@latest"})
        JobOperator(task_id="odd", image="python", command=["echo", "{{ 1 / 0 }}"])
        JobOperator(task_id="misspelt", image="python", command=["python", "-u", "dga.py"])
        JobOperator(task_id="engine", image="train", launcher="ray", replicas=2, command=["python", "dag.py"])
        GangOperator(task_id="silent", image="python", command=["true"], replicas=2, resources=SMALL)
        @task
        def plain() -> None:
            pass
        plain()
    """)
    found = stages(plan())
    assert found["gone"].does is Does.REFUSED
    assert "never/made" in found["gone"].why
    assert found["odd"].does is Does.UNKNOWN
    assert "ZeroDivisionError" in found["odd"].why
    assert found["misspelt"].why.startswith(
        "task 'misspelt', command: 'dga.py' is not there: did you mean dag.py? "
    )
    assert found["engine"].does is Does.REFUSED
    assert found["engine"].why.startswith(
        "task 'engine', image: launcher='ray' starts ray, and image train has no ray: image ray has it, image=\"ray\"; or "
    )
    assert "declares no output" in found["silent"].warnings[0]
    assert found["plain"].does is Does.SKIPS


def test_a_wrong_param_is_refused(write_dag: Write, plan: Callable[..., RunPlan]) -> None:
    write_dag("JobOperator(task_id='one', image='python', command=['true'])")
    with pytest.raises(SpecError, match="has no param 'coutn'"):
        plan({"coutn": "1"})


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_what_is_kept_makes_the_stages_behind_it_known(
    write_dag: Write, dag_folder: Path, plan: Callable[..., RunPlan], run: Callable[..., Any]
) -> None:
    name = dag_folder.name
    write_dag(
        f"""
        first = JobOperator(
            task_id="first", image="python", resources=SMALL, outputs={{"rows": "{name}/rows"}}, cache=True,
            command=["python", "-c", "open('{{outputs.rows}}/n', 'w').write('{{params.count}}')"],
            params={{"count": "{{{{ params.count }}}}"}},
        )
        JobOperator(
            task_id="second", image="python", resources=SMALL, command=["python", "-c", "print(1)"],
            inputs={{"rows": first.versions["rows"]}},
        )
        """,
        params="{'count': Param(4, type='integer')}",
    )
    assert run().succeeded
    kept, second = plan().stages
    assert (kept.does, second.does) == (Does.KEPT, Does.RUNS)
    assert kept.why.startswith(f"kept {name}/rows@1 of ")
    assert second.inputs == {"rows": (f"volume://{name}/rows@1",)}
    other, behind = plan({"count": "5"}).stages
    assert (other.does, behind.inputs) == (Does.RUNS, {"rows": ("what first makes",)})
    assert "count 4 → 5" in other.why


CLIMB = """
    from pathlib import Path

    def climb(model: Path, checkpoints: Path, *, x: float, epochs: int) -> None:
        saved = checkpoints / "epoch"
        epoch = int(saved.read_text()) if saved.exists() else 0
        while epoch < epochs:
            epoch += 1
            saved.with_suffix(".part").write_text(str(epoch))
            saved.with_suffix(".part").replace(saved)
            print(f"muster: epoch={epoch}/9 height={1 - (x - 0.6) ** 2}", flush=True)
        (model / "x").write_text(str(x))

    def forgets(model: Path, *, x: float, epochs: int) -> None:
        pass
"""


LISTED = """
listed = JobOperator(
    task_id="listed", image="python", command=["true"], inputs={{"rows": "volume://{name}/table@latest"}}
)
found >> listed
"""


def write_search(write_dag: Write, dag_folder: Path, function: str, *, also: str = LISTED) -> None:
    name = dag_folder.name
    write_dag(
        f"""
        from muster.airflow import SearchOperator, uniform
        found = SearchOperator(
            task_id="search", image="python", entrypoint="{name}.steps:{function}", outputs={{"model": "{name}/model"}},
            space={{"x": uniform(0, 1)}}, metric="height", trials=9, rungs=(1, 3, 9), until="epochs", at_once=2,
            resources=Resources(cpus=0.2, memory_gib=0.2), results="{name}/table",
        )
        score = JobOperator(
            task_id="score", image="python", command=["true"], inputs={{"model": found.versions["model"]}},
        )
        """
        + textwrap.indent(also.format(name=name), " " * 8),
        steps=CLIMB,
    )


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_a_search_says_how_many_trials_and_epochs_and_from_earlier_ones_how_long(
    write_dag: Write, dag_folder: Path, plan: Callable[..., RunPlan], run: Callable[..., Any]
) -> None:
    write_search(write_dag, dag_folder, "climb")
    first = plan()
    search, score, listed = first.stages
    assert listed.inputs == {"rows": ("what search makes",)}, "there is no version of it yet"
    assert search.search is not None
    assert (search.search.trials, search.search.at_once, search.search.full) == (9, 2, 81)
    assert 9 < search.search.units.p50 <= search.search.most < 81
    assert search.search.checkpoints is True
    assert "at most 9 trials, 2 at once" in search.why
    assert "no trial of it has told its metric here" in search.why
    assert search.start is not None
    assert (search.start.when, search.start.ends, search.search.seconds) == (When.NOW, None, None)
    assert score.inputs == {"model": ("what search makes",)}
    assert score.start is not None
    assert score.start.when is When.UNKNOWN
    assert first.ends is None
    write_search(write_dag, dag_folder, "climb", also="")
    assert run().succeeded
    write_search(write_dag, dag_folder, "climb")
    search, score, listed = plan().stages
    assert listed.inputs == {"rows": ("what search makes",)}
    assert search.search is not None
    assert search.search.seconds is not None
    assert search.search.known > 0
    assert search.search.checkpoints is True
    assert search.start is not None
    assert search.start.ends is not None
    assert search.start.ends.p50 > 0
    assert f"at the pace of {search.search.known} earlier job" in search.why
    assert score.start is not None
    assert score.start.starts is not None
    assert score.start.starts.p50 >= search.start.ends.p50


def test_a_search_whose_trials_keep_no_checkpoints_says_what_that_costs(
    write_dag: Write, dag_folder: Path, plan: Callable[..., RunPlan]
) -> None:
    write_search(write_dag, dag_folder, "forgets")
    search = plan().stages[0]
    assert search.search is not None
    assert search.search.checkpoints is False
    assert search.search.repeated > 0
    (warning,) = [each for each in search.warnings if "checkpoints" in each]
    assert f"about {search.search.repeated:.4g} epochs are trained twice" in warning

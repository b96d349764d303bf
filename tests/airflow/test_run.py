"""Dags of several jobs under a real Airflow: what passes, what fails and how, what a resume keeps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult
from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.core.errors import MusterError, SpecError
from muster.core.job import JobSpec, Resources, Role
from muster.core.shipped import shipped
from muster.core.status import JobState, JobStatus
from muster.images.folders import put_image
from muster.volumes import runs
from muster.volumes.folder import FolderStore

Run = Callable[..., RunResult]
Write = Callable[..., None]

CHAIN = """
first = JobOperator(
    task_id="first", image="python", entrypoint="{name}.steps:first", resources=SMALL,
    outputs={{"numbers": "{name}/numbers"}}, params={{"count": "{{{{ params.count }}}}", "word": "{{{{ params.word }}}}"}},
)
second = JobOperator(
    task_id="second", image="python", entrypoint="{name}.steps:second", resources=SMALL, retries=0,
    inputs={{"numbers": first.versions["numbers"]}}, outputs={{"total": "{name}/total"}},
)
third = JobOperator(
    task_id="third", image="python", command=["python", "-c", "print(open('{{inputs.total}}/sum').read())"],
    resources=SMALL, inputs={{"total": second.versions["total"]}},
)
beside = JobOperator(task_id="beside", image="python", command=["python", "-c", "print('beside')"], resources=SMALL)
"""

STEPS = """
from pathlib import Path

def first(numbers: Path, count: int, word: str) -> dict[str, float]:
    assert isinstance(count, int) and isinstance(word, str)
    (numbers / "n").write_text("\\n".join(map(str, range(count))))
    return {"count": count}

def second(numbers: Path, total: Path) -> None:
    {fault}
    (total / "sum").write_text(str(sum(map(int, (numbers / "n").read_text().split()))))
"""

PARAMS = "{'count': Param(4, type='integer'), 'word': '7'}"


def states(result: RunResult) -> dict[str, str]:
    return {stage.task_id: "kept" if stage.kept else stage.state for stage in result.stages}


def write_chain(write_dag: Write, dag_folder: Path, *, fault: str = "pass") -> None:
    write_dag(CHAIN.format(name=dag_folder.name), params=PARAMS, steps=STEPS.replace("{fault}", fault))


def test_jobs_pass_versions_metrics_and_typed_params_and_a_commit_is_an_event(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore, seen: Any
) -> None:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    write_chain(write_dag, dag_folder)
    result = run({"count": "5"})
    assert states(result) == dict.fromkeys(("first", "second", "third", "beside"), "success")
    assert result.params == {"count": 5, "word": "7"}
    first = result.stages[0]
    assert first.metrics == {"count": 5.0}
    assert first.versions == {"numbers": (f"volume://{dag_folder.name}/numbers@1",)}
    assert "third: [rank 0] 10" in seen.text
    record = store.record(first.versions["numbers"][0])
    assert record.origin.run_id == result.run_id
    assert record.modules == (f"{dag_folder.name}/steps.py",)
    assert record.params == {"count": 5, "word": "7"}
    assert json.loads(json.dumps(asdict(result)))["state"] == "success"
    uri = f"volume://{dag_folder.name}/numbers"
    with create_session() as session:
        event = session.scalar(
            select(AssetEvent).where(AssetEvent.asset_id == AssetModel.id, AssetModel.uri == uri)
        )
        assert event is not None
        extra = event.extra
    (version,) = store.resolve(uri)
    assert (extra["version"], extra["digest"]) == (version.address, version.digest)
    assert extra["metrics"] == {"count": 5.0}


def test_a_users_error_is_not_retried_stops_what_follows_and_is_the_message(
    write_dag: Write, dag_folder: Path, run: Run, seen: Any
) -> None:
    write_chain(write_dag, dag_folder, fault="raise ValueError('no such flight')")
    (dag_folder / "dag.py").write_text((dag_folder / "dag.py").read_text().replace("retries=0,", ""))
    result = run()
    assert states(result) == {
        "first": "success",
        "second": "failed",
        "third": "upstream_failed",
        "beside": "success",
    }
    assert seen.started.count(("second", 1)) == 1
    assert ("second", 2) not in seen.started
    (message,) = [stage.message for stage in result.stages if stage.task_id == "second"]
    lines = message.splitlines()
    assert lines[0] == "user error, rank 0"
    assert "no such flight" in lines[1]
    assert lines[-1].startswith("full log: muster jobs logs ")
    assert len(lines) <= 4
    logged = Path(result.log).read_text()
    assert "Failed: user error" in logged
    assert "FailedForGood:" not in logged  # the class stands in the traceback's line of source alone


def test_resume_keeps_what_succeeded_and_a_strict_one_runs_again_what_changed_and_what_follows(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore
) -> None:
    write_chain(write_dag, dag_folder, fault="raise ValueError('broken')")
    broken = run()
    write_chain(write_dag, dag_folder)
    mended = run(resume="keep")
    assert mended.run_id == broken.run_id
    assert states(mended) == {"first": "kept", "second": "success", "third": "success", "beside": "kept"}
    assert len(store.versions(f"{dag_folder.name}/numbers")) == 1
    assert mended.warnings == (
        f"first is kept, although {dag_folder.name}/steps.py changed since it ran (--resume=strict runs it again)",
    )
    again = run(resume="keep")
    assert set(states(again).values()) == {"kept"}
    assert again.state == "success"
    write_chain(write_dag, dag_folder, fault="pass  # edited")
    assert states(run(resume="strict")) == {
        "first": "success",
        "second": "success",
        "third": "success",
        "beside": "kept",
    }
    assert len(store.versions(f"{dag_folder.name}/numbers")) == 2


ASK = """
import sys
from pathlib import Path
from muster.airflow.embedded.runner import Wanted, run_dag
from muster.core.settings import Settings

home, cache, dags, dag_id = sys.argv[1:]
result = run_dag(dag_id, Wanted(resume="keep"), settings=Settings(home=Path(home), cache=Path(cache)), dags=Path(dags))
print(result.state, [stage.kept for stage in result.stages], "airflow" in sys.modules)
"""


@pytest.mark.nightly
def test_a_resume_that_keeps_all_loads_no_airflow(
    write_dag: Write, dag_folder: Path, run: Run, home: EmbeddedHome
) -> None:
    say = 'JobOperator(task_id="say", image="python", command=["echo", "1"], resources=SMALL)'
    write_dag(say)
    result = run()
    command = [sys.executable, "-c", ASK, home.settings.home, home.settings.cache, home.dags, dag_folder.name]

    def ask() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert ask() == "success [True] False"
    again = run(resume="keep")
    assert (again.run_id, again.stages[0].versions) == (result.run_id, result.stages[0].versions)
    write_dag(say + "  # edited")
    assert ask() == "success [True] True"


def test_a_stage_that_succeeded_is_run_again_with_what_follows_it_or_alone(
    write_dag: Write, dag_folder: Path, run: Run, seen: Any
) -> None:
    write_chain(write_dag, dag_folder)
    for how in ({"start": "second"}, {"resume": "keep"}):
        with pytest.raises(SpecError, match="has no run yet that could go on: begin one, `muster run "):
            run(**how)
    run()
    anew = run(start="second")
    assert states(anew) == {"first": "kept", "second": "success", "third": "success", "beside": "kept"}
    alone = run(only="second")
    assert (alone.state, alone.only) == ("success", "second")
    assert states(alone) == {"first": "kept", "second": "success", "third": "none", "beside": "kept"}
    rest = run(resume="keep")
    assert states(rest) == {"first": "kept", "second": "kept", "third": "success", "beside": "kept"}
    write_chain(write_dag, dag_folder, fault="raise ValueError('broken')")
    broken = run(only="second")
    assert (broken.state, states(broken)["second"]) == ("failed", "failed")
    assert states(run(start="first"))["second"] == "failed"
    (warning,) = seen.warnings
    assert warning.startswith("first is kept, although"), "what runs again is not said to be kept"
    for wrong, said in (
        ({"start": "secnd"}, "has no stage 'secnd'; did you mean second"),
        ({"start": "first", "only": "second"}, "give one of the two"),
        ({"given": {"count": "5"}, "only": "second"}, "keeps its params"),
    ):
        with pytest.raises(SpecError, match=said):
            run(wrong.pop("given", None), **wrong)


def test_a_kept_task_whose_version_answers_no_more_is_warned_of_and_strictly_run_again(
    write_dag: Write, dag_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster.airflow import JobOperator

    made, answers = {"name": "line", "url": "u", "version": "volume://lines/model@2", "curl": "curl u"}, [""]
    monkeypatch.setattr(JobOperator, "perform", lambda *_: made)
    monkeypatch.setattr(JobOperator, "overtaken", lambda *_: answers[0])
    write_dag('JobOperator(task_id="deploy", image="python", command=["true"], resources=SMALL)')
    (deployed,) = run().deployments
    assert run(resume="keep").deployments == (deployed,)
    answers[0] = "line answers with lines/model@1 now"
    kept = run(resume="keep")
    assert kept.warnings == (f"deploy is kept, although {answers[0]} (--resume=strict runs it again)",)
    assert kept.deployments == (), "it would be a lie"
    again = run(resume="strict")
    assert (states(again), again.deployments) == ({"deploy": "success"}, (deployed,))
    assert again.warnings == (f"deploy runs again: {answers[0]}",)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"counts": 3}, "has no param 'counts'; its params are count, word"),
        ({"count": "many"}, "param 'count' of Dag .*: 'many' is not of type 'integer'"),
    ],
)
def test_params_are_checked_before_anything_starts(
    write_dag: Write,
    dag_folder: Path,
    run: Run,
    seen: Any,
    store: FolderStore,
    params: dict[str, Any],
    says: str,
) -> None:
    write_chain(write_dag, dag_folder)
    jobs = store.ledger.jobs()
    with pytest.raises(SpecError, match=says):
        run(params)
    assert seen.started == []
    assert store.ledger.jobs() == jobs


REFUSED: dict[str, tuple[str, str]] = {
    "image": (
        'JobOperator(task_id="a", image="nosuch", command=["true"])',
        r"task 'a', image: image 'nosuch' is not there; known are: .*looked for in .*muster images lock nosuch",
    ),
    "module": (
        'JobOperator(task_id="a", image="python", entrypoint="{name}.trian:train")',
        r"task 'a', entrypoint: entrypoint module '\w+\.trian': .* no \w+/trian\.py .*check the name",
    ),
    "function": (
        'JobOperator(task_id="a", image="python", entrypoint="{name}.steps:trian")',
        r"task 'a', entrypoint: .*\w+/steps\.py defines no function 'trian'; it defines train",
    ),
    "parameter": (
        'JobOperator(task_id="a", image="python", entrypoint="{name}.steps:train", inputs={"rows": "a/b"}, params={"epochs": 3})',
        r"task 'a', entrypoint: \w+/steps\.py:1 train\(\): has no parameter for param 'epochs'; it takes rows",
    ),
    "memory": (
        'JobOperator(task_id="a", image="python", command=["true"], resources=Resources(memory_gib=4096))',
        r"task 'a', the job: job a asks for 4096 GiB .* this machine has [\d.]+ GiB: lower memory_gib",
    ),
    "secret": (
        'JobOperator(task_id="a", image="python", command=["true"], secrets={"KEY": "environment:NO_SUCH"})',
        r"task 'a', the job: secret KEY: there is no environment variable 'NO_SUCH' here; set it",
    ),
    "connection": (
        'JobOperator(task_id="a", image="python", command=["true"], secrets={"KEY": "connection:no_such#password"})',
        r"task 'a', the job: secret KEY: there is no connection 'no_such' here; make it",
    ),
    "secret_of_kubernetes": (
        'JobOperator(task_id="a", image="python", command=["true"], secrets={"KEY": "kubernetes:a/b"})',
        "task 'a', the job: secret KEY comes from a Kubernetes Secret",
    ),
    "link": (
        'JobOperator(task_id="a", image="python", command=["true"])',
        r"task 'first', code: code file 'data' leads to .*/outside, outside of .*: copy it there, or name the link in",
    ),
    "suite": (
        'ValidateOperator(task_id="a", volume="x/y", suite="suite.json")',
        r"task 'a', suite: suite suite\.json is not JSON: .*line 2",
    ),
    "smoke": (
        'DeployOperator(task_id="a", name="x", model="x/y", smoke="nothing.json")',
        r"task 'a', smoke: smoke requests 'nothing\.json' cannot be read",
    ),
    "server": (
        'DeployOperator(task_id="a", name="x", model="x/y", smoke=None, server="seldon")',
        "task 'a', server: 'seldon' does not run here; known are: serve, kserve",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_files_and_machine_show_to_be_wrong_is_refused_before_anything_starts(
    write_dag: Write,
    dag_folder: Path,
    run: Run,
    seen: Any,
    store: FolderStore,
    tmp_path: Path,
    wrong: str,
) -> None:
    body, says = REFUSED[wrong]
    first = 'JobOperator(task_id="first", image="python", command=["true"], resources=SMALL)'
    write_dag(f"{first}\n{body.replace('{name}', dag_folder.name)}", steps="def train(rows):\n    pass\n")
    (dag_folder / "suite.json").write_text('{"expectations": [\n')
    if wrong == "link":
        (tmp_path / "outside").mkdir()
        (dag_folder / "data").symlink_to(tmp_path / "outside")
    jobs = store.ledger.jobs()
    with pytest.raises(MusterError) as refused:
        run()
    assert re.fullmatch(f"{says}.*", str(refused.value)), refused.value  # in one line
    assert seen.started == []
    assert store.ledger.jobs() == jobs


def test_an_input_that_is_not_there_and_a_misspelt_template_fail_at_once_and_are_named(
    write_dag: Write, run: Run
) -> None:
    write_dag(
        """
        JobOperator(task_id="a", image="python", command=["true"], inputs={"x": "no/such"}, resources=SMALL)
        JobOperator(task_id="b", image="python", command=["echo", "{{ nosuch }}"], resources=SMALL, retries=2,
            retry_delay=3600)
        """
    )
    result = run()
    assert states(result) == {"a": "failed", "b": "failed"}
    absent, misspelt = (stage.message for stage in sorted(result.stages, key=lambda stage: stage.task_id))
    assert "input 'x'" in absent
    assert "no/such" in absent
    assert "task 'b', command: 'nosuch' is undefined" in misspelt


def test_a_retried_cause_is_tried_again_after_its_delay(
    write_dag: Write, dag_folder: Path, run: Run, seen: Any
) -> None:
    """A rank that kills itself is a lost rank: the gang gives up after its restarts, Airflow tries again."""
    write_dag(
        """
        JobOperator(
            task_id="a", image="python", command=["python", "-c", "import os; os.kill(os.getpid(), 9)"],
            resources=SMALL, max_restarts=0, retries=1, retry_delay=timedelta(seconds=0.1),
        )
        """
    )
    result = run()
    assert seen.started == [("a", 1), ("a", 2)]
    assert [stage.state for stage in seen.ended] == ["up_for_retry", "failed"]
    assert all(stage.message.startswith("rank lost") for stage in seen.ended), "a try says why it ended, too"
    assert result.stages[0].message.startswith("rank lost")


def test_a_skipped_task_says_why(write_dag: Write, run: Run) -> None:
    write_dag(
        """
        from muster.airflow import CompactOperator
        CompactOperator.partial(task_id="each").expand(volume=["no/one", "no/two"])
        CompactOperator(task_id="join", volume="no/such")
        """
    )
    each, join = sorted(run().stages, key=lambda stage: stage.task_id)
    assert (join.state, join.message) == ("skipped", "no/such has no version yet: there is nothing to join")
    assert each.message == "no/one has no version yet: there is nothing to join"
    assert [one.message.split()[0] for one in each.instances] == ["no/one", "no/two"]


def test_a_plain_airflow_task_runs_between_jobs(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore
) -> None:
    name = dag_folder.name
    write_dag(
        f"""
        @task
        def choose() -> int:
            return 3

        @task
        def after(job: dict) -> str:
            import sys
            from pathlib import Path
            from muster.volumes import runs
            from muster.volumes.folder import FolderStore
            (run,) = runs.runs(FolderStore(Path({str(store.layout.root)!r})), dag={name!r})
            late = {{"validate", "gate", "deploy", "retention", "rollback"}}
            late = {{f"muster.airflow.operators.{{each}}" for each in late}} | {{"muster.backends.releases.driver"}}
            late |= {{"muster.ext.mirrors.operator", "muster.ext.predictions.drift", "muster.ext.predictions.score", "muster.ext.search.operator"}}
            assert late <= sys.modules.keys(), "its checkout may be upgraded while it waits"
            return run.state.value
        a = JobOperator(
            task_id="a", image="python", entrypoint="{name}.steps:first", resources=SMALL,
            outputs={{"numbers": "{name}/numbers"}}, params={{"count": choose(), "word": "x"}},
        )
        @task
        def check(state: str) -> None:
            assert state == "running", state
        check(after(a.output))
        """,
        steps=STEPS.replace("{fault}", "pass"),
    )
    result = run()
    assert states(result) == dict.fromkeys(("choose", "a", "after", "check"), "success")
    assert result.stages[1].metrics == {"count": 3.0}
    assert runs.run(store, name, result.run_id).state is JobState.SUCCEEDED
    assert name not in {note.run.dag_id for note in store.ledger.run_notes()}


def test_many_partitions_travel_as_a_list(write_dag: Write, dag_folder: Path, run: Run) -> None:
    name = dag_folder.name
    write_dag(
        f"""
        months = JobOperator(
            task_id="months", image="python", entrypoint="{name}.steps:months", resources=SMALL,
            outputs={{"month": Output(volume="{name}/month", partition="*")}},
        )
        JobOperator(
            task_id="all", image="python", entrypoint="{name}.steps:count", resources=SMALL,
            inputs={{"months": months.versions["month"]}},
        )
        JobOperator(
            task_id="some", image="python", entrypoint="{name}.steps:count", resources=SMALL,
            inputs={{"months": "{name}/month@<2013-03"}},
        ).set_upstream(months)
        """,
        steps="""
        from pathlib import Path

        def months(month: Path) -> None:
            for number in (1, 2, 3):
                (month / f"2013-0{number}").mkdir()
                (month / f"2013-0{number}" / "rows").write_text(str(number))

        def count(months: list[Path]) -> dict[str, float]:
            return {"months": len(months), "rows": sum(int((m / "rows").read_text()) for m in months)}
        """,
    )
    result = run()
    found = {stage.task_id: stage for stage in result.stages}
    assert len(found["months"].versions["month"]) == 3
    assert found["all"].metrics == {"months": 3.0, "rows": 6.0}
    assert found["some"].metrics == {"months": 2.0, "rows": 3.0}


def test_a_mapped_task_is_a_job_for_each(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore, seen: Any
) -> None:
    write_dag(
        """
        JobOperator.partial(
            task_id="a", image="python", command=["echo", "{params.count}"], queue="gpus", resources=SMALL
        ).expand(job_params=[{"count": "{{ params.count }}"}, {"count": 7}])
        JobOperator.partial(
            task_id="b", image="python", params={"count": "{{ params.count }}"}, resources=SMALL
        ).expand(command=[["true"]])
        """,
        params=PARAMS,
    )
    result = run()
    assert states(result) == {"a": "success", "b": "success"}
    assert {"a[0] count=4: [rank 0] 4", "a[1] count=7: [rank 0] 7"} <= set(seen.text)
    assert [(each.map_index, dict(each.arguments)) for each in result.stages[0].instances] == [
        (0, {"count": 4}),
        (1, {"count": 7}),
    ]
    assert {each.state for each in result.stages[0].instances} == {"success"}
    assert (
        sum(each.overhead_seconds or 0 for each in result.stages[0].instances)
        == result.stages[0].overhead_seconds
    )
    specs = [store.ledger.spec(job_id) for job_id in store.ledger.jobs()]
    ours = sorted(
        (spec.origin.task_id, spec.params["count"], spec.queue, spec.roles[0].resources.memory_gib)
        for spec in specs
        if spec.origin.dag_id == dag_folder.name
    )
    assert ours == [("a", 4, "gpus", 0.5), ("a", 7, "gpus", 0.5), ("b", 4, None, 0.5)]


def test_a_gang_that_nothing_would_show_to_have_given_up_is_warned_of(
    write_dag: Write, run: Run, seen: Any
) -> None:
    from muster.airflow.attempts.watcher import watcher

    write_dag(
        """
        GangOperator(task_id="a", image="python", replicas=2, command=["true"], resources=SMALL)
        JobOperator(task_id="b", image="python", command=["true"], resources=SMALL)
        """
    )
    assert run().succeeded
    assert [line.partition(":")[0] for line in seen.text if "declares no output" in line] == ["a"]
    assert watcher() is None, "a run that has ended hears nothing more"


def test_a_plain_task_may_return_what_it_likes(write_dag: Write, run: Run) -> None:
    write_dag(
        """
        @task
        def plain(count: int) -> dict[str, object]:
            return {"job_id": "none-of-musters", "versions": f"1.{count}", "metrics": None}

        plain.override(task_id="one")(1)
        plain.override(task_id="many").expand(count=[1, 2])
        """
    )
    result = run()
    assert states(result) == {"one": "success", "many": "success"}
    assert [each.state for each in result.stages[1].instances] == ["success", "success"]
    assert {each.job_id for each in result.stages} == {None}


def test_a_task_in_a_mapped_group_is_a_job_for_each(write_dag: Write, run: Run, seen: Any) -> None:
    write_dag(
        """
        from airflow.sdk import task_group

        @task_group
        def each(count: int):
            JobOperator(task_id="a", image="python", command=["echo", "{params.count}"], params={"count": count},
                resources=SMALL)
            return JobOperator(task_id="b", image="python", command=["touch", "{outputs.o}/x"], resources=SMALL,
                outputs={"o": "mapped/group"})

        made = each.expand(count=[4, 7])
        JobOperator(task_id="all", image="python", command=["ls", "{inputs.o}"], resources=SMALL,
            inputs={"o": made.versions["o"]})
        """
    )
    result = run()
    assert states(result) == dict.fromkeys(("each.a", "each.b", "all"), "success")
    assert [each.label for each in result.stages[0].instances] == ["each.a[0]", "each.a[1]"]
    assert {"each.a[0]: [rank 0] 4", "each.a[1]: [rank 0] 7"} <= set(seen.text)


def test_a_dag_that_renders_native_objects_has_commands_env_and_partitions_of_text(
    write_dag: Write, run: Run, dag_folder: Path, store: FolderStore
) -> None:
    write_dag(
        """
        JobOperator(
            task_id="a", image="python", command=["sh", "-c", "echo $A-$0-$1 > {outputs.o}/said", "{{ params.n }}", "007"],
            env={"A": "{{ params.n }}"}, outputs={"o": Output(volume="native/o", partition="{{ params.n }}")},
            resources=SMALL,
        )
        """,
        params="{'n': '1e3'}",
    )
    file = dag_folder / "dag.py"
    file.write_text(file.read_text().replace("@dag(", "@dag(render_template_as_native_obj=True, ", 1))
    result = run()
    assert result.succeeded, result.stages[0].message
    (made,) = store.versions("native/o")
    assert (made.partition, (store.path(made.address) / "said").read_text()) == ("1e3", "1e3-1e3-007\n")


def test_a_rendered_secret_is_refused_and_kept_nowhere(
    write_dag: Write, run: Run, keeps: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW", "http://me:hunter2%2Fsecret@host:5000/")
    keywords = (
        'env={"URI": "http://{{ conn.mlflow.password }}@host"}',
        'params={"deep": {"token": ["{{ conn.mlflow.password }}"]}}',
        'params={"uri": "{{ conn.mlflow.get_uri() }}"}',
        'env={"AUTH": "{{ conn.mlflow.password.encode().hex() }}"}',
    )
    job = 'JobOperator(task_id="{}", image="python", command=["true"], resources=SMALL, {})'
    write_dag(
        "\n".join(job.format(letter, keyword) for letter, keyword in zip("abcd", keywords, strict=True))
    )
    result = run()
    assert [stage.task_id for stage in result.stages if "holds the value of a secret" in stage.message] == [
        *"abcd"
    ]
    assert keeps("holds the value of a secret") != []
    assert keeps("hunter2") == []


@pytest.mark.parametrize("serial", [False, True])
def test_what_a_plain_task_prints_of_a_connection_is_masked(
    write_dag: Write, run: Run, seen, monkeypatch: pytest.MonkeyPatch, serial: bool, capfd
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW", "http://me:hunter2%2Fsecret@host:5000/")
    write_dag(
        """
        from airflow.sdk import task

        @task
        def shows():
            from airflow.sdk import Connection

            found = Connection.get("mlflow")
            print("it is", found.password, "as", found.get_uri())

        shows()
        """
    )
    run(serial=serial)
    said = capfd.readouterr().out if serial else "\n".join(seen.text)
    assert "it is *** as http://me:***@host:5000" in said


def test_what_a_job_waits_for_is_told_while_it_waits(
    write_dag: Write,
    run: Run,
    backend: Backend,
    seen: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = tmp_path / "go"
    other = JobSpec(
        name="another.job",
        image="python",
        image_digest=put_image(backend.store, shipped("images") / "python"),
        roles=(
            Role(
                command=("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"),
                resources=Resources(memory_gib=Machine.here().memory_gib - 0.2),
            ),
        ),
    )
    backend.submit(other, job_id="another-1")
    eventually(lambda: backend.status("another-1").state.value == "running")
    told = seen.job

    def job(task: str, status: JobStatus) -> None:
        told(task, status)
        if status.reason.startswith("waiting for"):
            go.touch()

    monkeypatch.setattr(seen, "job", job)
    write_dag('JobOperator(task_id="a", image="python", command=["true"], resources=SMALL)')
    assert run().succeeded
    states = [(state, reason) for _, state, reason in seen.jobs]
    assert states[0][0] == "queued"
    assert states[0][1].startswith("waiting for 0.5 GiB of memory")
    assert states[-1][0] in ("running", "committing")

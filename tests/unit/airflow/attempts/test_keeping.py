"""What is kept: a table of mutations, each of which must make a stage anew or must not matter; and the words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_store import seal_written

from muster.airflow.attempts.keeping import look
from muster.core.data import Input, OutputTarget
from muster.core.job import Interpreter, JobSpec, Launcher, Role, SecretRef
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.volumes.folder import FolderStore

Files = Mapping[str, str]
ORIGIN = Origin(instance="one", dag_id="loop", run_id="a", task_id="train")
ROLE = Role(replicas=2, ranks=2, entrypoint="loop.train:train", resources=Resources(cpus=2, memory_gib=4))
READ = (
    "loop/__init__.py",
    "loop/net.py",
    "loop/plugins/",
    "loop/plugins/one.py",
    "loop/train.py",
    "loop/w.json",
)
CODE: Files = {
    "loop/__init__.py": "",
    "loop/train.py": "from loop.net import net\n",
    "loop/net.py": "net = 1\n",
    "loop/w.json": "[1, 2]\n",
    "loop/plugins/one.py": "one = 1\n",
    "loop/idle.py": "",
    "loop/etl.py": "rows = 1\n",
    "loop/README.md": "# Loop\n",
    "loop/run.sh": "true\n",
}
LOCK: Files = {"requirements.txt": "numpy==1.0\n"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage as an author has it: files, an image, and the rest of its job."""

    files: Files = field(default_factory=lambda: CODE)
    lock: Files = field(default_factory=lambda: LOCK)
    rows: tuple[str, ...] = ("a,b\n1,2\n",)
    modules: tuple[str, ...] | None = READ
    spec: Mapping[str, Any] = field(default_factory=dict)

    def job(self, store: FolderStore, folder: Path) -> JobSpec:
        """The job that it submits."""
        given = {
            "name": "loop.train",
            "image": "train",
            "roles": (ROLE,),
            "launcher": Launcher.TORCHRUN,
            "outputs": {"model": OutputTarget(volume="loop/model", partition="2013-01")},
            "params": {
                "lr": 0.1,
                "epochs": 4,
                "sizes": [8, 16],
                "deep": {"a": {"b": 1}},
                "on": True,
                "name": "x",
            },
            "env": {"MODE": "fast", "LEVEL": "1"},
            "secrets": {
                "TOKEN": SecretRef(source="connection", name="mlflow#password"),
                "KEY": SecretRef(source="environment", name="KEY"),
            },
            "cache_key": {"day": "2013-01-01"},
            "origin": ORIGIN,
            **self.spec,
        }
        return JobSpec(
            image_digest=store.put(folder, [], texts=self.lock),
            code=store.put(folder, [], texts=self.files),
            inputs=given.pop("inputs", None)
            or {"rows": Input(versions=tuple(put(store, folder, text) for text in self.rows), many=True)},
            **given,
        )


def put(store: FolderStore, folder: Path, text: str, volume: str = "loop/rows") -> Any:
    (folder / "rows.csv").write_text(text)
    return store.add(volume, folder / "rows.csv", partition="2013-01").pinned


def commit(store: FolderStore, job_id: str, job: JobSpec, modules: tuple[str, ...] | None) -> None:
    """Do what the replicas of a job do, and commit it."""
    store.ledger.create(job_id, job)
    staging = store.stage(job_id)
    for role in job.roles:
        for index in range(role.replicas):
            folder = staging.output(role.name, index, "model")
            folder.mkdir(parents=True)
            (folder / f"{role.name}-{index}").write_bytes(b"1")
            seal_written(staging, job, role=role.name, index=index)
    store.commit(job_id, attempt=staging.attempt, modules=modules)


def mutated(**changes: Any) -> Stage:
    return replace(Stage(), **changes)


def spec(**changes: Any) -> Stage:
    return Stage(spec=changes)


def params(**changes: Any) -> Stage:
    base = {"lr": 0.1, "epochs": 4, "sizes": [8, 16], "deep": {"a": {"b": 1}}, "on": True, "name": "x"}
    return spec(params={name: value for name, value in {**base, **changes}.items() if value is not ...})


def edited(name: str, text: str | None) -> Stage:
    return mutated(files={key: value for key, value in {**CODE, name: text}.items() if value is not None})


def role(**changes: Any) -> Stage:
    return spec(roles=(replace(ROLE, **changes),))


def resources(**changes: Any) -> Stage:
    return role(resources=replace(ROLE.resources, **changes))


def must_make() -> Iterator[tuple[str, Stage]]:
    """Mutations after which something else may come out."""
    for part in (other_code, other_values, other_processes, other_places):
        for number, (name, stage) in enumerate(part()):
            yield name, stage
            if number % 3 == 0:  # beside what does not matter it matters as well
                later = {"origin": replace(ORIGIN, run_id="later"), "queue": "night", "max_restarts": 0}
                yield f"{name}, in another run and queue", replace(stage, spec={**stage.spec, **later})


def other_code() -> Iterator[tuple[str, Stage]]:
    """Code, and the image."""
    for name in [name for name in READ if not name.endswith("/")]:
        for number, text in enumerate(
            ("# a comment\n", "other = 1\n", CODE[name] + "#", "", " " + CODE[name], None)
        ):
            if text != CODE[name]:
                yield f"{name} {number}", edited(name, text)
    for version, digit in (("3.11.7", "1"), ("3.12.1", "1"), ("3.11.7", "2")):
        interpreter = Interpreter(path="/opt/python", version=version, digest=f"b3:{digit * 64}")
        yield f"interpreter {version} {digit}", spec(interpreter=interpreter)
    for number in range(10):
        yield f"line {number} of a module", edited("loop/train.py", "\n" * number + "net = 2\n")
        yield f"a new plugin {number}", edited(f"loop/plugins/p{number}.py", "")
    yield "a package in a module's place", edited("loop/net/__init__.py", "net = 2")
    yield "a package in the entrypoint's place", edited("loop/train/__init__.py", "net = 2")
    for number, text in enumerate(
        ("numpy==1.1\n", "numpy==1.0\nscipy==1.0\n", "", "numpy==1.0 \n", "# c\nnumpy==1.0\n")
    ):
        yield f"lock {number}", mutated(lock={"requirements.txt": text})
    yield "a recipe", mutated(lock={**LOCK, "image.toml": "[build]\n"})
    yield "a wheel of one's own", mutated(lock={**LOCK, "own-1.0.whl": "x"})
    yield "another image", spec(image="other")


def other_values() -> Iterator[tuple[str, Stage]]:
    """Params, inputs and the author's own key."""
    for name, values in {
        "lr": (0.2, 0.1 + 1e-12, "0.1", None, [0.1], True, ...),
        "epochs": (5, 4.0, "4", -4, None, 40, ...),
        "sizes": ([16, 8], [8], [8, 16, 32], [8.0, 16], "8, 16", {}, ...),
        "deep": ({"a": {"b": 2}}, {"a": {"c": 1}}, {"a": {"b": 1, "c": None}}, {"a": {"b": True}}, ...),
        "on": (False, 1, "true", None, ...),
        "name": ("X", "x ", "", "é", "e\u0301", ...),
        "new": (None, 0, "", [], False),
    }.items():
        for value in values:
            yield f"param {name} {value!r}", params(**{name: value})
    for number, rows in enumerate(
        (("a,b\n1,3\n",), ("a,b\n1,2\n", "a,b\n3,4\n"), ("a,b\n",), ("a,b\n1,2\n\n",), ())
    ):
        yield f"rows {number}", mutated(rows=rows)
    for value in (None, {}, {"day": "2013-01-02"}, {"day": 1}, "2013-01-01", 0, False, [], ""):
        yield f"cache key {value!r}", spec(cache_key=value)


def other_processes() -> Iterator[tuple[str, Stage]]:
    """Roles and launcher."""
    for changes in (
        {"replicas": 1},
        {"replicas": 3},
        {"ranks": 1},
        {"ranks": 4},
        {"name": "worker"},
        {"entrypoint": "loop.train:fit"},
        {"entrypoint": "loop.idle:train"},
        {"entrypoint": None, "command": ("python", "loop/train.py")},
    ):
        yield f"role {changes}", role(**changes)
    for changes in (
        {"cpus": 1},
        {"cpus": 4},
        {"cpus": 2.5},
        {"memory_gib": 8},
        {"gpus": 1},
        {"gpus": 1, "gpu_class": ("a100",)},
        {"disk_gib": 1},
    ):
        yield f"resources {changes}", resources(**changes)
    yield "another role", spec(roles=(ROLE, replace(ROLE, name="ps")))
    for launcher in Launcher:
        if launcher is not Launcher.TORCHRUN and not launcher.drives:
            yield f"launcher {launcher.value}", spec(launcher=launcher)
    yield "GPUs are required", spec(require_gpus=True)


def other_places() -> Iterator[tuple[str, Stage]]:
    """Environment, secrets' places, outputs and pods."""
    for env in (
        {},
        {"MODE": "fast"},
        {"MODE": "slow", "LEVEL": "1"},
        {"MODE": "fast", "LEVEL": "2"},
        {"MODE": "fast", "LEVEL": "1", "X": ""},
        {"MODE": "1", "LEVEL": "fast"},
        {"mode": "fast", "LEVEL": "1"},
        {"MODE": "fast ", "LEVEL": "1"},
    ):
        yield f"env {env}", spec(env=env)
    token, key = (
        SecretRef(source="connection", name="mlflow#password"),
        SecretRef(source="environment", name="KEY"),
    )
    for secrets in (
        {},
        {"TOKEN": token},
        {"KEY": key},
        {"TOKEN": key, "KEY": token},
        {"TOKEN": replace(token, name="other#password"), "KEY": key},
        {"TOKEN": replace(token, name="mlflow#login"), "KEY": key},
        {"TOKEN": replace(token, source="kubernetes", name="a/b"), "KEY": key},
        {"TOKEN": token, "KEY": replace(key, name="KEY2")},
        {"TOKEN2": token, "KEY": key},
        {"TOKEN": token, "KEY": key, "MORE": key},
    ):
        yield f"secrets {sorted(secrets)} {list(secrets.values())}", spec(secrets=secrets)
    for number, outputs in enumerate(
        (
            {"model": OutputTarget(volume="loop/model", partition="2013-02")},
            {"model": OutputTarget(volume="loop/model")},
            {"model": OutputTarget(volume="loop/other", partition="2013-01")},
            {"net": OutputTarget(volume="loop/model", partition="2013-01")},
            {
                "model": OutputTarget(volume="loop/model", partition="2013-01"),
                "log": OutputTarget(volume="loop/log"),
            },
            {"model": OutputTarget(volume="loop/model", partition="*")},
        )
    ):
        yield f"outputs {number}", spec(outputs=outputs)
    for number in range(4):
        pod = {"spec": {"containers": [{"name": "base", "env": [{"name": "X", "value": str(number)}]}]}}
        yield f"pod {number}", spec(pod_override=pod)


def must_keep() -> Iterator[tuple[str, Stage]]:
    """Mutations that do not matter."""
    for name in ("loop/idle.py", "loop/etl.py", "loop/README.md", "loop/run.sh"):
        for number, text in enumerate(("# a comment\n", "x = 1\n", None, "\n\n")):
            yield f"{name} {number}, which is not read", edited(name, text)
    for number in range(4):
        yield f"a new file {number}", edited(f"loop/new{number}.py", "x = 1")
    for number in range(6):
        origin = replace(ORIGIN, run_id=f"run-{number}", map_index=number - 1, instance=f"airflow-{number}")
        yield f"run {number}", spec(origin=origin)
    for number in range(4):
        yield f"the image rebuilt of the same lock {number}", mutated(lock=dict(reversed(LOCK.items())))
    for name, values in {
        "run_timeout_seconds": (1.0, 7200.0),
        "queue_timeout_seconds": (1.0, 7200.0),
        "hang_timeout_seconds": (1.0, 600.0),
        "grace_seconds": (1.0, 90.0),
        "max_restarts": (0, 9),
        "queue": ("night", "day"),
        "priority": ("low", "high"),
        "name": ("a", "loop.fit"),
        "follows": ("a-1", "b-2"),
    }.items():
        for value in values:
            yield f"{name} {value}", spec(**{name: value})
    yield (
        "params in another order",
        spec(
            params={
                "name": "x",
                "on": True,
                "deep": {"a": {"b": 1}},
                "sizes": [8, 16],
                "epochs": 4,
                "lr": 0.1,
            }
        ),
    )
    yield "env in another order", spec(env={"LEVEL": "1", "MODE": "fast"})
    yield "the same rows put again", mutated()
    yield (
        "blank lines below the first of a module",
        edited("loop/train.py", CODE["loop/train.py"].replace("\n", "\n\n\n")),
    )


MUST_MAKE, MUST_KEEP = dict(must_make()), dict(must_keep())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[FolderStore, Path]:
    """A store in which the stage has run once."""
    folder = tmp_path_factory.mktemp("made")
    store = FolderStore(folder / "store")
    stage = Stage()
    commit(store, "a-1", stage.job(store, folder), stage.modules)
    return store, folder


def test_the_table_is_long_enough() -> None:
    assert len(MUST_MAKE) >= 200
    assert len(MUST_KEEP) >= 50


@pytest.mark.parametrize("name", MUST_MAKE)
def test_what_may_come_out_otherwise_is_made_anew(name: str, made: tuple[FolderStore, Path]) -> None:
    store, folder = made
    found = look(MUST_MAKE[name].job(store, folder), store)
    assert found.made is None
    assert found.nearest is not None
    assert found.nearest.job_id == "a-1"
    assert found.reasons


@pytest.mark.parametrize("name", MUST_KEEP)
def test_what_does_not_matter_is_kept(name: str, made: tuple[FolderStore, Path]) -> None:
    store, folder = made
    found = look(MUST_KEEP[name].job(store, folder), store)
    assert found.made is not None, str(found)
    assert found.made.outputs == {"model": ("volume://loop/model@1",)}


COMMAND = {"roles": (Role(command=("sh", "loop/run.sh")),), "launcher": Launcher.PLAIN}
ROLES = {"roles": (ROLE, replace(ROLE, name="ps"))}


@pytest.mark.parametrize("roles", [COMMAND, ROLES], ids=["command", "several roles"])
@pytest.mark.parametrize("name", [*CODE, "loop/new.csv"])
def test_every_file_counts_where_it_is_not_known_which_are_read(
    name: str, roles: dict[str, Any], tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "store")
    then = Stage(spec=roles, modules=READ if roles is ROLES else None)
    commit(store, "a-1", then.job(store, tmp_path), then.modules)
    assert look(then.job(store, tmp_path), store).made is not None
    now = replace(edited(name, CODE.get(name, "") + "# edited\n"), spec=roles)
    found = look(now.job(store, tmp_path), store)
    assert found.made is None
    assert found.reasons == (f"{name} changed",)

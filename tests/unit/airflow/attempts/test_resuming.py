"""Whether a job goes on from the checkpoints of the one before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.attempts.resuming import Choice, Resume, choose, edited, resume_of
from muster.core.data import Input, Pinned
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore

ROLE = Role(replicas=2, entrypoint="loop.train:train")


def rows(number: int, digit: str = "1") -> dict[str, Input]:
    version = Pinned(address=f"volume://loop/rows@{number}", digest="b3:" + digit * 64)
    return {"rows": Input(versions=(version,))}


SPEC = JobSpec(
    name="loop.train",
    image="train",
    image_digest="b3:" + "0" * 64,
    roles=(ROLE,),
    inputs=rows(3),
    params={"lr": 0.1, "epochs": 60},
)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def decide(store: FolderStore) -> Callable[..., Choice]:
    """Decide about a job after one that failed, `saved` or not."""

    def decide(
        spec: JobSpec, resume: Resume = Resume.AUTO, *, saved: bool = True, then: JobSpec = SPEC
    ) -> Choice:
        store.ledger.create("a-1", then)
        staging = store.stage("a-1")
        if saved:
            (staging.checkpoints / "epoch-5").write_bytes(b"weights")
        store.ledger.update(JobStatus(job_id="a-1", state=JobState.FAILED, submitted=1.0, ended=2.0))
        return choose(spec, "a-1", resume, store)

    return decide


def test_a_job_of_the_same_kind_goes_on(decide: Callable[..., Choice]) -> None:
    choice = decide(SPEC)
    assert choice.follows == "a-1"
    (line,) = choice.lines
    assert line.startswith("goes on from the checkpoints of job a-1 (1 file, 7 B, the newest of 2")
    assert "since then" not in line


def test_code_params_image_and_resources_may_differ_and_are_listed(
    decide: Callable[..., Choice], store: FolderStore, tmp_path: Path
) -> None:
    digests = []
    for text in ("a = 1", "a = 2"):
        (tmp_path / "train.py").write_text(text)
        digests.append(store.put(tmp_path, ["train.py"]))
    now = replace(
        SPEC,
        code=digests[1],
        params={"lr": 0.2, "epochs": 60},
        image_digest="b3:" + "1" * 64,
        roles=(replace(ROLE, resources=Resources(memory_gib=8)),),
        launcher=Launcher.TORCHRUN,
        inputs=rows(4),  # another number of the same content
    )
    choice = decide(now, then=replace(SPEC, code=digests[0]))
    assert choice.follows == "a-1"
    assert choice.lines[0].partition("; since then: ")[2] == (
        "train.py changed; image train has another lock; memory_gib 2 → 8; launcher plain → torchrun; lr 0.1 → 0.2"
    )


def test_of_code_that_gc_has_taken_away_no_file_is_called_changed(
    decide: Callable[..., Choice], store: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("a = 2")
    now = replace(SPEC, code=store.put(tmp_path, ["train.py"]))
    choice = decide(now, then=replace(SPEC, code="b3:" + "7" * 64))
    assert choice.lines[0].endswith("; since then: code changed")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": rows(4, "2")}, "input rows: loop/rows@3 → @4"),
        ({"inputs": {}}, "input rows: loop/rows@3 → none"),
        (
            {"roles": (replace(ROLE, replicas=4),)},
            "replicas 2 → 4",
        ),
        (
            {"roles": (Role(replicas=2, command=("python", "t.py")),)},
            "loop.train:train → python t.py",
        ),
    ],
    ids=["input", "no input", "replicas", "command"],
)
def test_a_job_of_another_kind_starts_anew_and_says_why_unless_it_is_told_to_go_on(
    changes: dict[str, Any], said: str, decide: Callable[..., Choice], store: FolderStore
) -> None:
    now = replace(SPEC, **changes)
    choice = decide(now)
    assert choice.follows is None
    assert choice.lines == (
        f"starts anew, without the checkpoints of job a-1: {said} (resume_from_checkpoint='always' goes on all the same)",
    )
    told = choose(now, "a-1", Resume.ALWAYS, store)
    assert told.follows == "a-1"
    assert told.lines[0].endswith(f"; since then: {said}")


def test_never_starts_anew(decide: Callable[..., Choice]) -> None:
    assert decide(SPEC, Resume.NEVER) == Choice(
        lines=("starts anew, without the checkpoints of job a-1: resume_from_checkpoint is 'never'",)
    )


def test_where_nothing_was_saved_nothing_is_said(decide: Callable[..., Choice], store: FolderStore) -> None:
    assert decide(SPEC, saved=False) == Choice()
    assert choose(SPEC, None, Resume.ALWAYS, store) == Choice()
    assert choose(SPEC, "gone-1", Resume.ALWAYS, store) == Choice()


def test_what_was_edited_is_told_from_what_has_other_inputs() -> None:
    assert not edited(SPEC, replace(SPEC, follows="a-0"))
    assert edited(SPEC, replace(SPEC, params={"lr": 0.2}))
    assert not edited(SPEC, replace(SPEC, params={"lr": 0.2}, inputs=rows(4, "2")))


def test_another_word_is_refused() -> None:
    with pytest.raises(SpecError, match="'yes': expected auto, always, never"):
        resume_of("yes")

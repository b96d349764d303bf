"""What every store promises: a folder, and the service in front of a claim."""

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from tests.unit.volumes.memory import MemoryStore
from tests.unit.volumes.service.process import Service
from tests.waiting import until

from muster.core.cancelling import UNKNOWN
from muster.core.comparison import key_of, task_key_of
from muster.core.data import CHECKPOINTS, Input, OutputTarget
from muster.core.errors import BadOutput, Conflict, NotFound, SpecError, StoreError
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.replica import Replica
from muster.core.series import Series
from muster.core.status import JobState, JobStatus
from muster.core.tally import Allotment, Tally
from muster.core.verdict import Cause, Verdict
from muster.volumes.base import Checked, LogPage, TaskEnd, UpkeepKind
from muster.volumes.folder import FolderStore
from muster.volumes.service.table import MOST_SPECS
from muster.worker.seal import seal

DIGEST = "b3:" + "0" * 64


def make_spec(*, replicas=1, inputs=(), **outputs):
    return JobSpec(
        name="flights.features",
        image="etl",
        image_digest=DIGEST,
        roles=(Role(replicas=replicas, entrypoint="etl:features"),),
        inputs={name: Input(versions=(version.pinned,)) for name, version in inputs},
        outputs={name: OutputTarget(**target) for name, target in outputs.items()},
        params={"month": "2013-01", "columns": ["a", "b"]},
    )


def follows(version, *, name="features"):
    """A job whose output begins with a version, and must come next."""
    spec = make_spec(inputs=[("before", version)], **{name: {"volume": version.volume}})
    return replace(
        spec, outputs={name: OutputTarget(volume=version.volume, after=version.number, base="before")}
    )


def replaces(version, *numbers):
    """The same, and its commit retires versions."""
    spec = follows(version)
    return replace(spec, outputs={"features": replace(spec.outputs["features"], retires=numbers)})


ONE = make_spec(features={"volume": "flights/features"})
TWO = make_spec(features={"volume": "flights/features"}, table={"volume": "flights/table"})
SPLIT = make_spec(months={"volume": "flights/months", "partition": "*"})
LATER = Origin(instance="one", dag_id="flights", run_id="run-2", task_id="features")


def write_and_seal(staging, spec, files, *, index=0):
    """Do what a replica does: write `files` ({output: {path: bytes}}), then seal."""
    write(staging, spec, files, index=index)
    seal_written(staging, spec, index=index)


def write(staging, spec, files, *, index=0):
    for name in spec.outputs:
        folder = staging.checkpoints if name == CHECKPOINTS else staging.output("main", index, name)
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in files.get(name, {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)


def seal_written(staging, spec, *, role="main", index=0):
    seal(
        Replica(
            job_id=staging.job_id,
            spec=spec,
            attempt=staging.attempt,
            role=role,
            index=index,
            code=None,
            inputs={name: ("/nowhere",) * len(spec.inputs[name].versions) for name in spec.mounted},
            staging={name: str(staging.output(role, index, name)) for name in spec.staged},
            checkpoints=str(staging.checkpoints),
            scratch="/nowhere",
            sealed=str(staging.sealed(role, index)),
            report="/nowhere",
        )
    )


def run(store, job_id, spec, files, **facts):
    """Run a whole job of one replica and commit it."""
    store.ledger.create(job_id, spec)
    staging = store.stage(job_id)
    write_and_seal(staging, spec, files)
    return store.commit(job_id, attempt=staging.attempt, **facts)


def end(store, job_id, state):
    """Record that a job has ended."""
    verdict = None if state is JobState.SUCCEEDED else Verdict(cause=Cause.CANCELLED, message="m", advice="a")
    store.ledger.update(JobStatus(job_id=job_id, state=state, submitted=1.0, ended=2.0, verdict=verdict))


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class StoreContract:
    """Inherit it and give a `store` fixture, and `again`, which opens the same store once more."""

    def test_a_commit_can_be_read(self, store):
        (version,) = run(store, "a-1", ONE, {"features": {"x/part-0": b"abc", "schema": b"{}"}})["features"]
        assert version.address == "volume://flights/features@1"
        assert (version.files, version.size_bytes, version.partition) == (2, 5, None)
        assert contents(store.path(version.address)) == {"x/part-0": b"abc", "schema": b"{}"}
        assert store.path("flights/features/x/part-0".replace("/x", "@1/x")).read_bytes() == b"abc"

    def test_the_same_content_has_the_same_digest_and_another_number(self, store):
        first, second, third = (
            run(store, f"a-{n}", ONE, {"features": {"x": data}})["features"][0]
            for n, data in enumerate((b"abc", b"abc", b"abd"))
        )
        assert [v.number for v in (first, second, third)] == [1, 2, 3]
        assert first.digest == second.digest != third.digest

    def test_a_record_says_where_a_version_comes_from(self, store):
        raw = store.add(
            "flights/raw",
            store.path(run(store, "a-1", ONE, {"features": {"x": b"1"}})["features"][0].address),
        )
        spec = make_spec(
            inputs=[("raw", raw)], features={"volume": "flights/f"}, table={"volume": "flights/t"}
        )
        made = run(
            store,
            "b-1",
            spec,
            {"features": {"x": b"1"}, "table": {"y": b"2"}},
            metrics={"auc": 0.7},
            modules=("etl.py",),
        )
        record = store.record(made["features"][0].address)
        assert record.inputs == {"raw": (raw.pinned,)}
        assert (record.job_id, record.output, record.entrypoint) == ("b-1", "features", "etl:features")
        assert (record.params["month"], record.metrics, record.modules) == (
            "2013-01",
            {"auc": 0.7},
            ("etl.py",),
        )
        assert record.siblings == (made["table"][0].address,)
        assert record.digest == made["features"][0].digest

    def test_a_second_commit_returns_the_same_versions(self, store, again):
        first = run(store, "a-1", TWO, {"features": {"x": b"1"}, "table": {"y": b"2"}})
        assert store.commit("a-1", attempt=1) == again.commit("a-1", attempt=1) == first
        assert len(store.versions("flights/features")) == 1

    def test_nothing_is_visible_before_the_commit(self, store):
        store.ledger.create("a-1", ONE)
        write_and_seal(store.stage("a-1"), ONE, {"features": {"x": b"1"}})
        assert store.volumes() == []
        with pytest.raises(NotFound, match="run the stage"):
            store.resolve("flights/features")

    def test_the_last_number_counts_what_is_retired_and_deleted(self, store, again):
        assert store.last("flights/features") == 0
        for n in range(4):
            run(store, f"a-{n}", ONE, {"features": {"x": b"%d" % n}})
        store.retire("flights/features@4", reason="bad")
        month = make_spec(features={"volume": "flights/features", "partition": "2013-01"})
        run(store, "b-1", month, {"features": {"x": b"m"}})
        assert (again.last("flights/features"), again.last("flights/features", "2013-01")) == (4, 5)
        for n in range(4):
            end(store, f"a-{n}", JobState.SUCCEEDED)
        store.collect(keep_last=1, young_days=0)
        assert again.last("flights/features") == 4
        assert again.last("flights/features", "2013-02") == 0

    def test_what_is_known_of_a_deleted_version_stays_after_each_gc(self, store, again):
        made = [run(store, f"a-{n}", ONE, {"features": {"x": b"%d" % n}})["features"] for n in range(4)]
        records = [store.record(version.address) for (version,) in made]
        for n in range(4):
            end(store, f"a-{n}", JobState.SUCCEEDED)
        for _ in range(2):
            store.collect(keep_last=1, now=True, job_days=100_000)
        assert [version.number for version in again.versions("flights/features")] == [4]
        for (version,), record in zip(made, records, strict=True):
            assert again.record(version.address) == store.record(version.address) == record
            assert list(again.manifest(version.address)) == list(store.manifest(version.address)) == ["x"]
        assert [store.commit(f"a-{n}", attempt=1)["features"] for n in range(4)] == made
        with pytest.raises(NotFound, match=r"@2 was deleted by gc; there are 4"):
            again.resolve("flights/features@2")
        assert run(store, "b-1", ONE, {"features": {"x": b"b"}})["features"][0].number == 5
        assert store.check(deep=True).problems == ()
        store.collect(keep_last=1, job_days=0, now=True)
        assert again.record(made[0][0].address) == records[0]

    def test_an_output_takes_files_over_from_its_base(self, store, again):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1", "d/b": b"22", "d/c": b"333"}})["features"]
        listed = b"a\nd/c\n"
        spec = follows(first)
        (made,) = run(
            store, "a-2", spec, {"features": {".muster-carried": listed, "d/b": b"new", "e": b"5"}}
        )["features"]
        assert contents(again.path(made.address)) == {"a": b"1", "d/c": b"333", "d/b": b"new", "e": b"5"}
        assert (made.files, made.size_bytes) == (4, 8)
        assert again.record(made.address).inputs == {}, "gc may take the base"
        whole = run(store, "a-3", ONE, {"features": {"a": b"1", "d/c": b"333", "d/b": b"new", "e": b"5"}})
        assert whole["features"][0].digest == made.digest
        assert not store.check(deep=True).problems

    def test_checkpoints_take_files_over_from_their_base(self, store):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1", "b": b"22"}})["features"]
        spec = follows(first, name=CHECKPOINTS)
        (made,) = run(store, "a-2", spec, {CHECKPOINTS: {".muster-carried": b"a\n", "c": b"3"}})[CHECKPOINTS]
        assert contents(store.path(made.address)) == {"a": b"1", "c": b"3"}

    @pytest.mark.parametrize("name", ["features", CHECKPOINTS])
    def test_an_output_of_nothing_is_its_base(self, store, again, name):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1"}})["features"]
        made = run(store, "a-2", follows(first, name=name), {})
        assert made == {name: (first,)} == again.commit("a-2", attempt=1)
        assert store.count("flights/features") == 1
        assert not store.check(deep=True).problems

    @pytest.mark.parametrize("name", ["features", CHECKPOINTS])
    def test_what_cannot_be_taken_over_is_refused_each_time(self, store, again, name):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1", "d/b": b"2"}})["features"]
        wrong = (
            {".muster-carried": b"nowhere\n"},
            {".muster-carried": b"../../x\n"},
            {".muster-carried": b"a\n", "a": b"2"},
            {".muster-carried": b"a\n", "a/b": b"2"},
            {".muster-carried": b"d/b\n", "d": b"2"},
        )
        for number, files in enumerate(wrong, start=2):
            with pytest.raises(BadOutput):
                run(store, f"a-{number}", follows(first, name=name), {name: files})
            with pytest.raises(BadOutput):
                again.commit(f"a-{number}", attempt=1)
        assert store.count("flights/features") == 1

    def test_a_commit_that_was_overtaken_is_refused(self, store, again):
        first_of_all = make_spec(features={"volume": "flights/features", "after": 0})
        (first,) = run(store, "a-1", first_of_all, {"features": {"a": b"1"}})["features"]
        for n, (spec, files) in enumerate(
            [
                (first_of_all, {"features": {"a": b"1"}}),
                (follows(first), {}),
                (follows(first), {"features": {"b": b"1"}}),
            ]
        ):
            if n == 1:
                (bad,) = run(store, "a-2", ONE, {"features": {"a": b"2"}})["features"]
                store.retire(bad.address, reason="bad")
            with pytest.raises(Conflict):
                run(store, f"b-{n}", spec, files)
            with pytest.raises(Conflict):
                again.commit(f"b-{n}", attempt=1)
            end(store, f"b-{n}", JobState.FAILED)
        month = make_spec(features={"volume": "flights/features", "partition": "2013-01", "after": 0})
        run(store, "a-3", month, {"features": {"m": b"1"}})
        spec = replace(
            follows(first),
            outputs={"features": OutputTarget(volume="flights/features", base="before", after=bad.number)},
        )
        (made,) = run(store, "a-4", spec, {"features": {".muster-carried": b"a\n"}})["features"]
        assert contents(store.path(made.address)) == {"a": b"1"}

    def test_of_two_commits_at_once_after_one_version_one_is_made(self, store, again):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1"}})["features"]
        for n in range(2):
            store.ledger.create(f"b-{n}", follows(first))
            write_and_seal(store.stage(f"b-{n}"), follows(first), {"features": {"x": b"%d" % n}})

        def commit(number):
            try:
                return (store, again)[number].commit(f"b-{number}", attempt=1)["features"]
            except Conflict:
                return ()

        with ThreadPoolExecutor(2) as threads:
            made = list(threads.map(commit, range(2)))
        assert sorted(map(len, made)) == [0, 1]
        assert store.count("flights/features") == 2

    def test_a_commit_retires_what_it_replaces(self, store, again):
        for n in range(3):
            run(store, f"a-{n}", ONE, {"features": {f"{n}": b"1"}})
        base = store.resolve("flights/features@latest")[0]
        spec = replaces(base, 2, 3)
        store.retire("flights/features@2", reason="bad")
        store.ledger.create("b-1", spec)
        write_and_seal(store.stage("b-1"), spec, {"features": {".muster-carried": b"2\n", "all": b"111"}})
        assert again.resolve("flights/features@latest") == (base,)
        (made,) = store.commit("b-1", attempt=1)["features"]
        assert again.commit("b-1", attempt=1) == {"features": (made,)}
        found = {version.number: version.retired for version in again.versions("flights/features")}
        assert found == {1: None, 2: "bad", 3: f"replaced by flights/features@{made.number}", 4: None}
        assert again.resolve("flights/features@latest") == (made,)
        assert contents(again.path(base.address)) == {"2": b"1"}, "it stays until gc"
        again.reinstate(base.address)
        store.commit("b-1", attempt=1)
        assert store.resolve(base.address)[0].retired is None
        assert not store.check(deep=True).problems

    def test_gc_leaves_what_a_commit_replaced_to_runs_that_were_given_it(self, store, again):
        for n in range(3):
            run(store, f"a-{n}", ONE, {"features": {f"{n}": b"1"}})
            end(store, f"a-{n}", JobState.SUCCEEDED)
        (base,) = store.resolve("flights/features@latest")
        store.retire("flights/features@1", reason="bad")
        (made,) = run(store, "b-1", replaces(base, 1, 2, 3), {"features": {"all": b"111"}})["features"]
        end(store, "b-1", JobState.SUCCEEDED)
        lately = "replaced lately: a run that goes on may name it"
        plan = again.plan(keep_last=1, young_days=1)
        assert plan.kept == {
            "volume://flights/features@2": lately,
            base.address: lately,
            made.address: "one of the last 1",
        }
        assert store.collect(keep_last=1, young_days=1).plan == plan
        assert contents(again.path(base.address)) == {"2": b"1"}
        store.retire(base.address, reason="bad, too")
        assert [version.number for version in again.plan(keep_last=1, young_days=1).versions] == [3]
        store.collect(keep_last=1, young_days=0)
        assert again.versions("flights/features") == [made]

    def test_a_commit_that_is_refused_or_makes_nothing_retires_nothing(self, store, again):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1"}})["features"]
        assert run(store, "b-1", replaces(first, 1), {}) == {"features": (first,)}
        month = make_spec(features={"volume": "flights/features", "partition": "2013-01"})
        run(store, "a-2", month, {"features": {"a": b"1"}})
        (last,) = run(store, "a-3", ONE, {"features": {"a": b"2"}})["features"]
        with pytest.raises(BadOutput):
            run(store, "b-2", replaces(last, 2), {"features": {"b": b"1"}})
        end(store, "b-2", JobState.FAILED)
        with pytest.raises(Conflict):
            run(store, "b-3", replaces(first, 1), {"features": {"b": b"1"}})
        end(store, "b-3", JobState.FAILED)
        store.pin(last.address, reason="report")
        with pytest.raises(Conflict, match="pinned"):
            run(store, "b-4", replaces(last, last.number), {"features": {"b": b"1"}})
        end(store, "b-4", JobState.FAILED)
        assert [version.retired for version in again.versions("flights/features")] == [None] * 3
        assert all(problem.harmless for problem in store.check(deep=True).problems)

    def test_of_two_that_replace_one_version_at_once_one_does(self, store, again):
        (first,) = run(store, "a-1", ONE, {"features": {"a": b"1"}})["features"]
        for n in range(2):
            store.ledger.create(f"b-{n}", replaces(first, 1))
            write_and_seal(store.stage(f"b-{n}"), replaces(first, 1), {"features": {"x": b"%d" % n}})

        def commit(number):
            try:
                return (store, again)[number].commit(f"b-{number}", attempt=1)["features"]
            except Conflict:
                return ()

        with ThreadPoolExecutor(2) as threads:
            made = [each for several in threads.map(commit, range(2)) for each in several]
        assert len(made) == 1
        live = [version for version in store.versions("flights/features") if version.retired is None]
        assert live == made

    @pytest.mark.parametrize(("after", "number"), [(None, 1), (3, 4), (3, 0), (3, True)])
    def test_only_what_was_there_before_is_replaced(self, after, number):
        with pytest.raises(SpecError, match=r"only versions up to|need a whole number of 1 or more"):
            OutputTarget(volume="flights/features", after=after, retires=(number,))

    def test_the_newest_versions_come_first_and_no_others(self, store, again):
        for n in range(5):
            run(store, f"a-{n}", ONE, {"features": {"x": b"%d" % n}})
        volume = "flights/features"
        assert [v.number for v in again.newest(volume, limit=2)] == [5, 4]
        assert [v.number for v in again.newest(volume, limit=9, before=3)] == [2, 1]
        assert again.newest(volume, limit=1) == store.versions(volume)[-1:]
        assert again.newest("no/such", limit=9) == []
        assert (again.count(volume), again.count("no/such")) == (5, 0)

    def test_the_newest_versions_of_a_partition_are_those_of_no_other(self, store, again):
        for n, partition in enumerate(("2013-01", "2013-02", "2013-01", None)):
            spec = make_spec(features={"volume": "flights/features", "partition": partition})
            run(store, f"a-{n}", spec, {"features": {"x": b"%d" % n}})
        newest = partial(again.newest, "flights/features", limit=9)
        assert [v.number for v in newest(partition="2013-01")] == [3, 1]
        assert [v.number for v in newest(partition="2013-01", before=3)] == [1]
        assert [v.number for v in newest(partition="2013-03")] == []
        assert [v.number for v in newest()] == [4, 3, 2, 1]

    def test_the_records_of_many_versions_are_asked_for_at_once(self, store, again):
        for n in range(3):
            run(store, f"a-{n}", ONE, {"features": {"x": b"%d" % n}})
        addresses = [f"volume://flights/features@{n}" for n in (3, 1)]
        assert again.records(addresses) == [store.record(address) for address in addresses]
        assert again.records([]) == []
        with pytest.raises(NotFound, match="features@9"):
            again.records([*addresses, "flights/features@9"])

    def test_every_output_or_none(self, store):
        with pytest.raises(StoreError, match="output 'table' is empty"):
            run(store, "a-1", TWO, {"features": {"x": b"1"}})
        assert store.volumes() == []

    def test_a_job_without_outputs_commits_nothing_once(self, store, again):
        assert run(store, "a-1", make_spec(), {}) == {}
        assert again.commit("a-1", attempt=1) == {}
        assert store.volumes() == []

    def test_replicas_are_joined(self, store):
        spec = make_spec(replicas=2, features={"volume": "flights/features"})
        store.ledger.create("a-1", spec)
        staging = store.stage("a-1")
        write_and_seal(staging, spec, {"features": {"d/0": b"a", "only-0/x": b"x"}}, index=0)
        assert store.sealed("a-1") is None
        with pytest.raises(Conflict, match="not all replicas have sealed"):
            store.commit("a-1", attempt=1)
        write_and_seal(staging, spec, {"features": {"d/1": b"b", "d/e/2": b"c"}}, index=1)
        assert [part.index for part in store.sealed("a-1")] == [0, 1]
        (version,) = store.commit("a-1", attempt=1)["features"]
        assert contents(store.path(version.address)) == {
            "d/0": b"a",
            "d/1": b"b",
            "d/e/2": b"c",
            "only-0/x": b"x",
        }

    def test_a_path_that_two_replicas_wrote_is_refused_naming_both(self, store):
        spec = make_spec(replicas=2, features={"volume": "flights/features"})
        for number, (first, second) in enumerate((("x", "x"), ("x", "x/y"), ("x/y/z", "x"))):
            store.ledger.create(f"a-{number}", spec)
            staging = store.stage(f"a-{number}")
            write_and_seal(staging, spec, {"features": {first: b"a"}}, index=0)
            write_and_seal(staging, spec, {"features": {second: b"b"}}, index=1)
            with pytest.raises(StoreError, match=r"main-[01] and main-[01] both wrote 'x'"):
                store.commit(f"a-{number}", attempt=1)
        assert store.volumes() == []

    def test_every_folder_becomes_a_partition(self, store):
        made = run(
            store, "a-1", SPLIT, {"months": {"2013-02/x": b"2", "2013-01/x": b"1", "month=2013-03/d/x": b"3"}}
        )
        assert [(v.partition, v.number) for v in made["months"]] == [
            ("2013-01", 1),
            ("2013-02", 2),
            ("month=2013-03", 3),
        ]
        assert contents(store.path("flights/months@2013-02")) == {"x": b"2"}
        assert contents(store.path("flights/months@month=2013-03")) == {"d/x": b"3"}

    def test_what_is_no_partition_is_refused(self, store):
        wrong = {"x": "'x' lies in none", "07/x": "'07' cannot be a partition", "a b/x": "cannot be"}
        for number, (path, message) in enumerate(wrong.items()):
            with pytest.raises(StoreError, match=message):
                run(store, f"a-{number}", SPLIT, {"months": {"2013-01/x": b"1", path: b"2"}})
        assert store.volumes() == []

    def test_selectors(self, store):
        for n, months in enumerate((["2013-01", "2013-02"], ["2013-01"], ["2012-12", "2013-02"])):
            run(store, f"a-{n}", SPLIT, {"months": {f"{month}/x": f"{n}".encode() for month in months}})

        def found(selector):
            return [(v.partition, v.number) for v in store.resolve(f"flights/months{selector}")]

        assert found("") == found("@latest") == [("2013-02", 5)]
        assert found("@2013-01") == [("2013-01", 3)]
        assert found("@1") == [("2013-01", 1)]
        assert found("@*") == [("2012-12", 4), ("2013-01", 3), ("2013-02", 5)]
        assert found("@<2013-02,>=2013-01") == [("2013-01", 3)]
        digest = store.resolve("flights/months@5")[0].digest
        assert found(f"@{digest[:13]}") == [("2013-02", 5)]

    def test_versions_without_partition_count_by_number(self, store):
        for n in range(11):
            run(store, f"a-{n}", ONE, {"features": {"x": b"%d" % n}})
        assert store.resolve("flights/features")[0].number == 11
        assert [v.number for v in store.versions("flights/features")] == list(range(1, 12))

    def test_not_found_says_what_is_there(self, store):
        run(store, "a-1", ONE, {"features": {"x": b"1"}})
        for address, message in (
            ("flights/fetures", "there are flights/features"),
            ("flights/features@9", "there are 1"),
            ("flights/features@b3:12345678", "has the digest"),
            ("flights/features@2013-01", "has no partitions"),
            ("flights/features@*", "has no partitions"),
            ("flights/features@1/nothing", "holds no 'nothing'; at its top are x"),
        ):
            with pytest.raises(NotFound, match=message):
                store.path(address)

    def test_hostile_addresses_are_refused(self, store):
        for address in ("../x@1", "a/../b", "a\nb", "a" * 300, "/etc", "a@1/../x", ""):
            with pytest.raises(SpecError):
                store.resolve(address)

    def test_hostile_job_ids_are_refused(self, store):
        ledger = store.ledger
        acts = (store.stage, store.staging, store.sealed, ledger.spec, ledger.status, store.release)
        for job_id in ("../x", "a/b", "A", "", "a" * 41, "a\n"):
            for act in acts:
                with pytest.raises(SpecError):
                    act(job_id)
            with pytest.raises(SpecError):
                ledger.create(job_id, ONE)

    def test_retired_versions_are_found_by_number_and_digest_only(self, store):
        first = run(store, "a-1", ONE, {"features": {"x": b"1"}})["features"][0]
        second = run(store, "a-2", ONE, {"features": {"x": b"2"}})["features"][0]
        assert store.retire(second.address, reason="wrong rows").retired == "wrong rows"
        assert store.resolve("flights/features") == (first,)
        assert store.resolve("flights/features@2")[0].retired == "wrong rows"
        assert store.resolve(f"flights/features@{second.digest}")[0].number == 2
        store.retire(first.address, reason="too")
        with pytest.raises(NotFound, match="every version of flights/features is retired"):
            store.resolve("flights/features")
        assert store.reinstate(first.address) == first
        assert store.reinstate(first.address) == first
        assert store.resolve("flights/features") == (first,)

    def test_pins_have_reasons(self, store, again):
        run(store, "a-1", ONE, {"features": {"x": b"1"}})
        store.pin("flights/features", reason="deployment/flights")
        store.pin("flights/features", reason="deployment/flights")
        store.pin("flights/features", reason="für\nimmer/..")
        assert again.resolve("flights/features@1")[0].pins == ("deployment/flights", "für\nimmer/..")
        assert store.unpin("flights/features@1", reason="für\nimmer/..").pins == ("deployment/flights",)
        assert store.unpin("flights/features@1", reason="never was").pins == ("deployment/flights",)

    def test_one_version_is_asked_for_where_one_is_needed(self, store):
        run(store, "a-1", SPLIT, {"months": {"2013-01/x": b"1", "2013-02/x": b"1"}})
        for act in (store.path, store.record, lambda address: store.pin(address, reason="x")):
            with pytest.raises(SpecError, match="names several versions"):
                act("flights/months@*")

    def test_a_version_cannot_be_changed(self, store):
        run(store, "a-1", ONE, {"features": {"d/x": b"1"}})
        data = store.path("flights/features")
        modes = {str(p.relative_to(data)): stat.S_IMODE(p.stat().st_mode) for p in [data, *data.rglob("*")]}
        assert modes == {".": 0o555, "d": 0o555, "d/x": 0o444}

    def test_each_attempt_has_a_staging_of_its_own(self, store):
        store.ledger.create("a-1", ONE)
        assert store.staging("a-1") is None
        first = store.stage("a-1")
        (first.checkpoints / "deep").mkdir()
        (first.checkpoints / "deep" / "step-1").write_bytes(b"weights")
        (first.checkpoints / "latest").symlink_to("deep/step-1")
        kept = os.open(first.checkpoints / "deep" / "step-1", os.O_WRONLY)  # an old rank that lives on
        second = store.stage("a-1")
        os.pwrite(kept, b"LATE", 0)
        os.close(kept)
        assert (first.attempt, second.attempt) == (1, 2)
        assert store.staging("a-1") == second
        assert (second.checkpoints / "latest").read_bytes() == b"weights"
        assert (second.checkpoints / "deep" / "step-1").stat().st_nlink == 1

    def test_a_job_begins_with_the_checkpoints_of_the_one_that_it_follows(self, store):
        store.ledger.create("a-1", ONE)
        old = store.stage("a-1")
        assert store.saved("a-1") is None
        (old.checkpoints / "step-5").write_bytes(b"weights")
        kept = os.open(old.checkpoints / "step-5", os.O_WRONLY)  # an old rank that lives on
        end(store, "a-1", JobState.CANCELLED)
        store.ledger.create("a-2", replace(ONE, follows="a-1"))
        saved = store.saved("a-2")
        assert (saved.job_id, saved.files, saved.size_bytes) == ("a-1", 1, 7)
        new = store.stage("a-2")
        os.pwrite(kept, b"LATE", 0)
        os.close(kept)
        assert contents(new.checkpoints) == {"step-5": b"weights"}
        assert not old.checkpoints.exists()
        assert old.root.exists(), "what it had sealed may still be fetched"
        assert (store.saved("a-2").job_id, store.saved("a-1")) == ("a-2", None)

    def test_without_a_process_left_the_next_attempt_has_the_very_checkpoints_and_nothing_else(self, store):
        store.ledger.create("a-1", TWO)
        first = store.stage("a-1")
        write(first, TWO, {"features": {"x": b"old"}})
        (first.checkpoints / "step-1").write_bytes(b"weights")
        before = (first.checkpoints / "step-1").stat().st_ino
        store.note_gone("a-1", attempt=1)
        second = store.stage("a-1")
        assert (second.attempt, first.root.exists()) == (2, False)
        assert contents(second.checkpoints) == {"step-1": b"weights"}
        assert (second.checkpoints / "step-1").stat().st_ino == before
        assert contents(second.root) == {"checkpoints/step-1": b"weights"}
        (second.checkpoints / "step-2").write_bytes(b"more")
        kept = os.open(second.checkpoints / "step-2", os.O_WRONLY)
        store.note_gone("a-1", attempt=1)  # that the second is gone is not said
        third = store.stage("a-1")
        os.pwrite(kept, b"LATE", 0)
        os.close(kept)
        assert contents(third.checkpoints) == {"step-1": b"weights", "step-2": b"more"}

    def test_a_job_takes_the_very_checkpoints_of_one_of_which_no_process_is_left(self, store):
        store.ledger.create("a-1", ONE)
        old = store.stage("a-1")
        (old.checkpoints / "step-5").write_bytes(b"weights")
        store.note_gone("a-1", attempt=1)
        store.ledger.create("a-2", replace(ONE, follows="a-1"))
        end(store, "a-1", JobState.CANCELLED)
        new = store.stage("a-2")
        assert contents(new.checkpoints) == {"step-5": b"weights"}
        assert not old.checkpoints.exists()
        assert (store.saved("a-2").job_id, store.saved("a-1")) == ("a-2", None)

    def test_a_job_that_has_not_ended_keeps_its_checkpoints(self, store):
        store.ledger.create("a-1", ONE)
        (store.stage("a-1").checkpoints / "step-5").write_bytes(b"weights")
        store.note_gone("a-1", attempt=1)
        store.ledger.create("a-2", replace(ONE, follows="a-1"))
        assert contents(store.stage("a-2").checkpoints) == {"step-5": b"weights"}
        assert store.saved("a-1").files == 1

    def test_a_job_that_never_began_hands_on_the_checkpoints_of_the_one_before(self, store):
        store.ledger.create("a-1", ONE)
        (store.stage("a-1").checkpoints / "step-5").write_bytes(b"weights")
        end(store, "a-1", JobState.FAILED)
        for number in (2, 3):
            store.ledger.create(f"a-{number}", replace(ONE, follows=f"a-{number - 1}"))
        end(store, "a-2", JobState.CANCELLED)
        assert store.saved("a-3").job_id == "a-1"
        assert contents(store.stage("a-3").checkpoints) == {"step-5": b"weights"}

    def test_a_job_that_succeeded_leaves_no_checkpoints(self, store):
        store.ledger.create("a-1", ONE)
        staging = store.stage("a-1")
        (staging.checkpoints / "step-5").write_bytes(b"weights")
        write_and_seal(staging, ONE, {"features": {"x": b"1"}})
        store.commit("a-1", attempt=1)
        end(store, "a-1", JobState.SUCCEEDED)
        store.ledger.create("a-2", replace(ONE, follows="a-1"))
        assert store.saved("a-1") is None
        assert contents(store.stage("a-2").checkpoints) == {}

    def test_checkpoints_that_are_an_output_become_a_version_from_which_another_job_starts(self, store):
        spec = make_spec(
            replicas=2, features={"volume": "flights/features"}, checkpoints={"volume": "flights/saved"}
        )
        store.ledger.create("a-1", spec)
        staging = store.stage("a-1")
        write_and_seal(staging, spec, {"features": {"0": b"1"}, "checkpoints": {"step-1/part-0": b"weights"}})
        (staging.checkpoints / "latest").symlink_to("step-1")
        shard = {"step-1/part-1": b"of replica 1, which seals later"}
        write_and_seal(staging, spec, {"features": {"1": b"1"}, "checkpoints": shard}, index=1)
        made = store.commit("a-1", attempt=1)
        (saved,) = made["checkpoints"]
        found = contents(store.path(saved.address))
        step = {"part-0": b"weights", "part-1": shard["step-1/part-1"]}
        assert found == {
            f"{folder}/{name}": data for folder in ("step-1", "latest") for name, data in step.items()
        }
        assert contents(store.path(made["features"][0].address)) == {"0": b"1", "1": b"1"}
        end(store, "a-1", JobState.SUCCEEDED)
        later = make_spec(inputs=(("checkpoints", saved),), features={"volume": "flights/features"})
        store.ledger.create("b-1", later)
        first = store.stage("b-1")
        assert contents(first.checkpoints) == found
        (first.checkpoints / "step-1" / "part-0").write_bytes(b"trained on")
        assert contents(store.stage("b-1").checkpoints) == found | {"step-1/part-0": b"trained on"}
        assert contents(store.path(saved.address)) == found

    def test_checkpoints_outlive_a_commit_that_fails(self, store):
        spec = make_spec(features={"volume": "flights/features"}, checkpoints={"volume": "flights/saved"})
        store.ledger.create("a-1", spec)
        staging = store.stage("a-1")
        write_and_seal(staging, spec, {"features": {"x": b"1"}, "checkpoints": {"step-1": b"weights"}})
        with staging.output("main", 0, "features").joinpath("x").open("ab") as late:
            late.write(b"written after the seal")
        with pytest.raises(StoreError, match="'features'"):
            store.commit("a-1", attempt=1)
        end(store, "a-1", JobState.FAILED)
        store.ledger.create("a-2", replace(spec, follows="a-1"))
        assert contents(store.stage("a-2").checkpoints) == {"step-1": b"weights"}

    def test_checkpoints_that_are_an_output_must_be_there(self, store):
        spec = make_spec(checkpoints={"volume": "flights/saved"})
        store.ledger.create("a-1", spec)
        staging = store.stage("a-1")
        write_and_seal(staging, spec, {})
        with pytest.raises(BadOutput, match="no file into its folder of checkpoints"):
            store.commit("a-1", attempt=1)

    def test_what_is_followed_may_be_gone(self, store):
        store.ledger.create("a-2", replace(ONE, follows="a-1"))
        assert store.saved("a-2") is None
        assert contents(store.stage("a-2").checkpoints) == {}
        with pytest.raises(NotFound, match="no job a-1"):
            store.saved("a-1")

    def test_a_fenced_attempt_cannot_be_committed(self, store):
        store.ledger.create("a-1", ONE)
        first = store.stage("a-1")
        second = store.stage("a-1")
        first.sealed("main", 0).parent.mkdir(parents=True, exist_ok=True)  # an old rank that lives on
        write_and_seal(first, ONE, {"features": {"x": b"old"}})
        with pytest.raises(Conflict, match="attempt 1 cannot be committed, the current one is 2"):
            store.commit("a-1", attempt=1)
        write_and_seal(second, ONE, {"features": {"x": b"new"}})
        store.commit("a-1", attempt=2)
        assert contents(store.path("flights/features")) == {"x": b"new"}

    def test_a_sealed_attempt_is_never_run_again(self, store):
        store.ledger.create("a-1", ONE)
        staging = store.stage("a-1")
        write_and_seal(staging, ONE, {"features": {"x": b"1"}})
        for _ in range(2):
            with pytest.raises(Conflict, match="has sealed"):
                store.stage("a-1")
            store.commit("a-1", attempt=1)
            assert store.sealed("a-1") is not None

    def test_an_ended_job_is_not_committed_any_more(self, store):
        store.ledger.create("a-1", ONE)
        write_and_seal(store.stage("a-1"), ONE, {"features": {"x": b"1"}})
        store.ledger.update(JobStatus(job_id="a-1", state=JobState.CANCELLED, submitted=1.0))
        with pytest.raises(Conflict, match="has ended"):
            store.commit("a-1", attempt=1)

    def test_a_job_must_be_known(self, store):
        for act in (store.stage, store.staging, store.sealed, lambda job: store.commit(job, attempt=1)):
            with pytest.raises(NotFound, match="no job no-such-job"):
                act("no-such-job")

    def test_adding_a_folder_and_a_file(self, store, tmp_path):
        (tmp_path / "in" / "d").mkdir(parents=True)
        (tmp_path / "in" / "d" / "x").write_bytes(b"1")
        (tmp_path / "in" / "y").write_bytes(b"22")
        version = store.add("raw", tmp_path / "in", partition="2013-01", note="by hand")
        assert (version.partition, version.files, version.size_bytes) == ("2013-01", 2, 3)
        (tmp_path / "in" / "y").write_bytes(b"33")
        assert contents(store.path("raw@1")) == {"d/x": b"1", "y": b"22"}
        assert store.record("raw@1").note == "by hand"
        assert contents(store.path(store.add("raw", tmp_path / "in" / "y").address)) == {"y": b"33"}

    def test_what_cannot_be_added_is_refused(self, store, tmp_path):
        (tmp_path / "empty" / "deep").mkdir(parents=True)
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / "passwd").symlink_to("/etc/passwd")
        for source, message in (
            ("empty", "holds no file"),
            ("linked", "holds a link out of it"),
            ("missing", "no folder and no file"),
        ):
            with pytest.raises(StoreError, match=message):
                store.add("raw", tmp_path / source)
        with pytest.raises(SpecError):
            store.add("../raw", tmp_path)
        assert store.volumes() == []

    def test_code_is_kept_once(self, store, again, tmp_path):
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "train.py").write_text("x = 1\n")
        (tmp_path / "run.sh").write_text("true\n")
        digest = store.put(tmp_path, ["pkg/train.py", "run.sh"])
        assert again.put(tmp_path, ["run.sh", "pkg/train.py"]) == digest
        assert contents(store.code(digest)) == {"pkg/train.py": b"x = 1\n", "run.sh": b"true\n"}
        (tmp_path / "run.sh").chmod(0o755)
        changed = store.put(tmp_path, ["pkg/train.py", "run.sh"])
        assert changed != digest
        assert os.access(store.code(changed) / "run.sh", os.X_OK)
        with pytest.raises(NotFound, match="no code snapshot"):
            store.code(DIGEST)

    def test_code_may_be_given_as_text(self, store, tmp_path):
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "dag.py").write_text("import airflow\n")
        (tmp_path / "pkg" / "etl.py").write_text("y = 2\n")
        text = "def f():\r\n    return 'é'\n"
        digest = store.put(tmp_path, ["pkg/etl.py", "pkg/dag.py"], texts={"pkg/dag.py": text, "new/x.py": ""})
        assert contents(store.code(digest)) == {
            "pkg/dag.py": text.encode(),
            "pkg/etl.py": b"y = 2\n",
            "new/x.py": b"",
        }
        for path, given in (("pkg/dag.py", text), ("new/x.py", "")):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(given.encode())
        assert store.put(tmp_path, ["pkg/etl.py", "pkg/dag.py", "new/x.py"]) == digest
        for path in ("../x.py", "/etc/x.py", "a\nb.py", ""):
            with pytest.raises(SpecError, match="no plain path"):
                store.put(tmp_path, [], texts={path: "x"})

    def test_ten_at_once_put_the_same_code(self, store, again, tmp_path):
        (tmp_path / "a.py").write_text("x = 1\n")
        with ThreadPoolExecutor(10) as pool:
            digests = set(pool.map(lambda n: (store, again)[n % 2].put(tmp_path, ["a.py"]), range(10)))
        assert len(digests) == 1
        assert contents(store.code(digests.pop())) == {"a.py": b"x = 1\n"}

    def test_ten_jobs_at_once_get_ten_numbers(self, store, again):
        def one(n):
            return run((store, again)[n % 2], f"a-{n}", ONE, {"features": {"x": b"%d" % n}})["features"][0]

        with ThreadPoolExecutor(10) as pool:
            made = list(pool.map(one, range(10)))
        assert sorted(version.number for version in made) == list(range(1, 11))
        assert store.versions("flights/features") == sorted(made, key=lambda version: version.number)

    def test_ten_at_once_commit_one_job(self, store, again):
        store.ledger.create("a-1", TWO)
        write_and_seal(store.stage("a-1"), TWO, {"features": {"x": b"1"}, "table": {"y": b"2"}})
        with ThreadPoolExecutor(10) as pool:
            made = list(pool.map(lambda n: (store, again)[n % 2].commit("a-1", attempt=1), range(10)))
        assert all(versions == made[0] for versions in made)
        assert [len(store.versions(volume)) for volume in store.volumes()] == [1, 1]

    def test_entering_a_job_is_idempotent(self, store, again):
        assert store.ledger.create("a-1", ONE, owner="ti-1")
        assert not again.ledger.create("a-1", ONE, owner="ti-2")
        assert again.ledger.spec("a-1") == ONE
        status = again.ledger.status("a-1")
        assert (status.state, status.owner) == (JobState.QUEUED, "ti-1")
        with pytest.raises(Conflict, match="another spec"):
            again.ledger.create("a-1", replace(ONE, params={}))

    def test_ten_at_once_enter_one_job(self, store, again):
        with ThreadPoolExecutor(10) as pool:
            made = list(
                pool.map(lambda n: (store, again)[n % 2].ledger.create("a-1", ONE, owner=f"{n}"), range(10))
            )
        assert made.count(True) == 1
        assert store.ledger.status("a-1").owner == str(made.index(True))

    def test_an_end_is_final(self, store, again):
        store.ledger.create("a-1", ONE)
        submitted = store.ledger.status("a-1").submitted
        verdict = Verdict(cause=Cause.USER_ERROR, message="ValueError: x", advice="mend it", rank=3)
        failed = JobStatus(
            job_id="a-1", state=JobState.FAILED, submitted=submitted, ended=9.0, verdict=verdict, restarts=1
        )
        store.ledger.update(JobStatus(job_id="a-1", state=JobState.RUNNING, submitted=submitted, restarts=1))
        assert again.ledger.status("a-1").restarts == 1
        store.ledger.update(failed)
        again.ledger.update(JobStatus(job_id="a-1", state=JobState.SUCCEEDED, submitted=submitted))
        assert store.ledger.status("a-1") == failed

    def test_only_own_sets_the_owner(self, store, again):
        store.ledger.create("a-1", ONE)
        assert store.ledger.own("a-1", owner="ti-1", expected=None)
        assert not again.ledger.own("a-1", owner="ti-2", expected=None)
        store.ledger.update(JobStatus(job_id="a-1", state=JobState.RUNNING, submitted=1.0, owner="ti-9"))
        assert again.ledger.status("a-1").owner == "ti-1"
        assert again.ledger.own("a-1", owner="ti-2", expected="ti-1")
        assert store.ledger.status("a-1").owner == "ti-2"

    def test_a_status_is_recorded_only_for_the_owner_that_is_named(self, store, again):
        store.ledger.create("a-1", ONE, owner="ti-1")
        runs = JobStatus(job_id="a-1", state=JobState.RUNNING, submitted=1.0)
        assert store.ledger.update(runs, owner="ti-1")
        assert again.ledger.own("a-1", owner="ti-2", expected="ti-1")
        ends = replace(runs, reason="ends", verdict=UNKNOWN)
        assert not store.ledger.update(ends, owner="ti-1")
        status = again.ledger.status("a-1")
        assert (status.state, status.reason, status.verdict) == (JobState.RUNNING, "", None)
        assert store.ledger.update(ends, owner="ti-2")
        assert again.ledger.status("a-1").verdict == UNKNOWN
        assert store.ledger.update(runs)

    def test_of_ten_who_want_to_own_a_job_one_does(self, store, again):
        store.ledger.create("a-1", ONE)

        def own(n):
            return (store, again)[n % 2].ledger.own("a-1", owner=str(n), expected=None)

        with ThreadPoolExecutor(10) as pool:
            won = list(pool.map(own, range(10)))
        assert won.count(True) == 1
        assert store.ledger.status("a-1").owner == str(won.index(True))

    def test_many_are_asked_about_at_once(self, store, again):
        names = [f"a-{number}" for number in range(MOST_SPECS + 1)]
        for name in names:
            store.ledger.create(name, replace(ONE, name=f"of {name}"))
        asked = [*names, "gone"]
        assert {status.job_id for status in again.ledger.statuses(asked)} == {*names}
        specs = again.ledger.specs(asked)
        assert {name: spec.name for name, spec in specs.items()} == {name: f"of {name}" for name in names}
        assert again.ledger.statuses([]) == []
        assert again.ledger.specs([]) == {}

    def test_the_tasks_of_all_jobs_are_asked_for_at_once(self, store, again):
        made = {
            f"a-{number}": Origin(dag_id=dag, run_id=run, task_id="train", map_index=number)
            for number, (dag, run) in enumerate([("a", "r1"), ("a", "r2"), ("b", "r1"), ("a", "r1")])
        }
        for name, origin in made.items():
            store.ledger.create(name, replace(ONE, origin=origin))
        store.ledger.create("by-hand", replace(ONE, origin=Origin()))
        assert list(again.ledger.origins().items()) == list(made.items())
        assert list(again.ledger.origins(dag_id="a")) == ["a-0", "a-1", "a-3"]
        assert list(again.ledger.origins(dag_id="a", run_id="r1")) == ["a-0", "a-3"]
        assert again.ledger.origins(dag_id="c") == {}

    def test_the_log_is_read_in_whole_lines(self, store, again):
        store.ledger.create("a-1", ONE)
        assert store.ledger.read("a-1") == (b"", 0)
        assert store.ledger.log_bytes("a-1") == 0
        store.ledger.append("a-1", b"one\ntwo\n")
        store.ledger.append("a-1", b"")
        store.ledger.append("a-1", "drü\n".encode())
        data, cursor = again.ledger.read("a-1", limit_bytes=5)
        assert data == b"one\n"
        assert again.ledger.log_bytes("a-1") == 13
        assert again.ledger.read("a-1", after=cursor) == ("two\ndrü\n".encode(), 13)
        assert again.ledger.read("a-1", after=13) == (b"", 13)
        store.ledger.append("a-1", b"x" * 10 + b"\n")
        assert store.ledger.read("a-1", after=13, limit_bytes=4) == (b"xxxx", 17)

    def test_lines_of_the_log_have_times(self, store, again):
        store.ledger.create("a-1", ONE)
        assert store.ledger.log_times("a-1") == []
        began = time.time()
        store.ledger.append("a-1", b"one\n")
        store.ledger.append("a-1", b"two\n")
        for times in (again.ledger.log_times("a-1"), again.ledger.log_times("a-1", after=3, before=4)):
            assert times[0].offset == 0
            assert began - 1 <= times[0].at <= time.time()
        assert all(0 <= each.offset < 8 for each in again.ledger.log_times("a-1", after=2))

    def test_there_are_no_times_of_a_job_that_is_not_there(self, store):
        with pytest.raises(NotFound, match="no job a-1"):
            store.ledger.log_times("a-1")

    def test_ten_writers_do_not_mix_lines(self, store, again):
        store.ledger.create("a-1", ONE)
        lines = [b"%d" % n * 2000 + b"\n" for n in range(10)]
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda n: (store, again)[n % 2].ledger.append("a-1", lines[n]), range(10)))
        assert sorted(store.ledger.read("a-1")[0].splitlines(keepends=True)) == sorted(lines)

    def test_what_ranks_and_workers_tell_becomes_series_beside_the_log(self, store, again):
        store.ledger.create("a-1", ONE)
        assert store.ledger.series("a-1") == Series()
        store.ledger.append(
            "a-1",
            b"[rank 0] begins\n[rank 0] muster: epoch=1/3 loss=0.5\n[use main-0] muster: cpu_cores=1.5\n"
            b"[rank 1] muster: epoch=1/3 loss=nan\n",
        )
        store.ledger.append("a-1", b"[rank 0] muster: epoch=2/3 loss=0.25\n")
        assert again.ledger.read("a-1")[0].count(b"\n") == 4
        assert b"[use" not in again.ledger.read("a-1")[0]
        series = again.ledger.series("a-1")
        assert series == store.ledger.series("a-1")
        assert [(c.name, c.source, c.step_name, c.steps, c.values, c.not_finite) for c in series.numbers] == [
            ("epoch", "0", "", (), (1.0, 2.0), 0),
            ("epoch", "1", "", (), (1.0,), 0),
            ("loss", "0", "epoch", (1.0, 2.0), (0.5, 0.25), 0),
            ("loss", "1", "", (), (), 1),
        ]
        assert [(c.name, c.source, c.values) for c in series.use] == [("cpu_cores", "main-0", (1.5,))]
        assert all(0 <= second < 60 for curve in series.numbers for second in curve.seconds)

    def test_there_are_no_series_of_a_job_that_is_not_there(self, store):
        with pytest.raises(NotFound, match="no job a-1"):
            store.ledger.series("a-1")

    def test_series_last_as_long_as_a_version_of_their_job(self, store, again):
        for job_id in ("a-1", "a-2"):
            run(store, job_id, ONE, {"features": {"x": job_id.encode()}})
            store.ledger.append(job_id, b"[rank 0] muster: loss=0.5\n")
            end(store, job_id, JobState.SUCCEEDED)
        store.collect(keep_last=1, job_days=0)
        assert again.ledger.jobs() == []
        assert [curve.values for curve in again.ledger.series("a-2").numbers] == [(0.5,)]
        with pytest.raises(NotFound):
            again.ledger.series("a-1")
        run(store, "a-3", ONE, {"features": {"x": b"3"}})
        store.collect(keep_last=1, job_days=0)
        with pytest.raises(NotFound):
            again.ledger.series("a-2")

    def test_jobs_come_oldest_first(self, store):
        for job_id in ("b-1", "c-1", "a-1"):
            store.ledger.create(job_id, ONE)
        store.ledger.update(JobStatus(job_id="b-1", state=JobState.RUNNING, submitted=1.0))
        assert store.ledger.jobs() == ["b-1", "c-1", "a-1"]

    def test_gc_takes_what_it_planned_of_the_volumes_that_are_named(self, store, again, tmp_path):
        (tmp_path / "x").write_text("x")
        for volume in ("raw/one", "raw/two"):
            for _ in range(3):
                store.add(volume, tmp_path / "x")
        planned = store.plan(volumes=["raw/one"], keep_last=2)
        assert [version.address for version in planned.versions] == ["volume://raw/one@1"]
        assert planned.kept == dict.fromkeys(
            ("volume://raw/one@2", "volume://raw/one@3"), "one of the last 2"
        )
        done = store.collect(volumes=["raw/one"], keep_last=2)
        assert done.plan == planned
        assert [version.number for version in again.versions("raw/one")] == [2, 3]
        assert len(again.versions("raw/two")) == 3
        assert store.record("raw/one@1").volume == "raw/one"

    def test_gc_takes_partitions_but_those_that_were_written_last(self, store, tmp_path):
        (tmp_path / "x").write_text("x")
        for partition in ("h1", "h2", "h3", None, "h1"):
            store.add("raw/hours", tmp_path / "x", partition=partition)
        store.add("raw/one", tmp_path / "x")
        assert store.plan(keep_last=1).versions[0].address == "volume://raw/hours@1"
        planned = store.plan(keep_last=1, keep_partitions=2)
        assert [version.number for version in planned.versions] == [1, 2], "h3 and the late h1 stay"
        store.pin("volume://raw/hours@2", reason="it stays")
        done = store.collect(keep_last=1, keep_partitions=1)
        assert [version.number for version in done.plan.versions] == [1, 3]
        assert {version.number for version in store.versions("raw/hours")} == {2, 4, 5}
        with pytest.raises(SpecError, match="keep_partitions is 0"):
            store.plan(keep_partitions=0)

    def test_gc_takes_partitions_that_were_written_long_ago_but_the_youngest(self, store, tmp_path):
        (tmp_path / "x").write_text("x")
        for partition in ("h1", "h2", None, "h1"):
            store.add("raw/hours", tmp_path / "x", partition=partition)
        assert store.plan(keep_last=2, partition_days=1).versions == ()
        done = store.collect(keep_last=2, partition_days=0)
        assert [version.number for version in done.plan.versions] == [2]
        with pytest.raises(SpecError, match="partition_days is -1"):
            store.plan(partition_days=-1)

    def test_gc_refuses_what_is_no_rule_or_no_volume(self, store):
        with pytest.raises(SpecError, match="keep_last is 0"):
            store.plan(keep_last=0)
        with pytest.raises(NotFound, match="no volume 'raw/none'"):
            store.collect(volumes=["raw/none"])

    def test_a_check_tells_how_far_it_is(self, store, tmp_path):
        (tmp_path / "x").write_text("x")
        for _ in range(2):
            store.add("raw/one", tmp_path / "x")
        seen = []
        report = store.check(deep=True, progress=lambda *told: seen.append(told))
        assert report.clean
        assert (report.versions, report.files, report.size_bytes, report.problems) == (2, 2, 2, ())
        assert seen == [("volume://raw/one@1", 0, 2), ("volume://raw/one@2", 1, 2)]

    def test_what_the_last_check_of_each_kind_found_is_kept(self, store, again, tmp_path):
        (tmp_path / "x").write_text("x")
        store.add("raw/one", tmp_path / "x")
        began = time.time()
        store.check()
        (kept,) = again.upkept()
        assert (kept.work, began - 1 <= kept.at <= time.time()) == (UpkeepKind.FSCK, True)
        assert kept.checked == Checked(versions=1, files=1, size_bytes=1)
        store.check(deep=True)
        assert [each.work for each in again.upkept()] == [UpkeepKind.FSCK, UpkeepKind.FSCK_DEEP]

    def test_what_could_not_be_committed_is_held_and_can_be_fetched(self, store, tmp_path):
        spec = make_spec(replicas=2, features={"volume": "flights/features"})
        store.ledger.create("a-1", spec)
        staging = store.stage("a-1")
        (staging.checkpoints / "epoch-1").write_bytes(b"12345")
        for index in range(2):
            files = {"features": {"model.pt": b"rank %d" % index, f"{index}/x": b"y"}}
            write_and_seal(staging, spec, files, index=index)
        with pytest.raises(StoreError, match=r"wants `ranks=2` in one replica"):
            store.commit("a-1", attempt=1)
        with pytest.raises(SpecError, match="wait for its end"):
            store.salvage("a-1", tmp_path / "early")
        assert store.held() == ()
        end_by(store, "a-1", Cause.USER_ERROR)
        (held,) = store.held()
        assert (held.job_id, held.outputs_bytes, held.checkpoints_bytes) == ("a-1", 14, 5)
        assert store.collect().plan.staging == ()
        assert store.salvage("a-1", tmp_path / "written") == 4
        assert contents(tmp_path / "written") == {
            f"main-{index}/features/{name}": data
            for index in range(2)
            for name, data in (("model.pt", b"rank %d" % index), (f"{index}/x", b"y"))
        }
        assert store.let_go(["a-1"]) >= 19
        assert store.held() == ()
        with pytest.raises(NotFound, match="holds no output any more"):
            store.salvage("a-1", tmp_path / "late")

    def test_what_a_job_has_written_so_far_is_followed(self, store, tmp_path):
        store.ledger.create("a-1", make_spec(model={"volume": "flights/model"}))
        target = tmp_path / "seen"
        assert store.follow("a-1", target, begins="events.") == 0
        runs = store.stage("a-1").output("main", 0, "model") / "runs"
        runs.mkdir(parents=True)
        (runs / "events.1").write_bytes(b"12")
        (runs / "weights").write_bytes(b"large")
        (runs / "events.2").symlink_to(tmp_path)
        assert until(lambda: store.follow("a-1", target, begins="events.") == 1)  # NFS lists new files late
        assert contents(target) == {"main-0/model/runs/events.1": b"12"}
        with (target / "main-0/model/runs/events.1").open("rb") as opened:
            assert opened.read() == b"12"
            with (runs / "events.1").open("ab") as file:
                file.write(b"34")
            store.follow("a-1", target, begins="events.")
            assert contents(target) == {"main-0/model/runs/events.1": b"1234"}
            assert opened.read() == b"34", "the copy is the same file, only longer"
        with pytest.raises(NotFound):
            store.follow("a-2", target, begins="events.")

    def test_a_link_that_was_staged_is_not_followed(self, store, tmp_path):
        (tmp_path / "secret").write_text("of the store's own machine")
        staging = staged(store, "a-1", {"features": {"x": b"1"}})
        (staging.output("main", 0, "features") / "link").symlink_to(tmp_path / "secret")
        (staging.output("main", 0, "features") / "folder").symlink_to(tmp_path)
        end_by(store, "a-1", Cause.USER_ERROR)
        assert store.salvage("a-1", tmp_path / "written") == 1
        assert contents(tmp_path / "written") == {"main-0/features/x": b"1"}

    def test_there_is_a_room_and_it_says_how_much_is_left(self, store):
        room = store.room()
        assert 0 < room.free_bytes <= room.total_bytes
        assert "free of" in str(room)

    def test_it_notes_when_it_was_checked_collected_and_swept(self, store, again):
        assert store.upkept() == []
        before = time.time()
        store.check()
        store.check(deep=True)
        store.collect()
        store.note_sweep()
        notes = {note.work.value: note for note in again.upkept()}
        assert notes.keys() == {"fsck", "fsck-deep", "gc", "sweep"}
        assert all(before <= note.at <= time.time() for note in notes.values())
        assert all(note.checked is None or not note.checked.damaged for note in notes.values())

    def test_what_was_made_is_found_by_what_it_was_made_from(self, store, again):
        origin = Origin(instance="one", dag_id="flights", run_id="run-1", task_id="features")
        spec = replace(TWO, origin=origin)
        made = run(
            store,
            "a-1",
            spec,
            {"features": {"x": b"1"}, "table": {"t": b"2"}},
            metrics={"rows": 3.0},
            modules=["etl.py"],
        )
        end(store, "a-1", JobState.SUCCEEDED)
        later = replace(spec, name="another", origin=replace(origin, run_id="run-2"))
        (found,) = again.made(key_of(later))
        assert found.job_id == "a-1"
        assert found.spec == spec
        assert found.outputs == {name: (versions[0].address,) for name, versions in made.items()}
        assert (found.metrics, found.modules) == ({"rows": 3.0}, ("etl.py",))
        assert found.created == store.record(found.addresses[0]).created
        other = replace(spec, params={"month": "2013-02"})
        assert again.made(key_of(other)) == []
        assert [each.job_id for each in again.made(task_key_of(origin))] == ["a-1"]

    def test_what_was_made_is_found_newest_first_up_to_a_limit(self, store):
        for number in range(3):
            run(store, f"a-{number}", ONE, {"features": {"x": b"%d" % number}})
        assert [each.job_id for each in store.made(key_of(ONE))] == ["a-2", "a-1", "a-0"]
        assert [each.job_id for each in store.made(key_of(ONE), limit=2)] == ["a-2", "a-1"]
        run(store, "b-1", TWO, {"features": {"x": b"1"}, "table": {"t": b"2"}})
        assert [each.job_id for each in store.made(limit=2)] == ["b-1", "a-2"]

    def test_only_what_is_live_is_found(self, store):
        files = {"features": {"x": b"1"}, "table": {"t": b"2"}}
        made = run(store, "a-1", TWO, files)
        end(store, "a-1", JobState.SUCCEEDED)
        address = made["table"][0].address
        store.retire(address, reason="wrong")
        assert store.made(key_of(TWO)) == []
        with pytest.raises(NotFound, match="is not live any more"):
            store.use("a-1", by=LATER)
        store.reinstate(address)
        assert len(store.made(key_of(TWO))) == 1
        store.retire(address, reason="wrong")
        store.collect()
        assert store.made(key_of(TWO)) == []

    def test_what_is_forgotten_is_never_found_again_and_stays(self, store):
        made = run(store, "a-1", ONE, {"features": {"x": b"1"}})
        assert store.forget("a-1")
        assert not store.forget("a-1")
        assert store.made(key_of(ONE)) == []
        assert store.resolve(made["features"][0].address) == made["features"]

    def test_for_gc_a_version_is_as_old_as_its_last_use(self, store):
        for number in range(1, 5):
            run(store, f"a-{number}", ONE, {"features": {"x": b"%d" % number}})
            end(store, f"a-{number}", JobState.SUCCEEDED)
        before = time.time() - 1
        assert store.used("volume://flights/features@1") == 0.0
        store.use("a-1", by=LATER)
        assert before < store.used("volume://flights/features@1") < time.time() + 1
        gone = [version.number for version in store.plan(keep_last=2).versions]
        assert gone == [2, 3], "the newest by number stays too: selectors find it"
        assert store.plan(keep_last=1).kept == {"volume://flights/features@4": "one of the last 1"}

    def test_what_tasks_took_is_known_newest_first(self, store, again):
        made = run(store, "a-1", ONE, {"features": {"x": b"1"}})
        outputs = {name: tuple(version.address for version in several) for name, several in made.items()}
        for number in range(4):
            for task in ("features", "more"):
                store.use("a-1", by=replace(LATER, run_id=f"run-{number}", task_id=task, map_index=number))
        found = again.ledger.task_ends(runs=2)
        assert [(use.origin.run_id, use.origin.task_id) for use in found] == [
            ("run-3", "more"),
            ("run-3", "features"),
            ("run-2", "more"),
            ("run-2", "features"),
        ]
        assert {(use.kept_of, use.origin.map_index) for use in found} == {("a-1", 3), ("a-1", 2)}
        assert all((use.outputs, use.state) == (outputs, JobState.SUCCEEDED) for use in found)
        ends = store.ledger.task_ends
        assert len(ends()) == 8
        assert len(ends(dag_id="flights", run_id="run-0")) == 2
        assert ends(dag_id="another") == ends(dag_id="flights", run_id="run-9") == []

    def test_how_a_task_without_a_job_ended_is_known(self, store, again):
        end = TaskEnd(
            origin=LATER, began=1.0, at=2.5, state=JobState.FAILED, line="gate closed: auc 0.6 < 0.7"
        )
        store.ledger.end_task(end)
        assert again.ledger.task_ends() == [end]

    def test_a_tally_has_what_all_have_seen_and_ends_with_its_job(self, store, again):
        store.ledger.create("job-1", ONE)
        assert store.ledger.tally("job-1") == Tally()
        store.ledger.note_tally("job-1", Tally(user="ada", team="vision"))
        held = Tally().begun(Allotment(since=10.0, replicas=2, gpus=1)).ended(20.0)
        again.ledger.note_tally("job-1", held)
        store.ledger.note_tally("job-1", Tally(times=(replace(held.times[0], until=None),)))
        assert store.ledger.tally("job-1") == Tally(user="ada", team="vision", times=held.times)
        again.ledger.note_tally("job-1", held.begun(Allotment(since=30.0, replicas=1)))
        status = again.ledger.status("job-1")
        again.ledger.update(replace(status, state=JobState.CANCELLED, ended=45.0))
        assert [each.until for each in store.ledger.tally("job-1").times] == [20.0, 45.0]
        again.ledger.note_tally("job-1", held.begun(Allotment(since=50.0, replicas=1)))
        assert [each.until for each in store.ledger.tally("job-1").times] == [20.0, 45.0]
        for end, longest in ((None, 45.0), (48.0, 48.0), (46.0, 48.0)):  # its pods went after its end
            later = Allotment(since=30.0, replicas=1, until=end)
            again.ledger.note_tally("job-1", Tally(times=(later,)))
            assert [each.until for each in store.ledger.tally("job-1").times] == [20.0, longest]
        with pytest.raises(NotFound):
            store.ledger.tally("job-2")

    def test_a_run_goes_on_until_its_end_is_noted(self, store, again):
        run = Origin(instance="i", dag_id="flights", run_id="r1")
        for _ in range(2):
            store.ledger.note_run(run, going=True)
        store.ledger.note_run(replace(run, run_id="r2"), going=True)
        newest, first = again.ledger.run_notes()
        assert (newest.run.run_id, first.run, first.alive) == ("r2", run, True)
        again.ledger.note_run(run, going=False)
        again.ledger.note_run(run, going=False)
        assert [note.run.run_id for note in store.ledger.run_notes()] == ["r2"]

    def test_one_job_makes_what_many_want(self, store, again):
        key = key_of(ONE)
        assert store.claim(key, job_id="a-1") == "a-1"
        assert again.claim(key, job_id="b-1") == "a-1"
        assert store.claim(key, job_id="a-1") == "a-1", "asked twice"
        assert again.claim(key, job_id="b-1", expected="c-1") == "a-1"
        assert again.claim(key, job_id="b-1", expected="a-1") == "b-1", "the job was not alive"
        assert store.claim(key, job_id="a-1") == "b-1"

    def test_of_many_that_claim_at_once_one_gets_it(self, store):
        with ThreadPoolExecutor(8) as threads:
            holders = set(threads.map(lambda n: store.claim("ab" * 20, job_id=f"job-{n}"), range(8)))
        assert len(holders) == 1

    def test_a_copy_has_the_files_and_the_origin_of_the_version(self, store, again):
        spec = replace(ONE, origin=LATER)
        (made,) = run(store, "a-1", spec, {"features": {"x": b"abc", "y/z": b"d"}}, metrics={"auc": 0.7})[
            "features"
        ]
        copied = store.copy(made.address, "flights/best", request="0" * 16, note="the best")
        assert (copied.address, copied.digest) == ("volume://flights/best@1", made.digest)
        assert contents(store.path(copied.address)) == contents(store.path(made.address))
        record, first = store.record(copied.address), store.record(made.address)
        for name in ("origin", "inputs", "params", "metrics", "code", "image_digest", "entrypoint"):
            assert getattr(record, name) == getattr(first, name), name
        assert (record.volume, record.note) == ("flights/best", "the best")
        assert again.copy(made.address, "flights/best", request="0" * 16, note="the best") == copied
        assert store.copy(made.address, "flights/best", request="1" * 16).number == 2
        with pytest.raises(NotFound):
            store.copy("flights/features@9", "flights/best", request="2" * 16)
        with pytest.raises(SpecError, match="16 hex digits"):
            store.copy(made.address, "flights/best", request="an x")

    def test_a_version_takes_in_the_checkpoints_of_ended_trials_and_a_job_starts_from_one_of_them(
        self, store, again, tmp_path
    ):
        def ends(job_id, state):
            verdict = Verdict(cause=Cause.CANCELLED, message="m", advice="a")
            status = JobStatus(job_id=job_id, state=state, submitted=1.0, ended=time.time(), verdict=verdict)
            store.ledger.update(status if state is JobState.CANCELLED else replace(status, verdict=None))

        jobs = ("stopped", "ended", "none", "runs")
        for number, job_id in enumerate(jobs):
            spec = replace(ONE, origin=replace(LATER, trial=number))
            store.ledger.create(job_id, spec)
            staging = store.stage(job_id)
            if job_id != "none":
                (staging.checkpoints / "step-1").mkdir()
                (staging.checkpoints / "step-1" / "weights").write_bytes(job_id.encode())
                (staging.checkpoints / "latest").symlink_to("step-1")
                (staging.checkpoints / "no\nname").write_bytes(b"")
            if job_id == "ended":
                write_and_seal(staging, spec, {"features": {"x": b"1"}})
                store.commit(job_id, attempt=1)
                ends(job_id, JobState.SUCCEEDED)
                assert store.saved(job_id) is None, "a job that follows it starts anew"
            elif job_id != "runs":
                ends(job_id, JobState.CANCELLED)
        store.ledger.create("later", replace(ONE, follows="stopped", origin=replace(LATER, trial=0)))
        ends(
            "later", JobState.CANCELLED
        )  # it never began, so the trial's last checkpoints are its first job's
        assert not {"stopped", "ended"} & {*store.plan().staging}, "gc leaves them to the search"
        (tmp_path / "table").mkdir()
        (tmp_path / "table" / "trials.json").write_text("{}")

        def put(to, **given):
            return to.add("flights/search", tmp_path / "table", request="ab" * 8, checkpoints=given)

        with pytest.raises(SpecError, match=r"queued|running"):
            put(store, **{"checkpoints/3": "runs"})
        with pytest.raises(NotFound):
            put(store, **{"checkpoints/3": "nobody"})
        with pytest.raises(SpecError, match=r"there already"):
            put(store, **{"trials.json": "stopped"})
        with pytest.raises((SpecError, BadOutput)):
            put(store, **{"../3": "stopped"})
        with pytest.raises(SpecError, match="at most"):
            put(store, **{f"checkpoints/{number}": "s" * 40 for number in range(501)})
        wanted = {"checkpoints/0": "later", "checkpoints/1": "ended", "checkpoints/2": "none"}
        made = put(store, **wanted)
        found = {"step-1/weights": b"stopped", "latest/weights": b"stopped"}
        assert contents(store.path(made.address)) == {
            "trials.json": b"{}",
            **{f"checkpoints/0/{path}": data for path, data in found.items()},
            **{f"checkpoints/1/{path}": b"ended" for path in found},
        }
        assert {each.job_id for each in store.held()} >= {"stopped", "ended"}, (
            "they stay until they are let go"
        )
        assert store.let_go(["stopped", "ended", "none", "later"]) > 0
        assert put(again, **wanted) == made
        start = {"checkpoints": Input(versions=(made.pinned,), path="checkpoints/0")}
        store.ledger.create("b-1", replace(ONE, inputs=start))
        first = store.stage("b-1")
        assert contents(first.checkpoints) == found
        (first.checkpoints / "step-1" / "weights").write_bytes(b"trained on")
        assert contents(store.path(f"{made.address}/checkpoints/0")) == found
        end(store, "runs", JobState.CANCELLED)

    def test_what_is_put_twice_by_one_request_is_one_version(self, store, again, tmp_path):
        (tmp_path / "x").write_text("abc")
        put = [each.add("flights/raw", tmp_path, request="ab" * 8) for each in (store, again)]
        assert put[0] == put[1]
        assert store.add("flights/raw", tmp_path).number == 2

    @pytest.mark.parametrize(
        "kind", ["searches", "usage"]
    )  # those of searches lie where earlier releases had them
    def test_the_events_of_a_log_are_read_in_their_order(self, store, again, kind):
        assert store.logs(kind) == []
        assert store.begin_log(kind, "s-1", "what it is about")
        assert not again.begin_log(kind, "s-1", "another thing")
        assert store.begin_log(kind, "s-2", "another thing")
        assert again.logs(kind) == ["s-2", "s-1"]
        assert again.logs("others") == []
        assert again.log_head(kind, "s-1") == "what it is about"
        assert store.log_events(kind, "s-1").events == ()
        first = ({"what": "asked", "params": {"rate": 0.1, "how": ["a", None]}},)
        end = store.append_events(kind, "s-1", first, after=0)
        later = ({"value": None}, {"value": 0.5, "text": "é\n"})
        with pytest.raises(Conflict, match="has gone on"):
            again.append_events(kind, "s-1", later, after=0)
        last = again.append_events(kind, "s-1", later, after=end)
        assert store.log_events(kind, "s-1") == LogPage(events=(*first, *later), end=last)
        assert store.log_events(kind, "s-1", after=end) == LogPage(events=later, end=last)
        assert store.log_events(kind, "s-1", after=last) == LogPage(events=(), end=last)
        assert store.log_events(kind, "s-2").events == ()
        for ask in (
            partial(store.log_head, kind, "s-3"),
            partial(store.log_events, kind, "s-3"),
            partial(store.append_events, kind, "s-3", later, after=0),
            partial(store.log_head, "others", "s-1"),
        ):
            with pytest.raises(NotFound, match=r"no s-[13] among"):
                ask()
        with pytest.raises(SpecError):
            store.begin_log("../jobs", "s-1", "")

    def test_of_many_that_append_at_once_one_is_heard(self, store):
        store.begin_log("searches", "s-1", "")

        def tell(number):
            try:
                store.append_events("searches", "s-1", [{"trial": number}], after=0)
            except Conflict:
                return None
            return number

        with ThreadPoolExecutor(8) as threads:
            heard = [each for each in threads.map(tell, range(8)) if each is not None]
        assert [event["trial"] for event in store.log_events("searches", "s-1").events] == heard
        assert len(heard) == 1


def staged(store, job_id, files):
    store.ledger.create(job_id, ONE)
    staging = store.stage(job_id)
    write_and_seal(staging, ONE, files)
    return staging


def end_by(store, job_id, cause):
    status = store.ledger.status(job_id)
    verdict = Verdict(cause=cause, message="m", advice="a")
    store.ledger.update(replace(status, state=JobState.FAILED, ended=time.time(), verdict=verdict))


class TestFolderStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return FolderStore(tmp_path / "store")

    @pytest.fixture
    def again(self, store, tmp_path):
        return FolderStore(tmp_path / "store")


class TestMemoryStore(StoreContract):
    """A store without files of its own: what the protocols do not say, no caller may use."""

    @pytest.fixture
    def store(self, tmp_path):
        return MemoryStore(tmp_path / "of-memory")

    @pytest.fixture
    def again(self, store):
        return store


@pytest.mark.slow
class TestServiceStore(StoreContract):
    """The service in a process of its own; what replicas write lies on the claim, as in a pod."""

    @pytest.fixture
    def service(self, tmp_path):
        with Service(tmp_path) as service:
            yield service

    @pytest.fixture
    def store(self, service):
        return service.client()

    @pytest.fixture
    def again(self, service):
        return service.client("another-cache")

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests import golden
from tests.unit.backends.kubernetes.golden import (
    BARE,
    EXAMPLES,
    FOLDER,
    KUEUE,
    POD_GROUP,
    Example,
    files,
    job,
)
from tests.unit.backends.kubernetes.site_objects import objects

from muster.backends.kubernetes.api.kinds import owned_by
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.labels import QUEUE_PRIORITY


def test_the_manifests_of_jobs_are_those_that_somebody_reviewed() -> None:
    assert files() == golden.kept(FOLDER), "python -m tests.unit.backends.kubernetes.golden; git diff"


def test_what_is_owned_names_the_owner_that_was_made() -> None:
    made = EXAMPLES["torchrun"].documents()
    live = {**made.owner, "metadata": {**made.owner["metadata"], "uid": "u-1"}}
    (secret,) = (owned_by(each, live) for each in made.owned)
    assert secret["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "name": "train-0a1b2c3d4e5f-1",
            "uid": "u-1",
        }
    ]
    assert "ownerReferences" not in made.owned[0]["metadata"]


CLASSES = {each["metadata"]["name"]: each["value"] for each in objects("WorkloadPriorityClass")}


def asked(cluster: Cluster, *, queue: str | None, priority: str | None = None) -> set[str | None]:
    """The classes that a job's objects name."""
    made = Example(job=job(priority=priority), job_id="a-1", cluster=cluster, queue=queue).documents()
    pods = [each["template"]["spec"]["template"] for each in made.owner["spec"].get("replicatedJobs", ())]
    named = [made.owner["metadata"]["labels"].get(QUEUE_PRIORITY)]
    return {*named, *(each["spec"].get("priorityClassName") for each in pods)} - {None} or {None}


@pytest.mark.parametrize(("cluster", "queue"), [(KUEUE, "team-a"), (POD_GROUP, None)])
def test_a_job_that_names_no_priority_is_normal_and_before_the_trials_of_a_search(
    cluster: Cluster, queue: str | None
) -> None:
    """As typed by a person who sets nothing: Kueue and the scheduler count a job without a class as 0."""
    (plain,), (trial,) = asked(cluster, queue=queue), asked(cluster, queue=queue, priority="low")
    assert plain == "normal"
    assert plain is not None
    assert trial is not None
    assert CLASSES[trial] < CLASSES[plain] < CLASSES["high"]


@pytest.mark.parametrize("known", [None, frozenset(), frozenset(("gold",))])
def test_no_class_is_named_that_may_not_be_there(known: frozenset[str] | None) -> None:
    """Kueue makes no Workload of a job that names one which does not exist."""
    assert asked(replace(KUEUE, priorities=known), queue="team-a") == {None}
    assert asked(BARE, queue=None) == {None}


@pytest.mark.parametrize(
    ("reason", "message", "counts"),
    [
        (
            "PodFailurePolicy",
            "Container base for pod n/p failed with exit code 68 matching FailJob rule at index 3",
            True,
        ),
        (
            "PodFailurePolicy",
            "Container base for pod n/p failed with exit code 1 matching FailJob rule at index 3",
            True,
        ),
        (
            "PodFailurePolicy",
            "Pod n/p has condition DisruptionTarget matching FailJob rule at index 2",
            False,
        ),
        (
            "PodFailurePolicy",
            "Pod n/p has condition TerminatedByKueue matching FailJob rule at index 2",
            False,
        ),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit", False),
    ],
)
def test_only_a_rank_that_began_and_ended_badly_uses_up_a_restart(
    reason: str, message: str, *, counts: bool
) -> None:
    """As JobSet reads its rules: the first that matches a Job's failure, and a restart that counts where none does."""
    rules = EXAMPLES["tensorflow"].documents().owner["spec"]["failurePolicy"]["rules"]
    found = [
        rule["action"]
        for rule in rules
        if reason in rule["onJobFailureReasons"]
        and any(re.search(each, message) for each in rule.get("onJobFailureMessagePatterns", [""]))
    ]
    assert found[:1] == ([] if counts else ["RestartJobSetAndIgnoreMaxRestarts"])


@pytest.mark.parametrize(
    ("code", "matches"),
    [(66, True), (68, True), (1, True), (137, True), (0, False), (70, False), (143, False)],
)
def test_a_pod_that_was_told_to_stop_matches_no_rule_of_its_job(code: int, *, matches: bool) -> None:
    """Kubernetes holds a Job's rules against the pods that Kueue takes from it, too (getFailJobMessage), and nothing else."""
    (job, *_) = EXAMPLES["tensorflow"].documents().owner["spec"]["replicatedJobs"]
    asked = [
        rule["onExitCodes"]
        for rule in job["template"]["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    ]
    found = [
        rule
        for rule in asked
        if rule["containerName"] == "base" and (code in rule["values"]) == (rule["operator"] == "In")
    ]
    assert bool(found) == matches

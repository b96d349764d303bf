from __future__ import annotations

from tests import golden
from tests.unit.backends.kubernetes.golden import EXAMPLES, FOLDER, files

from muster.backends.kubernetes.manifests.gangs import owned_by


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

from __future__ import annotations

import json

import pytest
import yaml
from tests.unit.backends.kubernetes.golden import EXAMPLES, FOLDER, written

from muster.backends.kubernetes.manifests.gangs import owned_by


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_manifests_of_a_job_are_those_that_somebody_reviewed(name: str) -> None:
    expected = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
    assert json.loads(json.dumps(written(EXAMPLES[name]))) == expected


def test_every_reviewed_manifest_has_its_example() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


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

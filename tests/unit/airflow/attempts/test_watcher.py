"""What the instances of a mapped task are called."""

from __future__ import annotations

from typing import Any

import pytest

from muster.airflow.attempts.watcher import LONGEST_ARGUMENTS, arguments, called


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ({"rate": 0.1, "epochs": 8}, "fit[2] rate=0.1 epochs=8"),
        ({"job_params": {"rate": 0.1}, "inputs": {"rows": "volume://a/b@1"}}, "fit[2] rate=0.1 rows=a/b@1"),
        ({"command": ["a\n", "b"]}, "fit[2] command=['a\\n', 'b']"),
        ({}, "fit[2]"),
        ({"job_params": {"password": "hunter2"}}, "fit[2] password=***"),
    ],
)
def test_an_instance_is_called_by_its_number_and_what_it_was_given(given: dict[str, Any], label: str) -> None:
    assert called("fit", 2, arguments(given)) == label


def test_a_long_one_is_cut_and_a_task_that_is_not_mapped_is_its_id() -> None:
    assert len(called("fit", 0, {"text": "x" * 500})) == len("fit[0] ") + LONGEST_ARGUMENTS
    assert called("fit", -1, {"rate": 1}) == called("fit", None, {}) == "fit"


def test_what_airflow_knows_for_a_secret_is_not_shown() -> None:
    from airflow.sdk._shared.secrets_masker import mask_secret

    mask_secret("hunter2-of-the-label")
    shown = arguments({"env": {"URI": "http://me:hunter2-of-the-label@host"}})
    assert "hunter2" not in str(shown)

"""libcst is imported by the task that needs it, and Airflow's function does what it did."""

from __future__ import annotations

import subprocess
import sys

SOURCE = "@task.virtualenv(requirements=[])\ndef made():\n    pass\n"
CODE = """
import sys
from muster.airflow.embedded.libcst import leave_libcst

leave_libcst()
from airflow.sdk.bases.decorator import remove_task_decorator
print("libcst" in sys.modules)
for _ in range(2):
    print(repr(remove_task_decorator(sys.argv[1], "@task.virtualenv")))
print("libcst" in sys.modules)
"""


def test_it_is_left_until_a_tasks_source_is_changed() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE, SOURCE], capture_output=True, text=True, check=True)
    changed = repr("def made():\n    pass\n")
    assert ended.stdout.splitlines()[-4:] == ["False", changed, changed, "True"]

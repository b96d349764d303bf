"""Leaves libcst to the tasks that need it.

Airflow imports it with its 60 modules, in 0.1 s, for one function: it takes the decorator from the source of
a task that runs in a virtual environment.
"""

from __future__ import annotations

import sys
from importlib import import_module, reload
from types import ModuleType
from typing import Any

_STANDS_ON_IT = "airflow.sdk.definitions._internal.decorators"


def leave_libcst() -> None:
    """Import Airflow without libcst, in this process, where it is not imported yet.

    The module that needs it is imported anew, with libcst, once its function is called.
    """
    if _STANDS_ON_IT in sys.modules or "libcst" in sys.modules:
        return
    stand_in: Any = ModuleType("libcst")
    stand_in.CSTTransformer = object
    sys.modules["libcst"] = stand_in
    try:
        module: Any = import_module(_STANDS_ON_IT)
    finally:
        del sys.modules["libcst"]

    def remove_task_decorator(python_source: str, task_decorator_name: str) -> str:
        if module.remove_task_decorator is remove_task_decorator:
            reload(module)
        return str(module.remove_task_decorator(python_source, task_decorator_name))

    module.remove_task_decorator = remove_task_decorator

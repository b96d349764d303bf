"""What Airflow's provider discovery is told names all that muster has."""

from __future__ import annotations

import muster.airflow
from muster.airflow.provider import get_provider_info


def test_every_operator_is_told_of() -> None:
    (told,) = get_provider_info()["operators"]
    operators = {
        getattr(muster.airflow, name).__module__
        for name in muster.airflow.__all__
        if name.endswith("Operator")
    }
    assert set(told["python-modules"]) == operators

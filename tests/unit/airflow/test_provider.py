"""What Airflow's provider discovery is told names all that muster has."""

from __future__ import annotations

import muster.airflow
from muster.airflow.provider import get_provider_info
from muster.core.extensions import extensions, load


def test_every_operator_is_told_of() -> None:
    (told,) = get_provider_info()["operators"]
    operators = {
        getattr(muster.airflow, name).__module__
        for name in muster.airflow.__all__
        if name.endswith("Operator")
    }
    assert set(told["python-modules"]) == operators


def test_everything_that_an_extension_names_is_there() -> None:
    for each in extensions().values():
        of_names = {**each.operators, **each.decorators, **each.triggers}
        places = [f"{module}:{name}" for name, module in of_names.items()]
        places += [each.commands, each.calls, each.reading, each.repair, *each.routes]
        assert all(load(place) for place in places if place is not None)

"""Names of Airflow that are not its public interface come through one module, which a new release of Airflow is held against."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import airflow.sdk
import pytest
from packaging.version import Version

from muster.airflow.upstream import internals

ROOT = Path(__file__).parents[4]
SOURCES = tuple(ROOT / name for name in ("operators", "serving", "dags", "starter", "images"))
MODULE = Path(internals.__file__)
NAMES = 75
"""How many there are. One more wants a reason in the module, one less is a gain: write the number here."""
PUBLIC: dict[str, frozenset[str] | None] = {
    "airflow.sdk": frozenset(airflow.sdk.__all__),
    # Airflow's page "Public Interface": exceptions, states, timetables, triggers, plugins, listeners.
    "airflow.sdk.exceptions": None,
    "airflow.utils.state": None,
    "airflow.timetables.events": frozenset({"EventsTimetable"}),
    "airflow.triggers.base": frozenset({"BaseTrigger", "BaseEventTrigger", "TriggerEvent"}),
    "airflow.plugins_manager": frozenset({"AirflowPlugin"}),
    "airflow.listeners": frozenset({"hookimpl"}),
    # Its page "Dag Bundles".
    "airflow.dag_processing.bundles.base": frozenset({"BaseDagBundle", "BundleVersion"}),
    # What the providers' own pages name for others' operators.
    "airflow.providers.cncf.kubernetes.hooks.kubernetes": frozenset({"KubernetesHook"}),
    "airflow.providers.openlineage.extractors": frozenset({"OperatorLineage"}),
}
"""The modules of public names, with these names; None stands for all that do not begin with an underscore."""
_IN_TEXT = re.compile(r"^\s*(?:from [\w.]*airflow[\w.]* import [\w, ]+|import airflow\b.*)$", re.MULTILINE)


def is_public(module: str, name: str) -> bool:
    names = PUBLIC.get(module, frozenset())
    return not name.startswith("_") if names is None else name in names


def is_airflow(module: str) -> bool:
    return module.split(".")[0] == "airflow" or module == internals.__name__


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every name that is imported of Airflow or :mod:`internals`, with its module; also in a text that another process runs."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if is_airflow(module):
                yield from ((module, each.name) for each in names)
            case ast.Import(names=names):
                yield from ((each.name, "") for each in names if is_airflow(each.name))
            case ast.Attribute(value=ast.Name(id="internals"), attr=name):
                yield internals.__name__, name
            case ast.Constant(value=str(text)):
                for line in _IN_TEXT.findall(text):
                    yield from imported(ast.parse(line.strip()))


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(path for folder in SOURCES for path in folder.rglob("*.py")):
        if "airflow" in (text := path.read_text(encoding="utf-8")):
            yield path, ast.parse(text)


def test_no_other_module_imports_a_name_that_is_not_public() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path, tree in trees()
        if path != MODULE
        for module, name in imported(tree)
        if module != internals.__name__ and not is_public(module, name)
    ]
    assert found == [], "import them from muster.airflow.upstream.internals:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("line", "public"),
    [
        ("from airflow.sdk import DAG", True),
        ("from airflow.sdk import timezone", False),
        ("from airflow.sdk.exceptions import AirflowException", True),
        ("from airflow.models.dagrun import DagRun", False),
        ("def later():\n  from airflow import settings", False),
        ("import airflow.settings", False),
        ("CODE = '''\ntry:\n  from airflow.utils.db import initdb\n'''", False),
    ],
)
def test_each_way_to_import_one_is_found(line: str, public: bool) -> None:
    assert [is_public(*each) for each in imported(ast.parse(line))] == [public]


def test_their_number_is_known() -> None:
    assert len(internals.MODULES) == NAMES


def test_a_type_checker_knows_the_same_names_of_the_same_modules() -> None:
    seen = list(imported(ast.parse(MODULE.read_text(encoding="utf-8"))))
    assert {name: module for module, name in seen} == internals.MODULES
    assert len(seen) == len(internals.MODULES)


def test_each_is_used() -> None:
    used = {name for path, tree in trees() for module, name in imported(tree) if module == internals.__name__}
    assert used == set(internals.MODULES)


def test_what_has_become_public_is_taken_from_there() -> None:
    # These are others of the same name, and one that Airflow's stubs do not know there.
    assert set(internals.MODULES) & set(airflow.sdk.__all__) == {"TaskInstance", "conf", "NEVER_EXPIRE"}


@pytest.mark.parametrize("name", sorted(internals.MODULES))
def test_this_airflow_has_it(name: str) -> None:
    gone = internals.GONE_IN.get(name)
    if gone is None or Version(version("apache-airflow")) < Version(f"{gone}.dev0"):
        assert getattr(internals, name) is not None
    else:
        with pytest.raises(
            ImportError, match=rf"this Airflow has no {name} in airflow\.[\w.]+, .*support\.md"
        ):
            getattr(internals, name)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'DagBag'"):
        _ = internals.DagBag  # type: ignore[attr-defined]


def test_modules_that_are_named_to_be_imported_early_exist() -> None:
    """Lists of what a process imports before it forks, and whose absence it would only be slower for."""
    named = {
        text
        for path, tree in trees()
        if path != MODULE and path.is_relative_to(ROOT / "operators")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(text := node.value, str)
        if re.fullmatch(r"airflow(\.[a-z_]+){2,}", text)
    }
    assert len(named) > 10
    assert [text for text in sorted(named) if find_spec(text) is None] == []

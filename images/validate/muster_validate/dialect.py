"""How Great Expectations asks DuckDB: a dialect of SQLAlchemy, and the metrics that it has for pandas alone.

Great Expectations knows PostgreSQL and not DuckDB, which speaks nearly the same SQL. So the dialect has PostgreSQL's name, and spells what DuckDB
spells otherwise. What Great Expectations computes in Python, on pandas, is computed by the same Python in functions of the database: row by row,
so in bounded memory. Both are extension points: SQLAlchemy's registry of dialects, and custom metrics.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any

import duckdb
import sqlalchemy as sa
from duckdb_engine import ConnectionWrapper, Dialect as Given, DuckDBIdentifierPreparer
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine import SqlAlchemyExecutionEngine
from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial
from great_expectations.expectations.metrics.metric_provider import metric_partial
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGCompiler
from sqlalchemy.types import UserDefinedType

SCHEME = "muster"
_REGEX, _STRPTIME, _DATE, _JSON, _SCHEMA = (
    f"muster_{name}" for name in ("regex", "strptime", "date", "json", "json_schema")
)
_BEFORE = "muster_before"


class _Type(UserDefinedType[Any]):
    """A type by DuckDB's own name, such as ``DECIMAL(12,3)``."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """The name."""
        return self.name


class _Compiler(PGCompiler):
    """Writes regular expressions as DuckDB has them: its ``~`` wants the whole text to match."""

    def visit_custom_op_binary(self, element: Any, operator: Any, **kwargs: Any) -> str:
        """Write one operator."""
        if operator.opstring not in ("~", "!~"):
            return super().visit_custom_op_binary(element, operator, **kwargs)
        name = "regexp_matches" if _is_duckdbs(element.right.value) else _REGEX
        left, right = (self.process(each, **kwargs) for each in (element.left, element.right))
        return f"{'NOT ' * (operator.opstring == '!~')}{name}({left}, {right})"


def _is_duckdbs(pattern: str) -> bool:
    """Whether DuckDB understands a regular expression: look-ahead and references back are Python's alone, which is slower."""
    try:
        duckdb.execute("select regexp_matches('', ?)", [pattern])
    except duckdb.Error:
        return False
    return True


class _Preparer(DuckDBIdentifierPreparer):
    """Quotes a name that is any word of DuckDB's language: ``at`` may be a column, and not where a name stands alone."""

    def __init__(self, dialect: Any, **kwargs: Any) -> None:
        super().__init__(dialect, **kwargs)
        self.reserved_words |= {
            word for (word,) in duckdb.execute("select keyword_name from duckdb_keywords()").fetchall()
        }


class Dialect(Given):
    """DuckDB under PostgreSQL's name.

    Each statement is a transaction of its own, so one that fails aborts no other.
    """

    name = "postgresql"
    statement_compiler = _Compiler
    preparer = _Preparer
    supports_statement_cache = False

    def connect(self, *_: Any, **arguments: Any) -> ConnectionWrapper:
        """Open the database beside the connection that made it, whose functions it then has."""
        return ConnectionWrapper(duckdb.connect(arguments["database"]))

    def do_begin(self, connection: Any) -> None:
        """Begin none."""

    def do_commit(self, connection: Any) -> None:
        """There is none."""

    def do_rollback(self, connection: Any) -> None:
        """There is none. Rows that were not fetched yet would be lost."""

    def get_columns(
        self,
        connection: Any,
        table_name: str,
        schema: str | None = None,  # noqa: ARG002 - there is one
        **_: Any,
    ) -> list[dict[str, Any]]:
        """Return the columns by DuckDB's own names of types."""
        quoted = self.identifier_preparer.quote_identifier(table_name)
        told = connection.exec_driver_sql(f"describe {quoted}").fetchall()
        return [{"name": row[0], "type": _Type(row[1]), "nullable": True, "default": None} for row in told]


registry.register(SCHEME, __name__, "Dialect")


def add_functions(connection: duckdb.DuckDBPyConnection) -> None:
    """Give a database the functions of the metrics; each takes texts, and is asked for one value after the other."""
    for name, function in _FUNCTIONS.items():
        takes = ["VARCHAR"] * function.__code__.co_argcount
        # Days repeat, and are slow to parse.
        asked = lru_cache(maxsize=4_096)(function) if name in (_STRPTIME, _DATE) else function
        connection.create_function(name, asked, takes, "BOOLEAN")


def _matches_regex(text: str, pattern: str) -> bool:
    return re.search(pattern, text) is not None


def _matches_format(text: str, wanted: str) -> bool:
    try:
        datetime.strptime(text, wanted)  # noqa: DTZ007 - whether it is one is all that is asked
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    from dateutil.parser import parse

    try:
        parse(text)
    except (ValueError, OverflowError):
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _fits_schema(text: str, schema: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(_validator(schema).is_valid(value))


@lru_cache
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for

    read = json.loads(schema)
    kind = validator_for(read)
    kind.check_schema(read)
    return kind(read)


_FUNCTIONS: dict[str, Any] = {
    _REGEX: _matches_regex,
    _STRPTIME: _matches_format,
    _DATE: _is_date,
    _JSON: _is_json,
    _SCHEMA: _fits_schema,
}


class _Strftime(ColumnMapMetricProvider):
    condition_metric_name = "column_values.match_strftime_format"
    condition_value_keys = ("strftime_format",)

    @column_condition_partial(engine=SqlAlchemyExecutionEngine)
    def _sqlalchemy(cls, column: Any, strftime_format: str, **_: Any) -> Any:  # noqa: N805
        datetime.strptime(datetime.now(UTC).strftime(strftime_format), strftime_format)  # noqa: DTZ007 - an unknown directive is no False
        return getattr(sa.func, _STRPTIME)(column, strftime_format)


class _Dateutil(ColumnMapMetricProvider):
    condition_metric_name = "column_values.dateutil_parseable"

    @column_condition_partial(engine=SqlAlchemyExecutionEngine)
    def _sqlalchemy(cls, column: Any, **_: Any) -> Any:  # noqa: N805
        return getattr(sa.func, _DATE)(column)


class _Json(ColumnMapMetricProvider):
    condition_metric_name = "column_values.json_parseable"

    @column_condition_partial(engine=SqlAlchemyExecutionEngine)
    def _sqlalchemy(cls, column: Any, **_: Any) -> Any:  # noqa: N805
        return getattr(sa.func, _JSON)(column)


class _JsonSchema(ColumnMapMetricProvider):
    condition_metric_name = "column_values.match_json_schema"
    condition_value_keys = ("json_schema",)

    @column_condition_partial(engine=SqlAlchemyExecutionEngine)
    def _sqlalchemy(cls, column: Any, json_schema: Any, **_: Any) -> Any:  # noqa: N805
        schema = json.dumps(json_schema)
        _validator(schema)  # what is no schema is told once, and not of a row
        return getattr(sa.func, _SCHEMA)(column, schema)


_numbers = count()


def _in_order(
    engine: Any, domain: dict[str, Any], compare: Callable[[Any, Any], Any]
) -> tuple[Any, Any, Any]:
    """Return the condition that a value, and the last one before it that is not null, do not go together.

    Rows come in the order of the files. The value before is a column of a view, since no condition of SQL may look at another row.
    """
    selectable, compute, accessor = engine.get_compute_domain(domain, domain_type=MetricDomainTypes.COLUMN)
    column = sa.column(accessor["column"])
    rows = selectable.subquery() if isinstance(selectable, sa.Select) else selectable
    ordered = sa.select(sa.text("*"), sa.func.lag(column).over().label(_BEFORE)).select_from(rows)
    text = ordered.where(column.is_not(None)).compile(engine.engine, compile_kwargs={"literal_binds": True})
    view = f"muster_ordered_{next(_numbers)}"
    engine.execute_query(sa.text(f"create temp view {view} as {text}".replace(":", r"\:")))
    known = {key: value for key, value in compute.items() if key not in ("row_condition", "condition_parser")}
    return ~compare(column, sa.column(_BEFORE)), {**known, "table": view}, accessor


class _Ordered(ColumnMapMetricProvider):
    condition_value_keys = ("strictly",)
    default_kwarg_values = {"strictly": False}  # noqa: RUF012 - as Great Expectations declares it
    compares: tuple[Any, Any]
    """How a value compares with the one before it, and how it does so strictly."""

    @metric_partial(
        engine=SqlAlchemyExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.MAP_CONDITION_FN,
        domain_type=MetricDomainTypes.COLUMN,
    )
    def _sqlalchemy(
        cls,  # noqa: N805
        execution_engine: Any,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],  # noqa: ARG002 - Great Expectations gives these two by name
        runtime_configuration: dict[str, Any],  # noqa: ARG002
    ) -> Any:
        compare = cls.compares[bool(metric_value_kwargs.get("strictly"))]
        return _in_order(execution_engine, metric_domain_kwargs, compare)


class _Increasing(_Ordered):
    condition_metric_name = "column_values.increasing"
    compares = (operator.ge, operator.gt)


class _Decreasing(_Ordered):
    condition_metric_name = "column_values.decreasing"
    compares = (operator.le, operator.lt)

"""The pipeline of flights, with features of DuckDB and of Spark."""

from __future__ import annotations

from muster.core.shipped import shipped


def test_all_stages_after_the_features_are_the_same() -> None:
    folder = shipped("dags") / "flights"
    on_duckdb, on_spark = ((folder / name).read_text() for name in ("dag.py", "spark_dag.py"))
    assert _after_features(on_duckdb) == _after_features(on_spark)


def _after_features(source: str) -> str:
    stages = source[source.index("    checked = ") :]
    return stages.replace("flights-spark", "flights").replace("flights_spark", "flights")

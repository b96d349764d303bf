"""Dags for clicks while tasks run, of `benchmarks/up.py` and of tests: one of many tasks, and small ones that are asked for meanwhile."""

from __future__ import annotations

from textwrap import dedent

AT_ONCE = 8
SMALL = [f"small{number}" for number in range(AT_ONCE)]
_DAGS = f"""
    from datetime import datetime
    from airflow.sdk import dag, task

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def many():
        @task
        def one(number):
            return number

        one.expand(number=list(range(%d)))

    many()

    def small(name):
        @dag(dag_id=name, schedule=None, start_date=datetime(2024, 1, 1))
        def made():
            @task
            def once():
                return 1

            once()

        made()

    for number in range({AT_ONCE}):
        small(f"small{{number}}")
"""


def dags(many: int) -> str:
    """Return the source of the Dag ``many``, of so many tasks, and of those that :data:`SMALL` names."""
    return dedent(_DAGS % many)

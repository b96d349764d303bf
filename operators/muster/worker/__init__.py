"""Runs one replica of a gang inside its image: launches the ranks, watches them, seals, reports.

Started as ``python WORKER REPLICA.json`` (:mod:`muster.core.replica`) where neither muster nor
Airflow is installed, so: core and the standard library only, Python 3.10. Its import time is part of
every stage's overhead; what is slow to import is imported where it is needed.
"""

"""muster: the whole road of a model in one Airflow Dag.

Nothing is imported here: Airflow parses this package's operators many times an hour, and a
replica imports :mod:`muster.worker` in an environment that has neither Airflow nor us installed.
"""

__version__ = "0.1.0"

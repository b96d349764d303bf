"""A whole Airflow of several processes on this machine, kept running: the Airflow of ``muster up``."""

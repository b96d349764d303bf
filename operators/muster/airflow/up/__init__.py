"""A whole Airflow of several processes on this machine, kept running: what is behind ``muster up``."""

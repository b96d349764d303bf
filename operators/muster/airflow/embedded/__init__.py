"""The Airflow behind ``muster run``: a real one, on SQLite below MUSTER_HOME, in this very process."""

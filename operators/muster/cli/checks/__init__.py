"""The checks of ``muster doctor``: this machine, its Airflow, or the cluster, one function per check."""

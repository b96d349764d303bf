"""What ``muster doctor`` looks at: this machine, its Airflow, or the cluster, one function a check."""

"""muster inside Airflow's UI: a page with jobs, volumes and deployments, behind Airflow's own login."""

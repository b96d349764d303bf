"""What a route on muster's page in Airflow needs, whichever extension adds it."""

"""A process that has Airflow imported waits some minutes for the next ``muster run`` of its home, and forks for it.

``client`` finds or starts it, hands the command over and follows it; ``server`` is the process; ``key`` says which of them
may serve which command, ``place`` where its socket is, and ``messages`` what goes over it.
"""

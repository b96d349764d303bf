"""``import muster`` for programs and notebooks: versions, new versions, deployments.

It uses the same store as the command: the folder of ``MUSTER_HOME``, the nearest ``.muster``, or the cluster that
``MUSTER_CLUSTER`` names. Airflow is not imported.
"""

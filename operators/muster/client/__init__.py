"""What a program or notebook uses of muster, as ``import muster``: versions, new versions, deployments.

It speaks to where the command does: the folder of ``MUSTER_HOME``, the nearest ``.muster``, or the cluster that
``MUSTER_CLUSTER`` names. Airflow is not imported.
"""

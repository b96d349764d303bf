"""The store service: the second Store, a small web service in front of a folder store.

On a cluster it alone has the claim's root. Airflow and laptops reach it through
:class:`~muster.volumes.service.client.ServiceStore` with an operator's token, the pods of a job by
plain HTTP with that job's.
"""

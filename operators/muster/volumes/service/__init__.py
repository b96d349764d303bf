"""The store service: the second Store, a small web service in front of a folder store.

On a cluster only the service mounts the claim's root. Airflow and laptops reach it through
:class:`~muster.volumes.service.client.ServiceStore` with an operator's token, the pods of a job by
plain HTTP with that job's token (:mod:`muster.volumes.service.pods`).

============  =====================================================================================
both sides    ``table`` derives the calls from the protocols' signatures; ``archives`` transfers files as tar;
              ``refusals`` transfers errors; ``tokens``
the service   ``serve`` runs ``app``; ``answers`` serves the table, ``reading`` and ``writing`` streams of bytes,
              ``checks`` fsck, ``pods`` a job's pods, each from a ``Call``; behind them ``journal`` (logs),
              ``hearing`` (progress), ``starts`` (which request began which attempt) and ``committer``
the client    ``client`` over ``connection``, which retries; ``downloads`` on its disk
============  =====================================================================================

Why so: docs/adr/past/0011-the-store-service.md and docs/adr/past/0023-the-calls-of-the-store.md.
"""

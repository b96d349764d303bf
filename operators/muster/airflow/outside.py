"""The Airflow connection of a source outside of muster: its type, and where a job, or a person's command, finds its fields."""

from __future__ import annotations

from dataclasses import dataclass

from muster.airflow.site import airflow_connection, resolve_secret
from muster.core.ingest import FIELDS, variables
from muster.core.job import SecretRef


@dataclass(frozen=True, kw_only=True)
class OutsideConnection:
    """What is known of a connection; no value of it is in here.

    :param kind: its type, ``aws``. :param extras: the names of the fields in its extra.
    :param secrets: where each of its values is found, by the variable that the program reads.
    """

    kind: str
    extras: tuple[str, ...]
    secrets: dict[str, SecretRef]

    def values(self) -> dict[str, str]:
        """Return the values, by variable."""
        return {variable: resolve_secret(secret) for variable, secret in self.secrets.items()}


def outside_connection(conn_id: str) -> OutsideConnection:
    """Return what is known of a connection. :raises SpecError: there is none of this id."""
    connection = airflow_connection(conn_id)
    extras = tuple(sorted(connection.extra_dejson))
    named = variables({name: getattr(connection, name, None) for name in FIELDS}, extras)
    secrets = {
        variable: SecretRef(source="connection", name=f"{conn_id}#{name}") for variable, name in named.items()
    }
    return OutsideConnection(kind=connection.conn_type or "", extras=extras, secrets=secrets)

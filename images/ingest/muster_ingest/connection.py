"""The Airflow connection of a source, as the job finds it: each field in a variable of its own, so that logs mask it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_FIELDS = ("login", "password", "host", "port", "schema")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What is known of a connection; all empty where the source has none.

    :param conn_id: Airflow's name for it, which messages may show. `kind`: its type, such as ``postgres``.
    :param ca: the certificates (PEM) of an authority of its own, which the extra names; they are not in `extra`.
    """

    conn_id: str = ""
    kind: str = ""
    login: str = ""
    password: str = ""
    host: str = ""
    port: str = ""
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    ca: str = ""

    @classmethod
    def of_environment(cls, what: Mapping[str, Any]) -> Connection:
        """Read the variables that the operator has set, and trust the certificate authority that the connection names."""
        fields = {name: os.environ.get(f"INGEST_{name.upper()}", "") for name in _FIELDS}
        extra = {
            name: _value(os.environ[f"INGEST_EXTRA_{number}"])
            for number, name in enumerate(what.get("extras") or ())
        }
        ca = str(extra.pop("ca", "") or "")
        _trust(ca)
        named = {"conn_id": what.get("connection") or "", "kind": what.get("kind") or ""}
        return cls(extra=extra, ca=ca, **named, **fields)

    @property
    def named(self) -> str:
        """The connection, for messages."""
        return f"connection {self.conn_id!r}"

    def text(self, name: str) -> str:
        """Return a field of the extra as text, empty where it is not there."""
        value = self.extra.get(name, "")
        return value if isinstance(value, str) else json.dumps(value)

    def hidden(self, text: str, shown: Collection[str] = ()) -> str:
        """Return a text on one line, with stars for what the connection holds. :param shown: fields of the extra that stay."""
        extra = [value for name, value in self.extra.items() if name not in shown]
        for held in sorted(_texts([self.login, self.password, self.host, extra]), key=len, reverse=True):
            text = text.replace(held, "***") if len(held) > 2 else text
        return " ".join(text.split())

    def flag(self, name: str) -> bool:
        """Whether a field of the extra says yes."""
        return str(self.extra.get(name, "")).lower() in ("true", "1", "yes")


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts and numbers within a value of JSON, as text."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _value(text: str) -> Any:
    """Return what the operator wrote: objects and lists as JSON, all else as it is."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _trust(certificates: str) -> None:
    """Have every library trust these certificates (PEM), in this process."""
    if not certificates:
        return
    handle, path = tempfile.mkstemp(suffix=".pem")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(certificates)
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "PGSSLROOTCERT"):
        os.environ[variable] = path

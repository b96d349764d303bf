"""How the file system of each kind of source is opened with a connection: the options that fsspec's library of it takes."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError

GOOGLE, AZURE = ("gs", "gcs"), ("abfs", "abfss", "az")
_SHARED = ("anon", "project", "account_host", "requester_pays")
"""Fields of the extra that are options by the same name."""
_CONNECT_SECONDS, _SILENT_SECONDS = 20, 60


def options_of(source: str, connection: Connection) -> dict[str, Any]:
    """Return how fsspec opens the file system of a source. :raises IngestError: there is no such kind of source."""
    scheme = source.partition("://")[0]
    given = {
        name: connection.extra[name] if name != "anon" else connection.flag(name)
        for name in _SHARED
        if name in connection.extra
    }
    if scheme in ("s3", "s3a"):
        return given | _s3(connection)
    if scheme in GOOGLE:
        return given | _gcs(connection)
    if scheme in AZURE:
        return given | _azure(connection)
    if scheme in ("http", "https"):
        return _http(connection)
    if scheme in ("sftp", "ssh"):
        return _sftp(source, connection)
    if scheme == "file":
        return {}
    raise IngestError(
        f"{source}: no such kind of source; there are s3, gs, abfs, http, https, sftp, file and sql"
    )


def _s3(connection: Connection) -> dict[str, Any]:
    client: dict[str, Any] = {}
    endpoint = connection.text("endpoint_url")
    if not endpoint and connection.host:
        endpoint = connection.host if "://" in connection.host else f"https://{connection.host}"
        endpoint += f":{connection.port}" if connection.port else ""
    if connection.text("region_name"):
        client["region_name"] = connection.text("region_name")
    if connection.text("verify").lower() in ("false", "0", "no"):
        client["verify"] = False
    found: dict[str, Any] = {"client_kwargs": client, "max_concurrency": 1}
    if endpoint:
        found["endpoint_url"] = endpoint
        found["config_kwargs"] = {"s3": {"addressing_style": connection.text("addressing_style") or "path"}}
    found.setdefault("config_kwargs", {}).update(
        max_pool_connections=64,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_SILENT_SECONDS,
        retries={"max_attempts": 2, "mode": "standard"},
    )
    key = connection.login or connection.text("aws_access_key_id")
    if key:
        found["key"] = key
        found["secret"] = connection.password or connection.text("aws_secret_access_key")
    if connection.text("aws_session_token"):
        found["token"] = connection.text("aws_session_token")
    return found


def _gcs(connection: Connection) -> dict[str, Any]:
    found: dict[str, Any] = {"requests_timeout": _silence()}
    key = next(
        (
            connection.text(name)
            for name in ("keyfile_dict", "extra__google_cloud_platform__keyfile_dict")
            if connection.text(name)
        ),
        "",
    )
    if key:
        found["token"] = json.loads(key)
    elif connection.flag("anon"):
        found["token"] = "anon"  # noqa: S105 - a word of gcsfs
    if connection.text("endpoint_url"):
        found["endpoint_url"] = connection.text("endpoint_url")
        # gcsfs asks by gRPC first what kind of bucket it is; another endpoint than Google's speaks HTTP alone, and the
        # question would take a minute. Read when gcsfs is imported.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    return found


def _azure(connection: Connection) -> dict[str, Any]:
    names = ("connection_string", "sas_token", "tenant_id", "client_id", "client_secret", "account_key")
    found: dict[str, Any] = {name: connection.text(name) for name in names if connection.text(name)}
    if connection.login:
        found["account_name"] = connection.login
    if connection.password and not found.keys() & {"client_secret", "account_key", "sas_token"}:
        found["account_key"] = connection.password
    return found


def _silence() -> Any:
    """Return aiohttp's timeout: a connection may be silent for so long. Its default is for the whole file, which may be large."""
    import aiohttp

    return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)


def _http(connection: Connection) -> dict[str, Any]:
    import aiohttp

    client: dict[str, Any] = {"trust_env": True, "timeout": _silence()}
    if connection.login:
        client["auth"] = aiohttp.BasicAuth(connection.login, connection.password)
    if isinstance(connection.extra.get("headers"), dict):
        client["headers"] = {str(name): str(value) for name, value in connection.extra["headers"].items()}
    return {"client_kwargs": client}


def _sftp(source: str, connection: Connection) -> dict[str, Any]:
    address = urlsplit(source)
    return {
        "host": address.hostname or connection.host,
        "port": address.port or int(connection.port or 22),
        "username": connection.login or None,
        "password": connection.password or None,
        "private_key": connection.text("private_key"),
        "host_key": connection.text("host_key"),
        "unchecked": connection.flag("no_host_key_check"),
    }

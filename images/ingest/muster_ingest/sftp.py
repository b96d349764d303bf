"""SFTP with the server's key checked: fsspec's own accepts any."""

from __future__ import annotations

import base64
import io
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

from muster_ingest.errors import IngestError

_ALIVE_SECONDS, _SILENT_SECONDS = 15, 60.0


class CheckedSFTP(SFTPFileSystem):
    """See :class:`fsspec.implementations.sftp.SFTPFileSystem`.

    :param host_key: the server's public key, ``ssh-ed25519 AAAA…``; or `unchecked`: any.
    """

    def __init__(
        self, host: str, *, port: int, private_key: str, host_key: str, unchecked: bool, **options: Any
    ) -> None:
        if not host_key and not unchecked:
            raise IngestError(
                f"sftp://{host}: the connection does not say which key the server has: put host_key, as ssh-keyscan prints it "
                "after the name, into its extra (or no_host_key_check, where any server will do)"
            )
        self._key, self._unchecked = host_key, unchecked
        if private_key:
            options["pkey"] = _private(private_key)
        super().__init__(
            host, port=port, **{name: value for name, value in options.items() if value is not None}
        )

    def connect_again(self) -> None:
        """Connect, unless it is connected."""
        transport = self.client.get_transport()
        if transport is None or not transport.is_active():
            self._connect()

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        port = self.ssh_kwargs.get("port", 22)
        if self._unchecked:
            self.client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        else:
            named = self.host if port == 22 else f"[{self.host}]:{port}"
            key = _public(self._key)
            self.client.get_host_keys().add(named, key.get_name(), key)
            self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.client.connect(self.host, allow_agent=False, look_for_keys=False, timeout=20, **self.ssh_kwargs)
        self.ftp = self.client.open_sftp()
        transport, channel = self.client.get_transport(), self.ftp.get_channel()
        assert transport is not None, "it has just connected"
        assert channel is not None, "it has just been opened"
        # A server that says nothing more, as behind a firewall that forgot the connection, is one that is away.
        transport.set_keepalive(_ALIVE_SECONDS)
        channel.settimeout(_SILENT_SECONDS)


def _public(text: str) -> paramiko.PKey:
    try:
        kind, data = text.split()[:2]
        return paramiko.PKey.from_type_string(kind, base64.b64decode(data))
    except (paramiko.SSHException, ValueError):
        raise IngestError(
            "the connection's host_key is no key that can be read: need what ssh-keyscan prints after the name, such as "
            "'ssh-ed25519 AAAA…'"
        ) from None


def _private(text: str) -> paramiko.PKey:
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(text))
        except paramiko.SSHException:
            continue
    raise IngestError(
        "the connection's private_key is none that can be read: need an OpenSSH key, Ed25519, ECDSA or RSA, without a passphrase"
    )

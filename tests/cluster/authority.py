"""The cluster's own certificate authority, and the credentials it gives out."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.cluster.layout import API_URL, CONTROL_ADDRESS, SERVICE_ADDRESS

_VALID = dt.timedelta(days=30)
_SKEW = dt.timedelta(hours=1)
_KUBERNETES = "kubernetes.default.svc.cluster.local"
_API_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", _KUBERNETES, "localhost")
_API_ADDRESSES = ("127.0.0.1", SERVICE_ADDRESS, CONTROL_ADDRESS)


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Signs with a key that it keeps in the cluster's folder.

    :param folder: ``ca.crt``, ``ca.key`` and all that it issues.
    """

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "ca.key"

    def create(self) -> None:
        """Make the authority itself, and the key pair of service accounts' tokens."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("muster test cluster", ())
        built = _unsigned(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self._write("ca", key, built.sign(key, hashes.SHA256()))
        tokens = ec.generate_private_key(ec.SECP256R1())
        (self.folder / "accounts.key").write_bytes(_pem(tokens))
        (self.folder / "accounts.pub").write_bytes(
            tokens.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def issue(self, file: str, name: str, *groups: str, addresses: Sequence[str] = ()) -> tuple[Path, Path]:
        """Write ``FILE.crt`` and ``FILE.key`` for a client or server, and return the two paths.

        :param name: Kubernetes reads it as the user.
        :param groups: and these as the user's groups.
        :param addresses: where a server is reached, beside the API server's names.
        """
        signer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signing_key = serialization.load_pem_private_key(self.key.read_bytes(), password=None)
        assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        reached: list[x509.GeneralName] = [x509.DNSName(dns) for dns in _API_NAMES]
        reached += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in (*_API_ADDRESSES, *addresses)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        built = (
            _unsigned(_name(name, groups), signer.subject, key)
            .add_extension(x509.SubjectAlternativeName(reached), False)
            .add_extension(x509.ExtendedKeyUsage(usages), False)
        )
        return self._write(file, key, built.sign(signing_key, hashes.SHA256()))

    def kubeconfig(self, file: str, name: str, *groups: str) -> Path:
        """Issue a client's certificate, and write ``FILE.kubeconfig``, which needs no other file."""
        certificate, key = self.issue(file, name, *groups)
        user = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        return self.write_kubeconfig(file, user)

    def write_kubeconfig(self, file: str, user: dict[str, str], *, namespace: str = "default") -> Path:
        """Write ``FILE.kubeconfig`` for a user with these credentials."""
        server = {"server": API_URL, "certificate-authority-data": _base64(self.certificate)}
        path = self.folder / f"{file}.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": server}],
            "users": [{"name": "user", "user": user}],
            "contexts": [
                {
                    "name": "context",
                    "context": {"cluster": "cluster", "user": "user", "namespace": namespace},
                }
            ],
            "current-context": "context",
        }
        path.write_text(json.dumps(document, indent=1))
        path.chmod(0o600)
        return path

    def _write(
        self, file: str, key: ec.EllipticCurvePrivateKey, signed: x509.Certificate
    ) -> tuple[Path, Path]:
        paths = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(_pem(key))
        paths[1].chmod(0o600)
        return paths


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )


def _name(name: str, groups: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # SEC1, not PKCS 8: what Kubernetes reads as the key of accounts' tokens
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

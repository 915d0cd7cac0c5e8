"""Certificates and keys of a test cluster, signed by one CA. EC keys, because they are generated in milliseconds."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """A certificate authority; `folder` contains ca.crt, ca.key and all issued certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cert, self.key = folder / "ca.crt", folder / "ca.key"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test-cluster")
        usage = _usage(key_cert_sign=True)
        builder = _builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self._write("ca", builder.add_extension(usage, True).sign(self._key, hashes.SHA256()), self._key)

    def issue(self, name: str, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """Writes NAME.crt and NAME.key for `user`; `hosts` are DNS names and IP addresses. Returns both paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(user, groups), self._name, key)
        builder = builder.add_extension(x509.BasicConstraints(False, None), True).add_extension(_usage(), True)
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(h) for h in hosts]), False)
        return self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Writes an RSA key pair for service-account tokens: NAME.key and NAME.pub."""
        private = rsa.generate_private_key(65537, 2048)
        key, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        key.write_bytes(_pem(private))
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(private.public_key().public_bytes(serialization.Encoding.PEM, form))
        return key, public

    def kubeconfig(self, path: Path, url: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Writes a self-contained kubeconfig with embedded certificates."""
        cert, key = self.issue(path.stem, user, groups)
        cluster = {"server": url, "certificate-authority-data": _base64(self.cert)}
        login = {"client-certificate-data": _base64(cert), "client-key-data": _base64(key)}
        context = {"cluster": "test", "user": user, "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": login}],
            "contexts": [{"name": "test", "context": context}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1) + "\n")
        return path

    def _write(self, name: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        paths[1].touch(mode=0o600)
        paths[1].write_bytes(_pem(key))
        return paths


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
    )


def _usage(*, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

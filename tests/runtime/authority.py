"""Certificates as cert-controller makes them, including serial number 0, and TLS handshakes in memory."""

from __future__ import annotations

import base64
import functools
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trainop.runtime.objects.metadata import Json
from trainop.runtime.webhook.certificates import Pair

NAME = "training-operator.kubeflow.svc"


def _name(common: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "training-operator")
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, key: rsa.RSAPrivateKey, begins: datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_name("training-operator-ca"))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(True, False, True, False, False, signs, False, False, False)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _with_serial_zero(certificate: x509.Certificate, key: rsa.RSAPrivateKey) -> bytes:
    """The certificate with serial number 0. The library refuses to create one, so the encoded number is replaced and
    the certificate signed again."""
    one, zero = b"\x02\x01\x01", b"\x02\x01\x00"
    signed = certificate.tbs_certificate_bytes.replace(one, zero, 1)
    signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    der = certificate.public_bytes(serialization.Encoding.DER)
    der = der.replace(certificate.tbs_certificate_bytes, signed).replace(certificate.signature, signature)
    return ssl.DER_cert_to_PEM_cert(der).encode()


@functools.cache
def _keys() -> tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]:
    """The keys of the authority and of the server, cached because generating them takes a second."""
    return rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 2048)


def cert_controller_pairs(
    *, authority_left: int = 3000, server_left: int = 300, name: str = NAME, now: datetime | None = None
) -> tuple[Pair, Pair]:
    """Authority and server certificate (lifetimes ten years and one year) with the given days left."""
    now = now or datetime.now(UTC)
    keys = _keys()
    authority = (
        _builder(_name("training-operator-ca"), keys[0], now - timedelta(days=3650 - authority_left), 3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(keys[0], hashes.SHA256())
    )
    server = (
        _builder(_name(name), keys[1], now - timedelta(days=365 - server_left), 365)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(keys[0], hashes.SHA256())
    )
    signed = server.public_bytes(serialization.Encoding.PEM)
    return Pair(_with_serial_zero(authority, keys[0]), _pem(keys[0])), Pair(signed, _pem(keys[1]))


def secret_data(authority: Pair, server: Pair) -> Json:
    values = {
        "ca.crt": authority.certificate,
        "ca.key": authority.key,
        "tls.crt": server.certificate,
        "tls.key": server.key,
    }
    return {name: base64.b64encode(value).decode() for name, value in values.items()}


def shake_hands(server: ssl.SSLContext, trusted: bytes, name: str = NAME) -> bytes:
    """The server certificate (DER) received by a client that trusts only `trusted` (PEM). Raises `ssl.SSLError`."""
    client = ssl.create_default_context(cadata=trusted.decode())
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    seen = ours.getpeercert(binary_form=True)
    assert seen, "the handshake has not finished"
    return seen

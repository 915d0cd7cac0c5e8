"""Creates CA and server certificates for webhooks, and checks whether they need renewal. Only key generation is impure.

Certificates and keys are PEM. Modelled on cert-controller `pkg/rotator/rotator.go`, whose existing certificates are
accepted. In contrast to those, certificates made here have random serial numbers and key identifiers, which strict TLS
libraries require. Import this module lazily: `cryptography` takes 20 MiB.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=365)
MAX_RENEW_BEFORE = timedelta(days=90)
CLOCK_SKEW = timedelta(hours=1)
"""A new certificate is valid from this long ago, so that clients whose clock is behind accept it."""

SigningKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class _InvalidPairError(ValueError):
    """The certificate or key is missing, malformed, unsupported, or they do not match."""


def make_authority(name: str, organization: str, now: datetime) -> Pair:
    """A self-signed CA certificate, valid for ten years. `now` is aware, here and below."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name, organization)
    builder = _builder(subject, subject, key, now, now + CA_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    own = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return _pair(builder.add_extension(own, critical=False).sign(key, hashes.SHA256()), key)


def vouch_for(successor: bytes, authority: Pair, now: datetime) -> bytes:
    """A certificate of the next CA that the current one signs (both PEM). A server that sends it with its own
    certificate is accepted by clients that know the current CA only, such as trainings that read it once. Raises
    `ValueError` if the CA cannot sign."""
    following, signer, signing_key = _parse(successor), _parse(authority.certificate), _parse_key(authority.key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(following.subject)
        .issuer_name(signer.subject)
        .public_key(following.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(signer.not_valid_after_utc)
    )
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(signs_certificates=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(following.public_key()), False),
        (signed_by, False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def issue(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    """A server certificate for the DNS `names`, the first of which is its subject.

    Valid for one year, but not longer than the CA certificate. Raises `ValueError` if the CA cannot sign."""
    signer, signing_key = _parse(authority.certificate), _parse_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + SERVER_LIFETIME, signer.not_valid_after_utc)
    builder = _builder(_name(names[0]), signer.subject, key, now, until)
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (alternatives, False),
        (signed_by, False),
    ):
        builder = builder.add_extension(extension, critical)
    return _pair(builder.sign(signing_key, hashes.SHA256()), key)


def authority_fault(authority: Pair, now: datetime) -> str:
    """Why the CA certificate must be renewed; empty if it need not be."""
    try:
        certificate = _parse(authority.certificate)
        _require_match(certificate, authority.key)
        if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "it is not a CA certificate"
        return _age_fault(certificate, now, renew_early=True)
    except (_InvalidPairError, x509.ExtensionNotFound) as error:
        return str(error)


def server_fault(
    server: Pair, authority: bytes, names: Sequence[str], now: datetime, *, renew_early: bool = True
) -> str:
    """Why the server certificate must be renewed; empty if it need not be.

    Renewal is due when a third of the lifetime or 90 days are left, whichever is shorter. With `renew_early=False`,
    the result says why a client that trusts `authority` would reject the certificate at `now`.
    """
    try:
        certificate, signer = _parse(server.certificate), _parse(authority)
        _require_match(certificate, server.key)
        certificate.verify_directly_issued_by(signer)
        return (
            _purpose_fault(certificate, names)
            or _age_fault(certificate, now, renew_early=renew_early)
            or _age_fault(signer, now, renew_early=False)
        )
    except InvalidSignature:
        return "it is signed by another CA"
    except (_InvalidPairError, x509.ExtensionNotFound, ValueError, TypeError) as error:
        return str(error)


def _purpose_fault(certificate: x509.Certificate, names: Sequence[str]) -> str:
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = sorted(set(names) - set(alternatives.get_values_for_type(x509.DNSName)))
    if missing:
        return f"its names do not include {', '.join(missing)}"
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return "" if ExtendedKeyUsageOID.SERVER_AUTH in purposes else "its usage does not include server authentication"


def _age_fault(certificate: x509.Certificate, now: datetime, *, renew_early: bool) -> str:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    renew_before = min((ends - begins) / 3, MAX_RENEW_BEFORE) if renew_early else timedelta()
    if now < begins:
        return f"it is not valid before {begins}"
    return f"it expires at {ends}" if now + renew_before >= ends else ""


def _parse(pem: bytes) -> x509.Certificate:
    """The first certificate in `pem`."""
    if not pem.strip():
        raise _InvalidPairError("it is missing")
    try:
        with warnings.catch_warnings():
            # cert-controller issues CA certificates with serial number 0. RFC 5280 forbids it; TLS accepts it.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise _InvalidPairError(f"it is not a certificate: {error}") from error


def _parse_key(pem: bytes) -> SigningKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _InvalidPairError(f"its key cannot be parsed: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise _InvalidPairError("its key is neither RSA nor ECDSA")
    return key


def _require_match(certificate: x509.Certificate, key: bytes) -> None:
    if _parse_key(key).public_key() != certificate.public_key():
        raise _InvalidPairError("its key does not match")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: SigningKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(common: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64]), *attributes])  # the limit of X.520


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: SigningKey) -> Pair:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), text)

"""Pure functions on webhook certificates and their Secret: validity, renewal times, and the steps of a rotation."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from tests.runtime.authority import NAME, cert_controller_pairs, secret_data, shake_hands
from trainop.runtime.client.tls import load_pair
from trainop.runtime.serving.expiry import not_after
from trainop.runtime.webhook.certificates import Pair, authority_fault, issue, make_authority, server_fault
from trainop.runtime.webhook.keyring import FIELDS, Keyring, Subject, advance

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
SUBJECT = Subject((NAME, "other.example"))
AUTHORITY = make_authority("ca", "test", NOW)
SERVER = issue(AUTHORITY, SUBJECT.names, NOW)
RING = Keyring(AUTHORITY, SERVER)


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.ExtensionType:
    return certificate.extensions.get_extension_for_class(kind).value


def test_our_certificates_satisfy_strict_clients():
    authority = x509.load_pem_x509_certificate(AUTHORITY.certificate)
    server = x509.load_pem_x509_certificate(SERVER.certificate)
    for certificate in (authority, server):
        assert certificate.serial_number.bit_length() > 64
        identifier = extension(certificate, x509.AuthorityKeyIdentifier)
        assert isinstance(identifier, x509.AuthorityKeyIdentifier)
        subject = extension(authority, x509.SubjectKeyIdentifier)
        assert isinstance(subject, x509.SubjectKeyIdentifier)
        assert identifier.key_identifier == subject.digest
    assert server.not_valid_before_utc == NOW - timedelta(hours=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, SERVER.certificate, SERVER.key)
    for name in SUBJECT.names:
        assert shake_hands(context, AUTHORITY.certificate, name) == ssl.PEM_cert_to_DER_cert(
            SERVER.certificate.decode()
        )
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, AUTHORITY.certificate, "elsewhere.svc")


def test_a_certificate_ends_with_its_authority():
    late = NOW + timedelta(days=3600)
    server = x509.load_pem_x509_certificate(issue(AUTHORITY, [NAME], late).certificate)
    assert server.not_valid_after_utc == NOW + timedelta(days=3650)


@pytest.mark.parametrize("days", [-1, 1, 3000, 20000])  # from 2050 on the year has four digits
def test_the_expiry_is_read_from_the_encoded_certificate(days: int):
    for pair in (AUTHORITY, SERVER, cert_controller_pairs(server_left=days, now=NOW)[1]):
        ends = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
        assert not_after(b"a comment\n" + pair.certificate + AUTHORITY.certificate) == ends.timestamp()


def test_a_text_without_certificate_has_no_expiry():
    with pytest.raises(ValueError, match="no PEM certificate"):
        not_after(b"")


@pytest.mark.parametrize(
    ("authority", "days", "fault"),
    [
        (AUTHORITY, 0, ""),
        (AUTHORITY, 3559, ""),
        (AUTHORITY, 3560, "it expires at"),
        (AUTHORITY, -1, "it is not valid before"),
        (SERVER, 0, "it is not a CA certificate"),
        (replace(AUTHORITY, key=SERVER.key), 0, "its key does not match"),
        (replace(AUTHORITY, key=b""), 0, "its key cannot be parsed"),
        (Pair(b"", b""), 0, "it is missing"),
        (Pair(b"x", b""), 0, "it is not a certificate"),
    ],
)
def test_faults_of_an_authority(authority: Pair, days: int, fault: str):
    found = authority_fault(authority, NOW + days * DAY)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("server", "days", "fault"),
    [
        (SERVER, 0, ""),
        (SERVER, 274, ""),
        (SERVER, 275, "it expires at"),
        (issue(AUTHORITY, [NAME], NOW), 0, "its names do not include other.example"),
        (issue(make_authority("ca", "test", NOW), SUBJECT.names, NOW), 0, "it is signed by another CA"),
        (issue(make_authority("x", "test", NOW), SUBJECT.names, NOW), 0, "issuer certificate subject"),
        (replace(SERVER, key=AUTHORITY.key), 0, "its key does not match"),
        (AUTHORITY, 0, "No <"),
        (Pair(b"x", b"y"), 0, "it is not a certificate"),
    ],
)
def test_faults_of_a_server_certificate(server: Pair, days: int, fault: str):
    found = server_fault(server, AUTHORITY.certificate, SUBJECT.names, NOW + days * DAY)
    assert bool(found) == bool(fault)
    assert fault.lower() in found.lower()


def test_a_short_life_is_renewed_when_a_third_of_it_is_left():
    soon = NOW + timedelta(days=3620)  # it expires with its authority, which has thirty days left
    server = issue(AUTHORITY, SUBJECT.names, soon)

    def fault(days: float) -> str:
        return server_fault(server, AUTHORITY.certificate, SUBJECT.names, soon + days * DAY)

    assert fault(19.9) == ""
    assert fault(20.1)
    assert server_fault(server, AUTHORITY.certificate, SUBJECT.names, soon + 29 * DAY, renew_early=False) == ""


def test_certificates_of_cert_controller_are_good_until_ninety_days_before_their_end():
    authority, server = cert_controller_pairs(authority_left=91, server_left=91)
    ring, subject = Keyring(authority, server), Subject((NAME,))
    assert advance(ring, subject, NOW, published=True) == (ring, "")
    later, why = advance(ring, subject, NOW + 2 * DAY, published=True)
    assert why.startswith("CA: it expires at")
    assert (later.authority, later.server) == (authority, server)
    assert later.successor is not None


def test_a_ring_is_read_from_its_secret():
    full = Keyring(AUTHORITY, SERVER, AUTHORITY, b"previous", NOW)
    assert tuple(full.data()) == FIELDS
    assert Keyring.parse(full.data()) == full
    assert Keyring.parse(RING.data()) == RING
    assert tuple(RING.data()) == FIELDS[:4]
    assert Keyring.parse({}) == Keyring()
    assert Keyring().data() == {}
    assert Keyring.parse({"ca.crt": "%%%", "previous-ca-until": "eA=="}) == Keyring()
    authority, server = cert_controller_pairs()
    assert Keyring.parse(secret_data(authority, server)).bundle == authority.certificate


def test_an_authority_is_followed_in_three_steps():
    later = NOW + 3600 * DAY
    ring = Keyring(AUTHORITY, issue(AUTHORITY, SUBJECT.names, later))
    second, why = advance(ring, SUBJECT, later, published=True)
    assert why.startswith("CA: it expires at")
    assert (second.authority, second.server) == (ring.authority, ring.server)
    assert second.successor is not None
    assert second.bundle == AUTHORITY.certificate + second.successor.certificate
    assert advance(second, SUBJECT, later, published=False) == (second, ""), (
        "not before every configuration has the bundle"
    )
    third, why = advance(second, SUBJECT, later, published=True)
    assert why == "next CA: it becomes current"
    assert third.authority == second.successor
    assert third.successor is None
    assert third.bundle == third.authority.certificate + AUTHORITY.certificate
    assert not server_fault(third.server, third.authority.certificate, SUBJECT.names, later)
    assert advance(third, SUBJECT, later + timedelta(hours=23.9), published=True) == (third, "")
    last, why = advance(third, SUBJECT, later + timedelta(hours=24), published=True)
    assert why == "previous CA: its overlap has ended"
    assert last == Keyring(third.authority, third.server)
    assert advance(last, SUBJECT, later + DAY, published=True) == (last, "")


def from_nothing() -> tuple[Keyring, datetime]:
    return Keyring(), NOW


def with_an_expired_authority() -> tuple[Keyring, datetime]:
    return RING, NOW + timedelta(days=3651)


def with_a_foreign_certificate() -> tuple[Keyring, datetime]:
    return replace(RING, authority=replace(make_authority("x", "x", NOW), key=b"")), NOW


@pytest.mark.parametrize("begin", [from_nothing, with_an_expired_authority, with_a_foreign_certificate])
def test_a_rotation_does_not_wait_if_no_client_could_connect_anyway(begin: Callable[[], tuple[Keyring, datetime]]):
    ring, now = begin()
    following, why = advance(ring, SUBJECT, now, published=False)
    assert why
    assert advance(following, SUBJECT, now, published=False) == (following, "")
    assert following.authority != ring.authority
    assert following.bundle == following.authority.certificate


def test_a_next_authority_takes_over_unseen_when_the_old_certificate_has_ended():
    later = NOW + 3600 * DAY
    waiting, _ = advance(replace(RING, server=issue(AUTHORITY, SUBJECT.names, later)), SUBJECT, later, published=False)
    following, why = advance(waiting, SUBJECT, later + 51 * DAY, published=False)
    assert why == "next CA: it becomes current"
    assert following.authority == waiting.successor


def test_an_invalid_next_authority_is_recreated():
    spoiled = replace(RING, successor=Pair(b"x", b"y"))
    following, why = advance(spoiled, SUBJECT, NOW, published=True)
    assert (following, why.split(":")[0]) == (RING, "next CA")


def test_only_the_server_certificate_is_renewed_when_only_that_is_due():
    following, why = advance(RING, SUBJECT, NOW + 300 * DAY, published=False)
    assert why.startswith("certificate: it expires at")
    assert following == replace(RING, server=following.server)
    assert not server_fault(following.server, AUTHORITY.certificate, SUBJECT.names, NOW + 300 * DAY)


def test_a_change_of_names_is_served_at_once():
    following, why = advance(RING, Subject(("new.example",)), NOW, published=False)
    assert why == "certificate: its names do not include new.example"
    assert following.authority == AUTHORITY


def test_clients_that_know_only_the_previous_authority_accept_the_next_certificate():
    """A training may read the CA certificate once, and run for weeks."""
    begun, _ = advance(replace(RING, authority=AUTHORITY), SUBJECT, NOW, published=False)
    assert begun == RING
    successor = make_authority("ca", "test", NOW)
    ring, why = advance(replace(RING, successor=successor), SUBJECT, NOW, published=True)
    assert why == "next CA: it becomes current"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, ring.server.certificate, ring.server.key)
    for known in (AUTHORITY.certificate, successor.certificate, ring.bundle):
        assert shake_hands(context, known, NAME)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, make_authority("ca", "test", NOW).certificate, NAME)


def test_an_authority_without_its_key_vouches_for_nobody():
    successor = make_authority("ca", "test", NOW)
    lost = replace(RING, authority=replace(AUTHORITY, key=b""), successor=successor)
    ring, _ = advance(lost, SUBJECT, NOW, published=True)
    assert ring.server.certificate.count(b"BEGIN") == 1

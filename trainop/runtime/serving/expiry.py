"""The expiry of a certificate, read from its DER encoding: importing `cryptography` would take 20 MiB."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime

_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17
"""ASN.1 tags: the optional version, and a time with two digits for the year."""


def not_after(pem: bytes) -> float:
    """The end of validity of the first certificate in PEM text, in seconds since the epoch.

    Raises `ValueError` if there is no certificate. The text must be one that OpenSSL can load.
    """
    found = _FIRST.search(pem)
    if found is None:
        raise ValueError("no PEM certificate")
    der = base64.b64decode(found[1])
    _, at, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, at)  # tbsCertificate
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in ("serialNumber", "signature", "issuer"):
        at = _element(der, at)[2]
    _, at, _ = _element(der, at)  # validity
    tag, begin, end = _element(der, _element(der, at)[2])  # the element after notBefore
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:  # RFC 5280: 50 to 99 are the years from 1950
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The element that starts at an offset: its tag, and the offsets where its content begins and ends."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[begin : begin + size], "big")
        begin += size
    return tag, begin, begin + length

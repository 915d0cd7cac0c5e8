"""JSON web tokens in compact form (RFC 7519), signed with HMAC-SHA256 (`HS256`)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field

import msgspec

KEY_SIZE = 32
"""Bytes of a key."""
_BASE64 = re.compile(r"[A-Za-z0-9_-]*")
_HEADER = b'{"alg":"HS256"}'
_MALFORMED = (ValueError, RecursionError)
"""Errors of decoding base64, UTF-8 and JSON; `msgspec.DecodeError` is a `ValueError`."""


class _Header(msgspec.Struct):
    alg: str


class _Issuer(msgspec.Struct):
    iss: str = ""


class NotATokenError(Exception):
    """The text is no signed token in compact form."""


class BadSignatureError(Exception):
    """The token is not signed with this key, or its text was changed."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature is not checked yet: trust its issuer no more than the sender."""

    issuer: str
    payload: bytes = field(repr=False)
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def parse(text: str) -> Token:
    """The parts of a token. Raises `NotATokenError`."""
    parts = text.split(".")
    if len(parts) != 3:
        raise NotATokenError
    try:
        header, payload, signature = (_decode(part) for part in parts)
        msgspec.json.decode(header, type=_Header)
        issuer = msgspec.json.decode(payload, type=_Issuer).iss
    except _MALFORMED as error:
        raise NotATokenError from error
    return Token(issuer, payload, f"{parts[0]}.{parts[1]}".encode(), signature)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs and verifies with one key of KEY_SIZE bytes. The header of a token never selects how it is verified."""

    key: bytes = field(repr=False)

    def sign(self, claims: object) -> str:
        """A token with these claims, in the compact form."""
        signed = f"{_encode(_HEADER)}.{_encode(msgspec.json.encode(claims, order='deterministic'))}"
        return f"{signed}.{_encode(self._signature(signed.encode()))}"

    def verify(self, token: Token) -> None:
        """Raises `BadSignatureError`."""
        if not hmac.compare_digest(token.signature, self._signature(token.signed)):
            raise BadSignatureError

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self.key, signed, hashlib.sha256)


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Base64 for URLs without padding; other characters, which Python's decoder skips, raise `ValueError`."""
    if not _BASE64.fullmatch(text):
        raise binascii.Error("not base64")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

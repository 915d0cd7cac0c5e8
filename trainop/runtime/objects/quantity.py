"""Resource quantities (`100m`, `1Gi`, `2e3`): exact values, and the canonical form.

Source: apimachinery `pkg/api/resource/quantity.go`.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MAX_LENGTH = 100
"""Characters of a quantity. A longer one is invalid here, so that its value costs little to compute."""

MAX_EXPONENT = 99
LARGEST = 2**63 - 1
"""Larger amounts are capped, as in Kubernetes."""

_BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FACTORS = {suffix: Fraction(10) ** power for suffix, power in _DECIMAL.items()}
_PATTERN = re.compile(r"(?P<number>[+-]?([0-9]+\.?[0-9]*|\.[0-9]+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+|)")


class Quantity(NamedTuple):
    """An exact amount, and the format in which it is written."""

    amount: Fraction
    format: str
    """`binary`, `decimal` or `exponent`."""

    def __str__(self) -> str:
        """The canonical form: the largest suffix that needs no fraction; rounded up to 10⁻⁹."""
        amount = Fraction(_round_up(self.amount * 10**9), 10**9)
        if amount == 0:
            return "0"
        if self.format == "binary" and abs(amount) >= 1024 and amount.denominator == 1:
            return _write_binary(amount.numerator)
        return _write_exponent(amount, self.format)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity:
    """Parses a quantity. Raises `ValueError` if it is invalid. Cached, because the same few texts occur over and over
    and exact arithmetic is slow."""
    match = _PATTERN.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    number, suffix = Fraction(match["number"]), match["suffix"]
    if suffix.endswith("i"):
        return Quantity(_cap(number * 1024 ** _BINARY.index(suffix)), "binary")
    if suffix[:1] in {"e", "E"} and len(suffix) > 1:
        exponent = max(-MAX_EXPONENT, min(int(suffix[1:]), MAX_EXPONENT))
        return Quantity(_cap(number * Fraction(10) ** exponent), "exponent")
    return Quantity(_cap(number * _FACTORS[suffix]), "decimal")


def read_quantity(value: object) -> Quantity:
    """Like `parse_quantity`, also for a quantity that is written as a number. Raises `ValueError` if it is none."""
    try:
        return parse_quantity(str(value).strip())
    except ValueError:
        raise ValueError(f"{value!r} is not a quantity") from None


def exact_amount(value: object) -> Fraction:
    """The value of a quantity, also of one that is written as a number. Raises `ValueError` if it is none."""
    return read_quantity(value).amount


def canonical_quantity(text: str) -> str:
    """The canonical form of a quantity; an invalid one is returned unchanged."""
    try:
        return str(parse_quantity(text))
    except ValueError:
        return text


def _cap(amount: Fraction) -> Fraction:
    return max(Fraction(-LARGEST), min(amount, Fraction(LARGEST)))


def _round_up(amount: Fraction) -> int:
    """The next integer away from zero."""
    return math.ceil(amount) if amount > 0 else math.floor(amount)


def _write_binary(amount: int) -> str:
    power = 0
    while power < len(_BINARY) - 1 and amount % 1024 == 0:
        amount //= 1024
        power += 1
    return f"{amount}{_BINARY[power]}"


def _write_exponent(amount: Fraction, family: str) -> str:
    exponent = -9
    whole = (amount * 10**9).numerator
    while exponent < 18 and whole % 1000 == 0:
        whole //= 1000
        exponent += 3
    if family == "exponent":
        return f"{whole}e{exponent}" if exponent else str(whole)
    suffix = next(suffix for suffix, power in _DECIMAL.items() if power == exponent)
    return f"{whole}{suffix}"

"""Resource quantities (`100m`, `1Gi`, `2e3`): parsing and the canonical form.

Source: apimachinery `pkg/api/resource/quantity.go`.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal
from fractions import Fraction

_BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PATTERN = re.compile(r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+|)")


def parse(text: str) -> tuple[Decimal, str]:
    """The amount and its format (`binary`, `decimal`, `exponent`); raises `ValueError` for an invalid quantity."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    number, suffix = Decimal(match["number"]), match["suffix"]
    if suffix.endswith("i"):
        return number * 1024 ** _BINARY.index(suffix), "binary"
    if suffix[:1] in {"e", "E"} and len(suffix) > 1:
        return number.scaleb(int(suffix[1:])), "exponent"
    return number.scaleb(_DECIMAL[suffix]), "decimal"


def exact_amount(text: object) -> Fraction:
    """The value of a quantity, also of one that is written as a number. Raises `ValueError` if it is none."""
    try:
        return Fraction(parse(str(text).strip())[0])
    except ValueError:
        raise ValueError(f"{text!r} is not a quantity") from None


def canonical(text: str) -> str:
    """The same amount with the largest suffix that needs no fraction; an invalid quantity is returned unchanged."""
    try:
        amount, family = parse(text)
    except ValueError:
        return text
    amount = amount.quantize(Decimal("1e-9"), rounding=ROUND_UP) if amount else amount
    if amount == 0:
        return "0"
    if family == "binary" and abs(amount) >= 1024 and amount == amount.to_integral_value():
        return _binary(int(amount))
    return _exponent(amount, family)


def _binary(amount: int) -> str:
    power = 0
    while power < len(_BINARY) - 1 and amount % 1024 == 0:
        amount //= 1024
        power += 1
    return f"{amount}{_BINARY[power]}"


def _exponent(amount: Decimal, family: str) -> str:
    exponent = -9
    whole = int(amount.scaleb(9))
    while exponent < 18 and whole % 1000 == 0:
        whole //= 1000
        exponent += 3
    if family == "exponent":
        return f"{whole}e{exponent}" if exponent else str(whole)
    suffix = next(suffix for suffix, power in _DECIMAL.items() if power == exponent)
    return f"{whole}{suffix}"

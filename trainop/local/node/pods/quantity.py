"""Kubernetes resource quantities such as `500m` or `1Gi` (apimachinery `pkg/api/resource/quantity.go`)."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?[0-9]*\.?[0-9]+|[+-]?[0-9]+\.)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_SUFFIXES |= {name: Fraction(10) ** exponent for name, exponent in zip("kMGTPE", range(3, 19, 3), strict=False)}
_SUFFIXES |= {f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", start=1)}


def parse_quantity(text: str) -> Fraction:
    """The exact value of a quantity. Raises `ValueError` if `text` is not a quantity."""
    found = _FORM.fullmatch(str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = Fraction(found[1]), found[2] or ""
    if suffix[:1] in {"e", "E"} and len(suffix) > 1:
        return number * Fraction(10) ** int(suffix[1:])
    return number * _SUFFIXES.get(suffix, Fraction(1))

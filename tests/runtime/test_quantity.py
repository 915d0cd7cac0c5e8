"""Quantities: exact values and canonical forms."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trainop.runtime.objects.quantity import LARGEST, Quantity, canonical_quantity, exact_amount, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0.1", Fraction(1, 10)),
        ("100m", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("1.", Fraction(1)),
        ("-2Ki", Fraction(-2048)),
        ("123456789.123456789123456789", Fraction("123456789.123456789123456789")),
        ("1e-9", Fraction(1, 10**9)),
        ("1e400000000", Fraction(LARGEST)),
        ("-1e400000000", Fraction(-LARGEST)),
        ("9Ei", Fraction(LARGEST)),
    ],
)
def test_amounts_are_exact(text: str, amount: Fraction) -> None:
    assert parse_quantity(text).amount == amount


def test_tiny_amounts_round_up_to_the_smallest_unit() -> None:
    assert canonical_quantity("1e-400000000") == "1e-9"
    assert canonical_quantity("-1e-12") == "-1e-9"
    assert canonical_quantity("1e-3") == "1e-3"


def test_sums_keep_their_format() -> None:
    assert str(Quantity(parse_quantity("512Mi").amount * 3, "binary")) == "1536Mi"
    assert str(Quantity(parse_quantity("0.1").amount * 30, "decimal")) == "3"
    assert str(Quantity(Fraction(1, 3), "decimal")) == "333333334n"


@pytest.mark.parametrize("text", ["", "1" * 101, "1Ei0", "\u0661"])
def test_other_texts_are_no_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="must match"):
        parse_quantity(text)


@pytest.mark.parametrize("value", [None, True, [], {"a": 1}, float("nan")])
def test_other_values_are_no_quantities(value: object) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        exact_amount(value)

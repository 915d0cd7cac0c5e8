"""Generates `docs/kinds/` from the values that the operator runs with."""

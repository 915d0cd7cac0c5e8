"""Structural schemas: validation, defaults, pruning, CEL rules, and what is said of a wrong field."""

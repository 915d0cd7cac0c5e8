"""Structural schemas of CRDs: pruning, defaulting, validation, CEL rules, and field errors."""

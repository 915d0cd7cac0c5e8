"""Verbs: what one request reads or changes, from its path and body to its answer."""

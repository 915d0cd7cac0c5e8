"""Generates the pages of `docs/` that tell what the code says itself."""

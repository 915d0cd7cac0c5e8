"""Upgrades of an installation while jobs run: versions of the manifests, and jobs that must not notice."""

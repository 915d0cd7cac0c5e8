"""Admission webhooks: reviews, certificates made and renewed, and their configuration."""

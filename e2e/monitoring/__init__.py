"""Prometheus for the tests of metrics, alerts and the dashboard."""

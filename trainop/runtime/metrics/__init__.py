"""Prometheus metrics with the names of controller-runtime and client-go, and who may read them."""

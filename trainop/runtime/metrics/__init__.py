"""Prometheus metrics with the names of controller-runtime and client-go, and authorization of their readers."""

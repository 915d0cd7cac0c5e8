"""Kubernetes API objects as Python values: metadata, resources, JSON patches, and size limits.

The lowest layer of the runtime: it does no I/O, and all other packages build on it.
"""

"""The scheduler of a cluster with one node."""

"""Processes in namespaces of their own: the supervisor, the inits of containers, and what Linux offers."""

"""The registry of served kinds, and a strategy per kind: defaulting, validation, preparation for create and update."""

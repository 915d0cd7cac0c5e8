"""Controllers inside the API server: garbage collection, deletion of namespaces and CRDs, expiry of events."""

"""The container runtime: supervisor, container inits, and the Linux namespaces and mounts that isolate pods."""

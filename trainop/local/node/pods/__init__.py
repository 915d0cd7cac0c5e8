"""The life of a pod: containers, probes, volumes, environment, logs and status."""

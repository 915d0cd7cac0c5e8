"""The pod lifecycle: pod manager, pod workers, containers, probes, volumes, environment, logs and status."""

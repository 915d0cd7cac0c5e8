"""Load benchmarks: the same scenarios, API server and simulated node for every training operator; see README.md."""

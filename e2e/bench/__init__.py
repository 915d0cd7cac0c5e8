"""Load benchmark: the same scenarios, API server and simulated node for any training operator."""

"""Our own HTTP ports: metrics, probes and webhooks, their limits and their certificates."""

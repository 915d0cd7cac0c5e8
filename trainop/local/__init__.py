"""A Kubernetes cluster in one process: an API server with watch, and a node that runs pods as processes."""

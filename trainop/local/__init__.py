"""A Kubernetes cluster in one process: an imitation of kube-apiserver, and a node that runs pods as processes."""

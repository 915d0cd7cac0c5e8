"""A Kubernetes cluster in one process: an imitation of kube-apiserver, and a node that runs pods as processes."""

KUBERNETES = "v1.37.2"
"""The release of Kubernetes that the API server and the node imitate: the newest one that is tested."""

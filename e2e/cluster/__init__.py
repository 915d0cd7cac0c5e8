"""A real Kubernetes control plane on loopback, without root, images or downloads other than Go modules.

`build` compiles the binaries once into the user's cache; `controlplane` starts etcd, kube-apiserver and optional
components. The server tests, the conformance tests and the benchmarks use it.
"""


class ClusterError(Exception):
    """A control plane could not be built, started or controlled; the message is user-facing."""

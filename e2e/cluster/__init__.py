"""A real Kubernetes control plane on loopback, without root, images or downloads other than Go modules.

`build` makes the binaries once and keeps them outside of the tree; `controlplane` starts etcd, kube-apiserver and more.
"""

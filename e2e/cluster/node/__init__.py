"""A cluster with one real node: kubelet, containerd, runc, CNI, kube-proxy and CoreDNS, in namespaces of its own."""

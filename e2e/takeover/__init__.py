"""Replacing training-operator by ours while jobs run, and going back, on a kube-apiserver: `make test-takeover`."""

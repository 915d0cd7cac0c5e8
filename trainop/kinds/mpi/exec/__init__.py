"""Transport exec (training-operator): the launcher reaches workers by `kubectl exec`."""

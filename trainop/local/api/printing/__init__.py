"""Server-side printing: Tables for `kubectl get`."""

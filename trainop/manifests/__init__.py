"""`trainop manifests`: generates CRDs, RBAC and the Deployment from the values that the operator uses at run time.

`rbac` and `workload` make the objects, `overlays` the kustomizations, `tree` all files, and `command` writes them.
"""

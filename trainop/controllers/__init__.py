"""The controllers of jobs: the shell around the engine, shared by all kinds.

It reads caches, calls the pure `plan` of a kind, carries out the actions, writes the status and emits events. It
relies on `trainop.runtime` for everything that concerns Kubernetes, and knows a kind only as a
`trainop.engine.kind.Kind`. `wiring.build_controller` puts the parts together; `reconciler.JobReconciler` is the pass.
"""

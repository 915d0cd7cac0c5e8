"""Progress of training jobs: the endpoint to which their pods report, and the writes of what they reported.

The protocol is that of Kubeflow Trainer (KEP-2779 of kubeflow/trainer); `docs/progress.md` describes it. Every replica
of the operator serves it.
"""

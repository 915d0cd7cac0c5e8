"""The clients of Kubeflow Trainer's progress protocol, unchanged, against our endpoint."""

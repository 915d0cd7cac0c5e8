"""TrainJobs of Kubeflow Trainer, each of which the operator runs as one job of a kind of its own."""

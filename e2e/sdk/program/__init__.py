"""The calls of `kubeflow.training.TrainingClient` and what each promises, by its documentation.

The modules run in the SDK's environment: they import the SDK and the standard library only.
"""

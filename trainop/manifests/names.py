"""Names of the installation. They are those of training-operator, so that existing kustomizations apply."""

NAME = "training-operator"
NAMESPACE = "kubeflow"
IMAGE = "trainop"
METRICS_PORT, PROBE_PORT = 8080, 8081
LABELS = {"control-plane": "kubeflow-training-operator"}
RBAC = "rbac.authorization.k8s.io"

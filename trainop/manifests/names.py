"""Names of the installation. They are those of training-operator, so that existing kustomizations apply."""

NAME = "training-operator"
NAMESPACE = "kubeflow"
IMAGE = "trainop"
METRICS_PORT, PROBE_PORT, WEBHOOK_PORT, PROGRESS_PORT = 8080, 8081, 9443, 9444
LEASES_ROLE, WEBHOOK_ROLE = f"{NAME}-leader-election", f"{NAME}-webhook"
WEBHOOK_SECRET = f"{NAME}-webhook-cert"
LABELS = {"control-plane": "kubeflow-training-operator"}
RBAC = "rbac.authorization.k8s.io"

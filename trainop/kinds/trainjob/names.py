"""Names of Kubeflow Trainer's API (trainer `pkg/apis/trainer/v1alpha1`, `pkg/constants`) that its SDK reads."""

from __future__ import annotations

from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.runtime import Resource

GROUP = "trainer.kubeflow.org"
VERSION = "v1alpha1"
TRAIN_JOBS = Resource(GROUP, VERSION, "trainjobs", "TrainJob")
RUNTIMES = Resource(GROUP, VERSION, "trainingruntimes", "TrainingRuntime")
CLUSTER_RUNTIMES = Resource(GROUP, VERSION, "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False)

SCHEME = "TrainJob"
MARK = "trainop"
"""The category in the names of our CRDs, which discovery shows to everybody. Kubeflow Trainer's CRDs have none."""

THIS_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
"""The default of `spec.managedBy`."""

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
FRAMEWORK = "trainer.kubeflow.org/framework"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
NODE, LAUNCHER, TRAINER = "node", "launcher", "trainer"

SPEC_HASH = ANNOTATION_PREFIX + "train-spec"
"""On the child: the hash of what the operator made it of, without `suspend`."""
SUSPENDED_AS = ANNOTATION_PREFIX + "train-suspend"
"""On the child: the value of the TrainJob's `suspend` that was passed on last."""

SUSPENDED, COMPLETE, FAILED = "Suspended", "Complete", "Failed"
NOT_SUPPORTED = "TrainingRuntimeNotSupported"
"""The reason of condition Failed of a TrainJob that cannot be run as it is."""

"""`crds-trainjob`: the CRDs of TrainJobs and their runtimes, which are no part of `crds`; and `runtimes`, the shipped
ClusterTrainingRuntimes. The API server takes runtimes once it serves their CRD, so that they are applied after it."""

from __future__ import annotations

from collections.abc import Sequence

from trainop.kinds.trainjob.crd import train_job_crds
from trainop.kinds.trainjob.runtimes import shipped_runtimes
from trainop.manifests.overlays import kustomization
from trainop.runtime import Json


def train_job_files() -> dict[str, Sequence[Json]]:
    """The files, by path."""
    found: dict[str, Sequence[Json]] = {}
    for folder, objects in (("crds-trainjob", train_job_crds()), ("runtimes", shipped_runtimes())):
        files = {f"{each['metadata']['name']}.yaml": each for each in objects}
        found[f"{folder}/kustomization.yaml"] = [kustomization(sorted(files))]
        found |= {f"{folder}/{name}": [each] for name, each in files.items()}
    return found

"""`train`, which fine-tunes a model of Hugging Face.

Its packages (transformers, peft with PyTorch) take several GB and its images download models. Here the packages are
replaced by the few names that the SDK imports, and the images are not run: what the SDK sends is compared with what the
cluster makes of it.
"""

from __future__ import annotations

import contextlib
import io
import sys
from types import ModuleType
from typing import Any

from e2e.sdk.program.table import Scene, eventually, expect, raised, same

NAME = "finetune"
TRANSFORMERS = (
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
)


class _Settings:
    """Stands in for `LoraConfig` and `TrainingArguments`."""

    def to_dict(self) -> dict[str, Any]:
        return {"learning_rate": 0.25}


def _parameters() -> dict[str, Any]:
    """The arguments of `train`, made with stand-ins for the two packages."""
    transformers, peft = ModuleType("transformers"), ModuleType("peft")
    for name in (*TRANSFORMERS, "TrainingArguments"):
        setattr(transformers, name, type(name, (_Settings,), {}))
    peft.LoraConfig = type("LoraConfig", (_Settings,), {})  # type: ignore[attr-defined]  # an empty module
    sys.modules.update(transformers=transformers, peft=peft)
    from kubeflow.storage_initializer.hugging_face import (  # noqa: PLC0415 - imports the two packages
        HuggingFaceDatasetParams,
        HuggingFaceModelParams,
        HuggingFaceTrainerParams,
    )

    return {
        "model_provider_parameters": HuggingFaceModelParams(
            model_uri="hf://google-bert/bert-base-cased",
            transformer_type=transformers.AutoModelForSequenceClassification,
            num_labels=5,
        ),
        "dataset_provider_parameters": HuggingFaceDatasetParams(repo_id="yelp_review_full", split="train[:8]"),
        "trainer_parameters": HuggingFaceTrainerParams(),
    }


@expect("train", "raises ImportError without the packages of Hugging Face", since=(1, 8), kinds=("PyTorchJob",))
def _not_installed(scene: Scene) -> None:
    raised(ImportError, lambda: scene.client.train(name=NAME), "kubeflow-training[huggingface]")


@expect("train", "creates the claim, and a PyTorchJob whose master prepares it", since=(1, 9), kinds=("PyTorchJob",))
def _train(scene: Scene) -> None:
    call = {"name": NAME, "num_workers": 2, "num_procs_per_worker": 2, **_parameters()}
    client, output = scene.client, io.StringIO()
    with contextlib.redirect_stdout(output):
        client.train(resources_per_worker={"cpu": "50m", "memory": "64Mi"}, **call)
        eventually(lambda: client.is_job_created(NAME), "the job is Created")
        raised(RuntimeError, lambda: client.train(**call), "Failed to create PyTorchJob")
    if f"PVC '{NAME}' already exists" not in output.getvalue():
        raise AssertionError(output.getvalue())
    claim = scene.core.read_namespaced_persistent_volume_claim(NAME, scene.namespace)
    same(
        (claim.spec.access_modes, claim.spec.resources.requests["storage"]), (["ReadWriteOnce", "ReadOnlyMany"], "10Gi")
    )
    eventually(lambda: len(client.get_job_pods(NAME)) == 2, "both pods exist")
    (master,) = client.get_job_pods(NAME, is_master=True)
    (worker,) = client.get_job_pods(NAME, replica_type="worker")
    same([one.name for one in master.spec.init_containers], ["storage-initializer"])
    same([one.name for one in worker.spec.init_containers], ["init-pytorch"])
    for pod in (master, worker):
        (container,) = pod.spec.containers
        mounts = {mount.name: mount.mount_path for mount in container.volume_mounts}
        same(mounts["storage-initializer"], "/workspace")
    client.delete_job(NAME)
    scene.core.delete_namespaced_persistent_volume_claim(NAME, scene.namespace)

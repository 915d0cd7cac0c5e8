"""The current SDK of Kubeflow (PyPI `kubeflow`) against our operator: its `TrainerClient`, unchanged."""

from __future__ import annotations

from pathlib import Path

from e2e import clients

ROOT = Path(__file__).parents[2]
VERSION = "0.5.0"


def environment() -> Path:
    """The interpreter of an environment with the SDK, which is created if missing."""
    return clients.environment("trainer-sdk", VERSION, [f"kubeflow=={VERSION}"])


def command(python: Path, kubeconfig: Path, *arguments: str) -> list[str]:
    """The command that runs the program with the SDK on a cluster."""
    variables = [f"KUBECONFIG={kubeconfig}", f"PYTHONPATH={ROOT}", "PYTHONUNBUFFERED=1"]
    return ["env", *variables, str(python), str(Path(__file__).with_name("program.py")), *arguments]

"""The Python SDK of training-operator (PyPI `kubeflow-training`) against our operator.

`program` is the table of calls and what each promises; it runs in the SDK's own environment.
"""

from __future__ import annotations

from pathlib import Path

from e2e import clients

ROOT = Path(__file__).parents[2]
VERSIONS = {"1.9.4": "35.0.0", "1.8.1": "31.0.0", "1.7.0": "27.2.0"}
"""Each version of the SDK with a `kubernetes` client of its time; 1.8 does not work with those above 35.

The first is the newest. 1.8 and 1.7 know MXJob, and do not know JAXJob.
"""
NEWEST = next(iter(VERSIONS))


def environment(version: str = NEWEST) -> Path:
    """The interpreter of an environment with this version of the SDK, which is created if missing."""
    wanted = [f"kubeflow-training=={version}", f"kubernetes=={VERSIONS[version]}"]
    return clients.environment("sdk", version, wanted)


def command(python: Path, kubeconfig: Path, *arguments: str) -> list[str]:
    """The command that runs the table; it finds its modules below this checkout."""
    program = [str(python), "-m", "e2e.sdk.program", f"--kubeconfig={kubeconfig}", *arguments]
    return ["env", f"PYTHONPATH={ROOT}", "PYTHONUNBUFFERED=1", *program]

"""All charts."""

from __future__ import annotations

from trainop.manifests.helm.chart import Chart
from trainop.manifests.helm.di_system import di_system
from trainop.manifests.helm.mpi_operator import mpi_operator
from trainop.manifests.helm.training_operator import training_operator


def charts() -> list[Chart]:
    """One chart for each overlay that installs a program of its own."""
    return [training_operator(), mpi_operator(), di_system()]


def chart_files() -> dict[str, str]:
    """The content of all files of all charts, by path below the manifests."""
    return {path: text for chart in charts() for path, text in chart.files().items()}

"""The public interface by VERSIONING.md: its names are recorded in `public.toml`, the rights in docs/security.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import prometheus_client
import yaml

import trainop.runtime.lowlevel
from trainop.cli import cli
from trainop.controllers.counters import JobMetrics
from trainop.controllers.progress.metrics import ProgressMetrics
from trainop.diserver.metrics import DiServerMetrics
from trainop.kinds.mpi.ssh.finish import FINISH
from trainop.programs.di_operator import DI_FLAGS
from trainop.programs.di_server import DI_SERVER_FLAGS
from trainop.programs.di_webhook import DI_WEBHOOK_FLAGS
from trainop.programs.mpi_operator import MPI_FLAGS
from trainop.programs.settings import FLAGS
from trainop.runtime.metrics.histogram import Histogram
from trainop.runtime.metrics.metrics import Metrics

ROOT = Path(__file__).parent.parent
CHANGED = "a name that goes is a breaking change (VERSIONING.md); record a new one in tests/public.toml"


def recorded(table: str) -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((ROOT / "tests" / "public.toml").read_text(encoding="utf-8"))[table]
    return read


def test_commands_and_flags() -> None:
    context = click.Context(cli)
    flags = {
        "operator": FLAGS,
        "mpi-operator": MPI_FLAGS,
        "di-operator": DI_FLAGS,
        "di-server": DI_SERVER_FLAGS,
        "di-webhook": DI_WEBHOOK_FLAGS,
    }
    options: dict[str, list[str]] = {name: sorted(flag.name for flag in found) for name, found in flags.items()}
    for name in set(cli.list_commands(context)) - flags.keys():
        command = cli.get_command(context, name)
        assert command
        options[name] = sorted(option.removeprefix("--") for each in command.params for option in each.opts)
    assert options == recorded("commands"), CHANGED


def test_metrics_with_their_types_and_labels() -> None:
    metrics = JobMetrics()
    ProgressMetrics(metrics.registry).show_jobs(lambda: iter(()))
    assert _families(metrics) == recorded("metrics"), CHANGED


def test_metrics_of_di_server() -> None:
    served = {name: kind for name, kind in _families(DiServerMetrics()).items() if name.startswith("trainop_di_server")}
    assert served == recorded("di-server-metrics"), CHANGED
    page = (ROOT / "docs" / "di-server.md").read_text(encoding="utf-8")
    assert [
        name for name, kind in served.items() if f"`{name}{'_total' * kind.startswith('counter')}`" not in page
    ] == []


def _families(metrics: Metrics) -> dict[str, str]:
    metrics.queue_depth.declare("any")  # the only family without labels until a queue exists
    declared = {}
    for collector in metrics.registry._collector_to_names:
        if isinstance(collector, prometheus_client.metrics.MetricWrapperBase):
            declared[collector._name] = sorted(collector._labelnames)
        elif isinstance(collector, Histogram):
            declared[collector._name] = sorted(collector._labels)
    families = [family for family in metrics.registry.collect() if not family.name.startswith("process_")]
    served = {}
    for family in families:
        labels = declared[family.name] if family.name in declared else sorted(family.samples[0].labels)
        served[family.name] = " ".join([family.type, *labels])
    return served


def test_the_page_on_monitoring_lists_every_metric() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    missing = [
        name
        for name, type_ in recorded("metrics").items()
        if f"`{name}{'_total' * type_.startswith('counter')}`" not in page
    ]
    assert missing == []


def test_names_of_the_runtime() -> None:
    for module, table in ((trainop.runtime, "runtime"), (trainop.runtime.lowlevel, "runtime-lowlevel")):
        names, before = set(vars(module)["__all__"]), set(recorded(table)["names"])
        assert (sorted(before - names), sorted(names - before)) == ([], []), CHANGED


def test_annotations() -> None:
    """Every annotation name in the code is recorded and documented."""
    files = [path for folder in ("engine", "kinds") for path in (ROOT / "trainop" / folder).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r'ANNOTATION_PREFIX \+ "([\w-]+)"', code))
    assert named == set(recorded("annotations")["names"]), CHANGED
    page = (ROOT / "docs" / "annotations.md").read_text(encoding="utf-8")
    assert [name for name in named if f"`trainop.kubeflow.org/{name}`" not in page] == []


def test_finalizers() -> None:
    """Uninstalling has to remove them, so every one is documented."""
    names = recorded("finalizers")["names"]
    assert names == [FINISH], CHANGED
    for page in ("kinds/mpijob.md", "migrate-mpi.md", "install.md"):
        assert FINISH in (ROOT / "docs" / page).read_text(encoding="utf-8"), page


def test_the_page_on_security_has_the_rights_that_are_shipped() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").split("## Rights")[1].split("\n## ")[0]
    reported = set()
    for line in page.splitlines():
        if line.startswith(("| `", "| core")):
            group, resources, verbs = (re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:4])
            reported |= {(*(group or [""]), resource, verb) for resource in resources for verb in verbs}
    shipped = set()
    for document in yaml.safe_load_all((ROOT / "manifests" / "base" / "rbac.yaml").read_text(encoding="utf-8")):
        for rule in document.get("rules", ()):
            shipped |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert reported == shipped


def test_templates_of_issues_are_forms() -> None:
    """GitHub's schema of issue forms requires a name, a description, and fields with unique identifiers."""
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    forms = [path for path in sorted(folder.glob("*.yml")) if path.name != "config.yml"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
        fields = [each for each in form["body"] if each["type"] != "markdown"]
        assert {each["type"] for each in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
        assert all(each["attributes"]["label"] for each in fields)
        assert len({each["id"] for each in fields}) == len(fields)


def test_local_hooks_download_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")

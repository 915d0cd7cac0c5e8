"""What all tests share: acceptance cases are checked at collection, and reported by `pytest --cases`."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
import yaml

from e2e.cluster.components import Wishes
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import default_data
from tests.cases import Ledger, read_cases
from tests.needs import find_kubectl, need_built

# a busy machine is no failure, and CI is to say the same about the same commit
hypothesis.settings.register_profile("house", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("house")

LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", action="store_true", help="run only tests that carry acceptance cases, and report case by case"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger(read_cases())
    # programs that tests start are to hear Ctrl-C, also where who started the tests in the background ignores it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def carried(item: pytest.Item) -> list[str]:
    """The acceptance cases that a test carries, of all its `case` markers."""
    return [case for marker in item.iter_markers("case") for case in marker.args]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ledger = config.stash[LEDGER]
    for item in items:
        if unknown := ledger.unknown(carried(item)):
            raise pytest.UsageError(f"{item.nodeid}: no such acceptance case: {', '.join(unknown)} (see cases.toml)")
    if config.getoption("--cases"):
        config.hook.pytest_deselected(items=[item for item in items if not carried(item)])
        items[:] = [item for item in items if carried(item)]


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        for marker in item.iter_markers("case"):
            for case in marker.args:
                session.config.stash[LEDGER].carry(case, item.nodeid, **marker.kwargs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or not report.passed:  # set-up and teardown say something only when they go wrong
        outcome = "failed" if hasattr(report, "wasxfail") else report.outcome
        item.config.stash[LEDGER].record(carried(item), item.nodeid, outcome)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What benchmarks have recorded, before the last line of the summary."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "benchmark":
                terminalreporter.write_line(f"benchmark {value}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Print the report after pytest's own summary, so that it ends with one line for each specification."""
    yield
    if session.config.getoption("--cases"):
        for line in session.config.stash[LEDGER].lines():
            print(line)  # noqa: T201  the report is what was asked for


@pytest.fixture(autouse=True)
def restored_logs() -> Iterator[None]:
    """A test that configures logs leaves none that write to what was captured of it."""
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


def read_crds() -> list[dict[str, Any]]:
    """The CRDs that we ship."""
    folder = Path(__file__).parent.parent / "manifests" / "crds"
    documents = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    return [document for document in documents if document["kind"] == "CustomResourceDefinition"]


@pytest.fixture(scope="session")
def crds() -> list[dict[str, Any]]:
    return read_crds()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A kube-apiserver and its etcd with our CRDs, for the whole run; they die with it."""
    # pages come from etcd, where a test can make the server forget them, and not from snapshots of its cache
    flag = "kube-apiserver=--feature-gates=ListFromCacheSnapshot=false"
    yield from start_control_plane("minimal", Wishes(flags=(flag,)))


@pytest.fixture(scope="session")
def control_plane_with_controllers() -> Iterator[ControlPlane]:
    """The same with kube-controller-manager, which collects garbage and empties namespaces."""
    yield from start_control_plane("controllers", Wishes(extras=("controller-manager",)))


def remove_leftovers(folder: Path) -> None:
    """Data of runs that were killed: their processes died with them, their files did not (Linux, as the cluster)."""
    for left in folder.glob("pytest-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture
def built() -> None:
    """For tests that start a control plane themselves."""
    need_built(Wishes())


@pytest.fixture
def kubectl() -> str:
    """The path of a kubectl."""
    return find_kubectl()


def start_control_plane(name: str, wishes: Wishes) -> Iterator[ControlPlane]:
    need_built(wishes)
    data = default_data(f"pytest-{os.getpid()}-{name}")
    remove_leftovers(data.parent)
    plane = ControlPlane(data, tied=True)
    plane.up(wishes)
    for crd in read_crds():
        answer = plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert answer.status == 201, answer
    yield plane
    plane.down()

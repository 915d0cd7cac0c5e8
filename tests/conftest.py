"""Fixtures and hooks for all tests: shared control planes, CRDs, and the acceptance cases, which are checked at
collection and reported by `pytest --cases`."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
import yaml

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import default_data
from tests import audit
from tests.cases import CaseError, Ledger, read_cases, read_floor, write_floor
from tests.needs import find_kubectl, need_built

# No deadline, because the machine may be busy; derandomized in CI, so that one commit always has one result.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs that tests start are not kept in the home of the user."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", action="store_true", help="run only tests of acceptance cases, report each, and fail below the floor"
    )
    parser.addoption("--cases-floor", action="store_true", help="the same, and make what is reached the floor")
    parser.addoption("--cases-too", action="store_true", help="run all tests, and fail below the floor of the cases")
    parser.addoption("--slow", action="store_true", help="run also the tests that are marked as slow")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger(read_cases())
    config.pluginmanager.register(Recorder(config.stash[LEDGER]))
    config.option.cases |= config.option.cases_floor
    # A shell that starts the tests in the background makes them ignore SIGINT; child processes would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def carried(item: pytest.Item) -> list[str]:
    """The clauses of acceptance cases named by all `case` markers of a test."""
    ledger = item.config.stash[LEDGER]
    try:
        return [clause for mark in item.iter_markers("case") for clause in ledger.clauses_of(*mark.args, **mark.kwargs)]
    except (CaseError, TypeError) as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    clauses = {item: carried(item) for item in items}
    if not config.option.slow:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    if config.option.cases:
        config.hook.pytest_deselected(items=[item for item in items if not clauses[item]])
        items[:] = [item for item in items if clauses[item]]


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        session.config.stash[LEDGER].carry(carried(item), item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage() -> Iterator[None]:
    """Sockets and files that a module leaves open are reported in this module, and not in a later one."""
    yield
    gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the clauses to the report, because pytest-xdist counts it in another process."""
    report = yield
    vars(report)["clauses"] = carried(item)
    return report


class Recorder:
    """Records test results in the ledger, in the process that receives the reports of all workers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:  # the results of set-up and teardown matter only when they fail
            outcome = "failed" if hasattr(report, "wasxfail") else report.outcome
            clauses = vars(report).get("clauses", ())  # the report of a worker that died has none
            self._ledger.record(clauses, report.nodeid, outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the properties that benchmarks have recorded, and the acceptance cases, before the last line."""
    report_benchmarks(terminalreporter)
    if reports_cases(config):
        report_cases(terminalreporter.write_line, config)


def report_benchmarks(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "benchmark":
                terminalreporter.write_line(f"benchmark {value}")


def reports_cases(config: pytest.Config) -> bool:
    """Whether this process received the reports of a run that was asked for the acceptance cases."""
    asked = config.option.cases or config.option.cases_too
    return bool(asked and not config.option.collectonly and not hasattr(config, "workerinput"))


def report_cases(write: Callable[[str], None], config: pytest.Config) -> None:
    """Each case with its tests if only they ran, else what is not shown; then a line for each specification."""
    ledger = config.stash[LEDGER]
    for line in ledger.lines() if config.option.cases else [*ledger.not_shown(), *ledger.totals()]:
        write(line)
    if config.option.cases_floor:
        write_floor(ledger.tallies())
        return
    for line in ledger.below(read_floor()):
        write(line)
    if ledger.above(read_floor()):
        write("more is shown than before: `make cases-floor`, and commit it")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that shows fewer acceptance cases than the floor."""
    if not reports_cases(session.config) or session.config.option.cases_floor:
        return
    if session.exitstatus == pytest.ExitCode.OK and session.config.stash[LEDGER].below(read_floor()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def restored_logs() -> Iterator[None]:
    """Restore the log configuration after each test, because handlers would write to a closed capture stream."""
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


def read_crds() -> list[dict[str, Any]]:
    """The CRDs in `manifests/crds`."""
    folder = Path(__file__).parent.parent / "manifests" / "crds"
    documents = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    return [document for document in documents if document["kind"] == "CustomResourceDefinition"]


@pytest.fixture(scope="session")
def crds() -> list[dict[str, Any]]:
    return read_crds()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A kube-apiserver and its etcd with our CRDs, shared by the whole run and stopped at its end."""
    # Pages of a list come from etcd, where a test can compact them, instead of snapshots of the watch cache.
    flag = "kube-apiserver=--feature-gates=ListFromCacheSnapshot=false"
    yield from start_control_plane("minimal", ClusterOptions(flags=(flag, *audit.flags(data_of("minimal")))))


@pytest.fixture(scope="session")
def control_plane_with_controllers() -> Iterator[ControlPlane]:
    """A control plane with kube-controller-manager, which runs garbage collection and namespace deletion."""
    yield from start_control_plane("controllers", ClusterOptions(extras=("controller-manager",)))


def remove_leftovers(folder: Path) -> None:
    """Remove the data of killed runs, whose processes are gone but whose files remain (reads /proc: Linux only)."""
    for left in folder.glob("pytest-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture
def built() -> None:
    """Requires the binaries of a control plane, for tests that start one themselves."""
    need_built(ClusterOptions())


@pytest.fixture
def kubectl() -> str:
    """The path of a kubectl binary."""
    return find_kubectl()


def data_of(name: str) -> Path:
    """The data directory of a control plane of this run."""
    return default_data(f"pytest-{os.getpid()}-{name}")


def start_control_plane(name: str, options: ClusterOptions, *, crds: bool = True) -> Iterator[ControlPlane]:
    """A control plane with our CRDs, or without `crds` a new cluster. Stopped when the fixture is."""
    need_built(options)
    data = data_of(name)
    remove_leftovers(data.parent)
    plane = ControlPlane(data, die_with_parent=True)
    plane.up(options)
    for crd in read_crds() if crds else ():
        answer = plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert answer.status == 201, answer
    yield plane
    plane.down()

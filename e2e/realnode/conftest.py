"""Fixtures `cluster` and `proof`, the choice of tests, and the report that is written at the end."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from e2e.cluster.places import ClusterError
from e2e.realnode import report
from e2e.realnode.cluster import RealCluster
from e2e.realnode.faults import Scene
from e2e.realnode.images import build
from e2e.realnode.proof import Proof

HERE = Path(__file__).parent
OUTCOME = pytest.StashKey[pytest.TestReport]()
LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frameworks", choices=("", "full"), default="", help="full: also those of several GB")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "images(name, ...): the images that a test needs, which are built before")
    config.addinivalue_line("markers", "full: needs a framework of several GB; runs with --frameworks=full")
    config.stash[LEFT_OUT] = []
    signal.signal(signal.SIGTERM, _interrupt)  # so that the node is stopped then, too
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell sets it for what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # make sends it again, and the node has to be stopped
    raise KeyboardInterrupt


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.frameworks != "full":
        left_out = [item for item in items if item.get_closest_marker("full")]
        config.stash[LEFT_OUT] += [item.name for item in left_out]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    made = yield
    if made.when == "call" or not made.passed:
        item.stash[OUTCOME] = made
    return made


def pytest_runtestloop(session: pytest.Session) -> None:
    """Builds the images of the chosen tests. If none was built before, this takes longer than a test may."""
    chosen = [item for item in session.items if HERE in Path(item.path).parents]
    if not chosen or session.config.option.collectonly:
        return
    named = {name for item in chosen for mark in item.iter_markers("images") for name in mark.args}
    try:
        for name in sorted({"base", *named}):
            build(name)
    except ClusterError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RealCluster]:
    """The node with the operator, which is stopped in any case."""
    one = RealCluster()
    try:
        one.up()
    except ClusterError as error:
        one.down(report.FOLDER / "logs")
        pytest.exit(str(error), returncode=1)
    except BaseException:
        one.down()
        raise
    try:
        yield one
    finally:
        one.down(report.FOLDER / "logs")


@pytest.fixture
def proof(cluster: RealCluster, request: pytest.FixtureRequest) -> Iterator[Proof]:
    """A namespace for one test, and its record in the report."""
    for mark in request.node.iter_markers("images"):
        for image in mark.args:
            cluster.load(image)
    one = Proof(cluster, request.node.name.removeprefix("test_"))
    one.open()
    yield one
    outcome = request.node.stash.get(OUTCOME, None)
    if outcome is None:  # interrupted: the node is about to be stopped with all that it has
        one.stop()
        return
    result, text = ("passed", "") if outcome.passed else ("failed", message_of(outcome))
    record = one.close(title_of(request.node), result, text)
    report.write_record(Path(request.node.path).stem, request.node.name, record)


def message_of(outcome: pytest.TestReport) -> str:
    """What pytest shows of a failure without the test's source, that is from the first of the lines marked E."""
    text = outcome.longreprtext
    return text[text.find("\nE ") + 1 :]


def title_of(item: Any) -> str:
    """The first line of a test's docstring, else its name as words, and the parameters."""
    documented = (item.function.__doc__ or "").strip().splitlines()
    title = documented[0].rstrip(".") if documented else item.originalname.removeprefix("test_").replace("_", " ")
    return f"{title} ({item.callspec.id})" if hasattr(item, "callspec") else title


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        report.begin()


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        chosen = session.config.option.keyword or any("::" in argument for argument in session.config.args)
        report.forget({(Path(item.path).stem, item.name) for item in session.items}, whole=not chosen)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.write_line(f"left out without FRAMEWORKS=full: {', '.join(left_out)}")
    if page := report.render():
        terminalreporter.write_line(f"report: {page}")


@pytest.fixture
def scene(cluster: RealCluster, proof: Proof) -> Scene:
    """For tests of faults."""
    return Scene(cluster, proof)

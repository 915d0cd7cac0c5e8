"""Keeps a run of `trainop run` in its folder (`trainop.kept`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from trainop.errors import StartError
from trainop.kept.folder import JobName, Run, create_run, limits, prune
from trainop.kept.recorder import Recorder
from trainop.local import private_files
from trainop.local.cluster import LocalCluster
from trainop.run.check import JOB_TYPES, Job
from trainop.run.documents import BadInputError
from trainop.run.interrupts import Interrupts
from trainop.runtime import EVENTS, NODES, PODS, SERVICES

TABLES = frozenset(
    {EVENTS.plural, NODES.plural, PODS.plural, SERVICES.plural, "jobs.batch", "podgroups.scheduling.volcano.sh"}
    | {str(each.resource) for each in JOB_TYPES.values()}
)
"""What commands read about jobs. Secrets and ConfigMaps are not kept."""


class Keeping:
    """A run that is being kept."""

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self.code = 1
        """The exit code."""
        self.recorder = Recorder(run, TABLES, self._fail)

    @property
    def name(self) -> str:
        return self._run.name

    @property
    def run(self) -> Run:
        return self._run

    @property
    def lasts(self) -> bool:
        """Whether everything so far could be written."""
        return not self.recorder.broken

    def _fail(self, why: str) -> None:
        self._say(f"the rest of run {self.name} is not kept: {why}")

    def join(self, cluster: LocalCluster) -> None:
        """Lets other processes reach the cluster, which has started, by the name of the run."""
        with suppress(OSError):
            text = cluster.kubeconfig.read_text(encoding="utf-8")
            private_files.replace_text(self._run.kubeconfig, text)

    def close(self) -> None:
        """The rest is written before the run counts as ended."""
        self.recorder.close()
        try:
            self._run.finish(self.code)
        except OSError as error:
            if self.lasts:
                self._fail(str(error))

    def advice(self) -> str:
        """What to do next."""
        commands = ("logs", "describe", "rerun") if not self.code else ("why", "logs", "rerun")
        return f"run {self.name} is kept: " + "; ".join(f"trainop {each} {self.name}" for each in commands)


@contextmanager
def kept_run(
    command: Sequence[str] | None, jobs: Sequence[Job], interrupts: Interrupts, say: Callable[[str], None]
) -> Iterator[Keeping | None]:
    """Keeps what happens in the `with` block, which sets `code`; None if that is impossible, which is said."""
    keeping = None if command is None else _begin(command, jobs, say)
    if keeping is None:
        yield None
        return
    try:
        yield keeping
    except BaseException as error:  # an interruption, too
        keeping.code = interrupts.code or (2 if isinstance(error, BadInputError) else 1)
        raise
    finally:
        keeping.close()


def _begin(command: Sequence[str], jobs: Sequence[Job], say: Callable[[str], None]) -> Keeping | None:
    try:
        count, size = limits()
        if not count:
            return None
        names = [JobName(d.api_version, d.kind, d.key.namespace, d.key.name) for d, _ in jobs]
        keeping = Keeping(create_run(names[0].name, command, names), say)
    except (OSError, ValueError) as error:
        say(f"this run is not kept: {error}")
        return None
    keeping.recorder.submit(lambda: _prune(count, size))
    return keeping


def _prune(count: int, size: int) -> None:
    with suppress(OSError, StartError):
        prune(count, size)

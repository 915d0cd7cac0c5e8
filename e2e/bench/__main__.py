"""Compares training operators under load.

python -m e2e.bench build                          builds the programs, once (needs Go)
python -m e2e.bench run [--minutes 100]            all scenarios; no repetition begins after so many minutes
python -m e2e.bench run --scenario s1 --session x  one scenario; runs with the same name form one session
python -m e2e.bench run --scenario s1,s6 --only trainop,training-operator-tuned --repetitions 1
python -m e2e.bench quick                          smaller sizes, under five minutes
python -m e2e.bench run --scenario count-s1        API requests per job, from the audit log
python -m e2e.bench run --scenario mpi             all scenarios of MPIJob, with both transports
python -m e2e.bench report [--session x]           table and charts, by default of the latest session
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from e2e.bench.cluster import NEEDED
from e2e.bench.floor import FLOORS
from e2e.bench.operators import HERE, OPERATORS, build_compared_peers
from e2e.bench.processes import cancel_on_sigterm
from e2e.bench.programs import PROGRAMS
from e2e.bench.report import write
from e2e.bench.runs import Plan, read_records, run
from e2e.bench.scenarios import QUICK, SCENARIOS
from e2e.bench.targets import FLOOR_OF, JOB, LEADER, MPI_RIVALS, OURS, STOCK, rivals
from e2e.cluster.build import NoGoError, build
from e2e.cluster.places import ClusterError

REPORT = HERE / "report"
FOLDERS = {"run": REPORT, "report": REPORT, "quick": REPORT / "results" / "quick"}
EXIT_NO_GO = 3
MINUTES = 100.0
EXTRA_OPERATORS = {
    "s1": (JOB, LEADER, *(FLOOR_OF[each] for each in (OURS, JOB, LEADER))),
    "s2": (JOB,),
    "s3": (JOB,),
    "s4": (JOB,),
    "s6": (JOB,),
    "services": (JOB,),
    "ssh-s1": (FLOOR_OF["trainop-ssh"],),
    "count-s1": (JOB, LEADER),
    "count-s2": (JOB, LEADER),
}
"""Operators measured in addition to ours and the tuned peer, by scenario."""
QUICK_EXTRA = {"s1": (JOB,), "s2": (JOB,), "count-s1": (JOB,)}
ONCE = {"s1": (STOCK,), "s2": (LEADER, STOCK)}
"""Operators that are measured once only, for orientation."""
COUNTED_SCENARIOS = ("count-s1", "count-s2", "count-ssh-s1", "count-ssh-s2", "count-exec-s1", "count-exec-s2")
QUICK_COUNTED = ("count-s1", "count-ssh-s1", "count-exec-s1")
ALL = (*SCENARIOS, *PROGRAMS, *COUNTED_SCENARIOS)
MPI = "mpi"
"""Stands for all scenarios of MPIJob."""
MPI_SCENARIOS = tuple(scenario for scenario in ALL if any(f"{transport}-" in scenario for transport in MPI_RIVALS))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build")
    for name in ("run", "quick", "report"):
        command = commands.add_parser(name)
        command.add_argument("--session", default="", help="name of the results file (default: the time)")
        command.add_argument("--report", type=Path, default=FOLDERS[name], help="folder for results, table and charts")
        if name == "report":
            continue
        command.add_argument("--only", default="", help=f"comma-separated: {', '.join((*OPERATORS, *FLOORS))}")
        command.add_argument("--scenario", default="", help=f"{MPI}, or comma-separated: {', '.join(ALL)}")
        command.add_argument("--repetitions", type=int, default=0, help="of each scenario (default: its own number)")
        command.add_argument("--minutes", type=float, default=MINUTES)
        command.add_argument("--sizes", default="", help='for all scenarios, as {"jobs": 20}')
    return parser.parse_args()


def plans(options: argparse.Namespace) -> list[Plan]:
    """The plans of a command: each scenario with its operators, repetitions and sizes."""
    quick = options.command == "quick"
    chosen = MPI_SCENARIOS if options.scenario == MPI else tuple(filter(None, options.scenario.split(",")))
    only = tuple(filter(None, options.only.split(",")))
    given = msgspec.json.decode(options.sizes) if options.sizes else {}
    made = []
    for scenario in chosen or ((*QUICK, *QUICK_COUNTED) if quick else ALL):
        operators = only or (*_pair(scenario), *(QUICK_EXTRA if quick else EXTRA_OPERATORS).get(scenario, ()))
        sizes = QUICK.get(scenario.rpartition("-")[2], {}) if quick else {}
        repetitions = 1 if quick else options.repetitions or _repetitions(scenario)
        once = () if only or quick else ONCE.get(scenario, ())
        made.append(Plan(operators, scenario, repetitions, {**sizes, **given}, once))
    return made


def _pair(scenario: str) -> tuple[str, ...]:
    return (PROGRAMS[scenario].operator,) if scenario in PROGRAMS else rivals(scenario)


def _repetitions(scenario: str) -> int:
    return SCENARIOS[scenario].repetitions if scenario in SCENARIOS else 1


async def measure(options: argparse.Namespace, session: Path) -> None:
    cancel_on_sigterm()
    await run(plans(options), session, options.minutes)


def find_session(options: argparse.Namespace) -> Path:
    """The results file that a command writes or reads."""
    folder: Path = options.report / "results"
    if options.session:
        return folder / f"{options.session}.jsonl"
    if options.command == "report":
        sessions = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        return sessions[-1] if sessions else sys.exit(f"there are no results in {folder}")
    return folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}.jsonl"


def work(options: argparse.Namespace) -> None:
    if options.command == "build":
        build(NEEDED)
        build_compared_peers()
        return
    session = find_session(options)
    if options.command != "report":
        build(NEEDED)
        build_compared_peers()
        asyncio.run(measure(options, session))
    print(write(read_records(session), options.report))


def main() -> None:
    options = parse()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        work(options)
    except NoGoError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_NO_GO)
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

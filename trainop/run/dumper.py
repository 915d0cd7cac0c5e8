"""Asks the Python processes in the pods of a job where they stand: by py-spy, or by faulthandler where the job allows
it. `trainop stacks` does so on request, and `trainop run` for a job that has fallen silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trainop.explain.stacks import Process, read_faulthandler, read_py_spy
from trainop.run.pod_exec import Output, run_in_pod
from trainop.runtime import PODS, ApiError, Client, Json
from trainop.runtime.lowlevel import ClusterConfig, Request

CONCURRENT = 8
"""Pods that are asked at the same time."""

PATIENCE = 30.0
"""Seconds for one pod."""

SIGNAL_VARIABLE = "TRAINOP_STACKS_SIGNAL"
"""A variable of the container by which a job allows this signal to be sent: its program has registered it with
`faulthandler.register`. Without a handler, the signal would end the program."""

_DUMP_WAIT = 1.0
"""Seconds for a dump of faulthandler to reach the log."""

_SCRIPT = """\
PATH="$PATH${1:+:$1}"
k=${TRAINOP_POD_UID:+TRAINOP_POD_UID=$TRAINOP_POD_UID}
for d in /proc/[0-9]*; do
  p=${d#/proc/}
  case "$(readlink "$d/exe" 2>/dev/null)" in *python*) ;; *) continue ;; esac
  v=$(tr '\\0' '\\n' <"$d/environ" 2>/dev/null) || continue
  echo "$v" | grep -qxF "HOSTNAME=$HOSTNAME" || continue
  echo "$v" | grep -qxF "${k:-HOSTNAME=$HOSTNAME}" || continue
  echo "@process $p"
  echo "$v" | grep -E '^(RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|PADDLE_TRAINER_ID)='
  echo "@stack"
  if command -v py-spy >/dev/null 2>&1 && py-spy dump --nonblocking --pid "$p" --json 2>/tmp/.trainop-stacks.$$; then
    continue
  fi
  s=$(echo "$v" | sed -n 's/^TRAINOP_STACKS_SIGNAL=//p')
  if [ -n "$s" ]; then kill -s "${s#SIG}" "$p" && echo "@signalled"; continue; fi
  command -v py-spy >/dev/null 2>&1 || { echo "@missing"; continue; }
  echo "@failed $(tail -n 1 /tmp/.trainop-stacks.$$)"
done
rm -f /tmp/.trainop-stacks.$$
"""
"""Prints rank and stack of each Python process that belongs to the pod. Needs a POSIX shell in the image. `$1` is one
more folder in which py-spy is looked for. Where pods see all processes of a machine, another pod may have the same
name, and `TRAINOP_POD_UID` (`trainop/local`) tells them apart."""

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PADDLE_TRAINER_ID")

_ALLOW = f"call faulthandler.register(signal.SIGUSR1) and set {SIGNAL_VARIABLE}=USR1"

RANK_VARIABLES = ("RANK", "PROCESS_ID", "PADDLE_TRAINER_ID")
"""Variables by which PyTorchJob and XGBoostJob, JAXJob, and Paddle tell a replica its rank."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What to do where stacks cannot be read."""

    missing: str
    """There is no py-spy."""
    denied: str
    """py-spy may not read the process."""


IN_PODS = Hints(
    "py-spy is not in the image, and the job allows no signal for faulthandler; add py-spy to the image, or " + _ALLOW,
    "it needs the capability SYS_PTRACE",
)
LOCALLY = Hints(
    "py-spy is not installed, and the job allows no signal for faulthandler: pip install 'trainop[stacks]', or "
    + _ALLOW,
    "it needs root, or sysctl kernel.yama.ptrace_scope=0",
)


class Target(Protocol):
    """A running replica."""

    @property
    def name(self) -> str: ...
    @property
    def pod(self) -> Json: ...
    @property
    def rank(self) -> int | None: ...


def rank_of(pod: Json) -> int | None:
    """The rank in the variables of a pod's first container; None if it has none."""
    containers = pod["spec"].get("containers") or [{}]
    values: dict[str, Any] = {each.get("name"): each.get("value") for each in containers[0].get("env") or ()}
    for name in RANK_VARIABLES:
        text = values.get(name)
        if isinstance(text, str) and text.isdecimal() and len(text) < 10:
            return int(text)
    return None


class Dumper:
    """Asks pods for the stacks of their processes."""

    def __init__(
        self,
        client: Client,
        config: ClusterConfig | None,
        *,
        container: str = "",
        search: str = "",
        hints: Hints = IN_PODS,
    ) -> None:
        """`container`: default is the first of each pod. `search`: a folder of the containers that may have py-spy.
        Without `config`, the cluster is not reached over the network, and no stack is found."""
        self._client = client
        self._config = config
        self._container = container
        self._search = search
        self._hints = hints
        self._slots = asyncio.Semaphore(CONCURRENT)

    async def dump(self, replicas: Sequence[Target]) -> list[Process]:
        """The main processes of all replicas, one for each rank."""
        found = await asyncio.gather(*(self._dump_one(each) for each in replicas))
        return [process for processes in found for process in processes]

    async def _dump_one(self, replica: Target) -> list[Process]:
        metadata = replica.pod["metadata"]
        container = self._container or replica.pod["spec"]["containers"][0]["name"]
        if (config := self._config) is None:
            return [_unknown(replica, "commands can be run only over the network")]
        async with self._slots:
            began = time.time()
            try:
                output = await run_in_pod(
                    config,
                    metadata["namespace"],
                    metadata["name"],
                    container,
                    ["sh", "-c", _SCRIPT, "stacks", self._search],
                    within=PATIENCE,
                )
                processes = list(read_output(replica, output, self._hints))
                if any(each.problem == "@signalled" for each in processes):
                    processes = await self._read_dumps(replica, container, processes, began)
            except (ApiError, ConnectionError, TimeoutError) as error:
                return [_unknown(replica, str(error))]
        return processes

    async def _read_dumps(
        self, replica: Target, container: str, processes: list[Process], began: float
    ) -> list[Process]:
        """Reads the dumps from the log. If several processes write to one log, their dumps cannot be told apart."""
        await asyncio.sleep(_DUMP_WAIT)
        metadata = replica.pod["metadata"]
        since = str(int(time.time() - began) + 2)
        query = {"container": container, "sinceSeconds": since, "tailLines": "2000"}
        path = PODS.path(metadata["namespace"], metadata["name"], "log")
        answer = await self._client.request(Request("GET", path, query))
        frames = read_faulthandler(answer.body.decode(errors="replace"))
        problem = "" if frames else "the signal was sent, but faulthandler wrote nothing to the log"
        return [
            replace(each, frames=frames, problem=problem) if each.problem == "@signalled" else each
            for each in processes
        ]


def _unknown(replica: Target, problem: str) -> Process:
    return Process(replica.name, (), problem, (replica.rank or 0, replica.name))


def read_output(replica: Target, output: Output, hints: Hints = IN_PODS) -> Iterator[Process]:
    """The processes in the output of the script. Of several with one rank, such as loaders of data, the first one; if
    some have a rank, those without one, such as an agent of torchrun, are left out."""
    if output.code is None:
        yield _unknown(replica, f"no answer within {PATIENCE:g} s")
        return
    found: dict[int | None, Process] = {}
    for section in output.stdout.decode(errors="replace").split("@process ")[1:]:
        head, _, stack = section.partition("@stack\n")
        variables = dict(line.split("=", 1) for line in head.splitlines()[1:] if "=" in line)
        rank = _rank(variables)
        found.setdefault(rank, _process(replica, rank, stack.strip(), hints))
    if len(found) > 1:
        found.pop(None, None)
    if not found:
        said = output.stderr.decode(errors="replace").strip().splitlines()
        why = f": {said[-1]}" if said and output.code else ""
        yield _unknown(replica, f"no Python process was found in the container{why}")
    yield from found.values()


def _rank(variables: dict[str, str]) -> int | None:
    for name in _RANKS:
        text = variables.get(name, "")
        if text.isdecimal() and len(text) < 10:
            return int(text)
    return None


def _process(replica: Target, rank: int | None, stack: str, hints: Hints) -> Process:
    name = replica.name if rank is None else f"rank {rank}"
    process = Process(name, order=(replica.rank or 0 if rank is None else rank, replica.name))
    if stack.startswith("@missing"):
        return replace(process, problem=hints.missing)
    if stack.startswith("@signalled"):
        return replace(process, problem="@signalled", signalled=True)
    if stack.startswith("@failed"):
        hint = f"; {hints.denied}" if "ermission" in stack or "ptrace" in stack.lower() else ""
        return replace(process, problem=f"py-spy failed: {stack.removeprefix('@failed').strip()}{hint}")
    try:
        frames = read_py_spy(stack)
    except ValueError:
        return replace(process, problem="py-spy printed something that is not understood")
    return replace(process, frames=frames, problem="" if frames else "it runs no Python code")

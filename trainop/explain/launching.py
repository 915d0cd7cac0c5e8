"""Launch commands that contradict what the operator sets for the kind of job, as a table of rules.

Sources: PyTorch `torch/distributed/run.py` (each flag has a variable `PET_*`, which the flag overrides), Open MPI
mpirun(1), MPICH Hydra (`HYDRA_HOST_FILE`), `horovod/runner/launch.py`, `accelerate/commands/launch.py`,
`deepspeed/launcher/runner.py`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainop.runtime import Json

MAX_SCRIPT = 65_536
"""Characters of a shell script that are looked at."""

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}
_PREFIXES = {"exec", "time", "nohup", "then", "do", "else"}
_PYTHON = re.compile(r"python[\d.]*")
_MPIRUN = re.compile(r"(mpirun|mpiexec)(\.\w+)?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_TORCH_MODULES = {"torch.distributed.run", "torch.distributed.launch"}


class Container(NamedTuple):
    """A container of a job's template, with its field path and the role that the template belongs to."""

    path: str
    role: str
    raw: Json


def containers(job: Json) -> Iterator[Container]:
    """Those of all pod templates, init containers excluded. Skips whatever is not of the form that Kubernetes has."""
    for path, role, template in templates(job):
        pod = template.get("spec")
        found = pod.get("containers") if isinstance(pod, dict) else None
        for index, each in enumerate(found if isinstance(found, list) else ()):
            if isinstance(each, dict):
                yield Container(f"{path}.spec.containers[{index}]", role, each)


def templates(job: Json) -> Iterator[tuple[str, str, Json]]:
    """The pod templates of a job: field path, role, template."""
    yield from _templates(job.get("spec"), "spec", "")


def _templates(value: Any, path: str, role: str, levels: int = 4) -> Iterator[tuple[str, str, Json]]:
    if isinstance(value, dict) and levels:
        for name, member in value.items():
            if name == "template" and isinstance(member, dict):
                yield f"{path}.template", role, member
            else:
                yield from _templates(member, f"{path}.{name}", str(name), levels - 1)
    elif isinstance(value, list) and levels:
        for index, item in enumerate(value):
            yield from _templates(item, f"{path}[{index}]", role, levels - 1)


def words_of(container: Json) -> list[str]:
    """Command and arguments."""
    parts = (container.get(name) for name in ("command", "args"))
    return [each for part in parts if isinstance(part, list) for each in part if isinstance(each, str)]


def commands_of(container: Json) -> Iterator[list[str]]:
    """The command, or those of the script that a shell is given with `-c`. What no shell could read is skipped."""
    words = words_of(container)
    if not words:
        return
    flags = [index for index, word in enumerate(words[:4]) if re.fullmatch(r"-[a-z]*c", word)]
    if posixpath.basename(words[0]) not in _SHELLS or not flags:
        yield _bare(words)
        return
    script = " ".join(words[flags[0] + 1 : flags[0] + 2])[:MAX_SCRIPT].replace("\\\n", " ")
    for line in re.split(r"[\n;|&]+", script):
        try:
            if found := _bare(shlex.split(line, comments=True)):
                yield found
        except ValueError:
            continue


def _bare(words: Sequence[str]) -> list[str]:
    start = 0
    while start < len(words) and (words[start] in _PREFIXES or re.match(r"[A-Za-z_]\w*=", words[start])):
        start += 1
    return list(words[start:])


# What a command starts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher's command in its job."""

    kind: str
    spec: Json
    role: str
    """In lower case."""
    pods: int
    """Replicas of all roles."""
    workers: int
    program: str
    words: Sequence[str]

    def value(self, *names: str) -> str | None:
        """The value of a flag in the forms `--name value`, `--name=value`, with dashes or underscores; "" without
        value, None if it is not given or only known when it runs (`$VARIABLE`)."""
        for index, word in enumerate(self.words):
            name, has_value, value = word.partition("=")
            if name.startswith("-") and name.lstrip("-").replace("_", "-") in names:
                following = self.words[index + 1] if index + 1 < len(self.words) else ""
                found = value if has_value else following
                return None if "$" in found else found
        return None

    def has(self, *names: str) -> bool:
        flags = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in self.words if word.startswith("-")}
        return not flags.isdisjoint(names)

    def number(self, *names: str) -> int | None:
        value = self.value(*names)
        return int(value) if value and _NUMBER.fullmatch(value) else None


def _program(words: Sequence[str]) -> str:
    """`torchrun`, `mpirun`, `hydra` (MPICH's), `horovodrun`, `accelerate`, `deepspeed`; empty for anything else."""
    name = posixpath.basename(words[0]) if words else ""
    module = words[2] if len(words) > 2 and words[1] == "-m" and _PYTHON.fullmatch(name) else ""
    if name == "torchrun" or module in _TORCH_MODULES:
        return "torchrun"
    if name in {"mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"}:
        return "hydra"
    if _MPIRUN.fullmatch(name):
        return "mpirun"
    if (name == "accelerate" and words[1:2] == ["launch"]) or module == "accelerate.commands.launch":
        return "accelerate"
    return name if name in {"horovodrun", "deepspeed"} else ""


class Rule(NamedTuple):
    """Says `message` and what would be `right` of a launch that is `wrong`."""

    programs: str
    kinds: Callable[[str], bool]
    wrong: Callable[[Launch], bool]
    message: str
    right: str


def _is(*kinds: str) -> Callable[[str], bool]:
    return lambda kind: kind in kinds


def _is_not(*kinds: str) -> Callable[[str], bool]:
    return lambda kind: kind not in kinds


def _counts_differ(launch: Launch) -> bool:
    nodes = launch.number("nnodes")
    return "elasticPolicy" not in launch.spec and nodes is not None and nodes != launch.pods


def _processes_differ(launch: Launch) -> bool:
    """Words such as `gpu` are only known on the node."""
    asked, said = launch.number("nproc-per-node"), str(launch.spec.get("nprocPerNode", 1))
    return asked is not None and _NUMBER.fullmatch(said) is not None and asked != int(said)


def _is_local(address: str | None) -> bool:
    return address is not None and re.split(r"[:,]", address)[0] in {"localhost", "127.0.0.1", "0.0.0.0"}  # noqa: S104


def _lacks_slots(launch: Launch) -> bool:
    """Whether Open MPI would refuse because it is asked for more processes than there are slots."""
    asked, slots = launch.number("np", "n", "c"), launch.spec.get("slotsPerWorker", 1)
    if asked is None or not isinstance(slots, int) or launch.spec.get("runLauncherAsWorker"):
        return False
    return (
        launch.workers > 0
        and asked > launch.workers * slots
        and not launch.has("oversubscribe", "map-by", "host", "H", "hostfile", "machinefile")
    )


_HOSTS = ("H", "host", "hosts", "f", "hostfile", "machinefile", "host-discovery-script")
_RENDEZVOUS = ("rdzv-endpoint", "rdzv-id", "rdzv-backend", "master-addr")

RULES = (
    Rule("torchrun", _is("PyTorchJob"), lambda it: it.pods > 1 and it.has("standalone"),
         "--standalone starts a group of its own in each of the {pods} pods", "leave it out"),
    Rule("torchrun", _is("PyTorchJob"), _counts_differ,
         "--nnodes={nnodes} contradicts the {pods} pods of the job", "leave it out: the operator sets PET_NNODES"),
    Rule("torchrun", _is("PyTorchJob"), _processes_differ,
         "--nproc-per-node={nproc} contradicts spec.nprocPerNode, from which WORLD_SIZE is computed",
         "set spec.nprocPerNode: {nproc} and leave the flag out"),
    Rule("torchrun", _is("PyTorchJob"), lambda it: it.pods > 1 and it.number("node-rank") is not None,
         "--node-rank is the same in each pod of the role", "leave it out: the operator sets PET_NODE_RANK"),
    Rule("torchrun", _is("PyTorchJob"),
         lambda it: it.pods > 1 and (_is_local(it.value("master-addr")) or _is_local(it.value("rdzv-endpoint"))),
         "the rendezvous is at localhost, where no other pod can reach it",
         "leave --master-addr and --rdzv-endpoint out: the operator sets PET_MASTER_ADDR or PET_RDZV_ENDPOINT"),
    Rule("torchrun", _is_not("PyTorchJob", "MPIJob"), lambda it: it.pods > 1 and not it.has(*_RENDEZVOUS),
         "torchrun gets no rendezvous in a {kind}, so that each of the {pods} pods trains alone", "use a PyTorchJob"),
    Rule("mpirun hydra horovodrun", _is_not("MPIJob"), lambda it: it.pods > 1 and not it.has(*_HOSTS),
         "{program} has no hosts in a {kind}, so that each of the {pods} pods runs alone", "use an MPIJob"),
    Rule("mpirun hydra horovodrun", _is("MPIJob"), lambda it: it.role == "worker" and it.workers > 1,
         "{program} in the workers starts a group in each", "start it in the Launcher"),
    Rule("mpirun hydra horovodrun", _is("MPIJob"),
         lambda it: it.role != "worker" and it.workers > 1 and _is_local(it.value("H", "host", "hosts")),
         "{program} runs on localhost only, not on the {workers} workers",
         "leave the hosts out, or name those in /etc/mpi/hostfile"),
    Rule("hydra", _is("MPIJob"),
         lambda it: it.role != "worker" and it.workers > 1 and not it.has(*_HOSTS)
         and it.spec.get("mpiImplementation", "OpenMPI") == "OpenMPI",
         "MPICH's {name} has no hosts: those of the job are given to Open MPI",
         "set spec.mpiImplementation: MPICH (v2beta1)"),
    Rule("horovodrun", _is("MPIJob"), lambda it: it.role != "worker" and it.workers > 1 and not it.has(*_HOSTS),
         "horovodrun has no hosts, and runs in the launcher only",
         "use mpirun, or --hostfile or --host-discovery-script of /etc/mpi"),
    Rule("mpirun", _is("MPIJob"), lambda it: it.role != "worker" and _lacks_slots(it),
         "-np {np} is more than the {workers} workers have slots", "raise the workers or spec.slotsPerWorker"),
    Rule("accelerate", lambda kind: True,
         lambda it: it.pods > 1 and not it.has("num-machines", "config-file", "machine-rank"),
         "accelerate launch takes each of the {pods} pods for the only machine",
         "give --num_machines, --machine_rank and --main_process_ip from the variables, or start the script directly"),
    Rule("deepspeed", lambda kind: True,
         lambda it: max(it.pods, it.workers) > 1 and not it.has("hostfile", "H", "no-ssh", "launcher"),
         "deepspeed without a hostfile uses this pod only, not the {pods} of the job",
         "give --hostfile=/etc/mpi/hostfile in an MPIJob; start the script with torchrun in a PyTorchJob"),
)  # fmt: skip
"""Each is about one mistake. A launch may break several."""


def find_contradictions(job: Json) -> Iterator[str]:
    """One line `field: what is wrong; what would be right` for each rule that a container breaks. Never raises for a
    job that is valid by its schema."""
    kind, spec = str(job.get("kind")), job["spec"] if isinstance(job.get("spec"), dict) else {}
    roles = _roles(spec)
    pods, workers = sum(roles.values()), roles.get("worker", 0)
    for container in containers(job):
        field = "command" if container.raw.get("command") else "args"
        for words in commands_of(container.raw):
            if program := _program(words):
                own = _own_words(words)
                launch = Launch(kind, spec, container.role.lower(), pods, workers, program, own)
                for line in _broken(launch):
                    yield f"{container.path}.{field}: {line}"


def _own_words(words: Sequence[str]) -> Sequence[str]:
    """Without the Python script that is started, whose flags are its own."""
    ends = (index for index, word in enumerate(words) if word.endswith(".py") or word == "--")
    return words[: next(ends, len(words))]


def _broken(launch: Launch) -> Iterator[str]:
    for rule in RULES:
        if launch.program in rule.programs.split() and rule.kinds(launch.kind) and rule.wrong(launch):
            facts = {
                "kind": launch.kind,
                "pods": launch.pods,
                "workers": launch.workers,
                "program": "mpirun" if launch.program == "hydra" else launch.program,
                "name": posixpath.basename(launch.words[0]),
                "nnodes": launch.number("nnodes"),
                "nproc": launch.number("nproc-per-node"),
                "np": launch.number("np", "n", "c"),
            }
            yield f"{rule.message.format(**facts)}; {rule.right.format(**facts)}"


def _roles(spec: Json) -> Mapping[str, int]:
    """Role in lower case -> replicas. Empty for a kind without a map of roles."""
    found: dict[str, int] = {}
    for name, value in spec.items():
        if name.endswith("ReplicaSpecs") and isinstance(value, dict):
            for role, each in value.items():
                count = each.get("replicas", 1) if isinstance(each, dict) else 0
                found[role.lower()] = count if isinstance(count, int) else 1
    return found


# On this machine ------------------------------------------------------------------------------------------------------


def find_missing_here(
    job: Json, is_command: Callable[[str, str], bool], is_file: Callable[[str, str], bool]
) -> Iterator[str]:
    """What the containers would not find as processes of this machine. `is_command` and `is_file` get a name and the
    working directory of the container, empty for the current one."""
    for path, _, container in containers(job):
        words, folder = words_of(container), container.get("workingDir")
        folder = folder if isinstance(folder, str) else ""
        mounts = _mounts(container)
        if not container.get("command"):
            yield (
                f"{path}: `trainop run` does not use the image {container.get('image')}, and its command is unknown; "
                "give the command that the image would start"
            )
            continue
        if words and "$(" not in words[0] and not words[0].startswith(mounts) and not is_command(words[0], folder):
            yield f"{path}.command: {words[0]} is not found on this machine; install it, or correct PATH or the name"
        script = _script(words)
        if script and not _is_mounted(script, folder, mounts) and not is_file(script, folder):
            yield f"{path}.command: {script} does not exist in {folder or 'this folder'}; images are not used here"


def _mounts(container: Json) -> tuple[str, ...]:
    found = container.get("volumeMounts")
    paths = [each.get("mountPath") for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return tuple(each for each in paths if isinstance(each, str) and each)


def _is_mounted(script: str, folder: str, mounts: tuple[str, ...]) -> bool:
    return bool(mounts) and posixpath.join(folder or "", script).startswith(mounts)


def _script(words: Sequence[str]) -> str:
    """The file that Python is given; empty if there is none, as with `-m` or `-c`, or if it has a variable."""
    if not words or not _PYTHON.fullmatch(posixpath.basename(words[0])):
        return ""
    for word in words[1:]:
        if word in {"-m", "-c", "-", "-W", "-X"}:
            return ""
        if not word.startswith("-"):
            return "" if "$" in word else word
    return ""

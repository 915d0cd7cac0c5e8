"""What the containers of an isolated run see of this machine: which files, and which variables of the user.

The root file system is read-only, and only the folder of the run is as the user has it. Home folders, temporary files
and sockets are hidden; of what is hidden, the Python environment is shown. `sandbox/isolation.py` enforces it.
"""

from __future__ import annotations

import os
import pwd
import re
import site
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainop.local.node.sandbox.filesystem import Mount

_HIDDEN = ("/run", "/home", "/root")
"""Replaced by empty directories: sockets of services, such as Docker's, and the files of users."""
_SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108  # replaced by the container's own
_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/boot", "/dev", "/proc", "/sys")

_VARIABLES = re.compile(
    "PATH|LANG|LANGUAGE|LC_.*|TZ|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_(PREFIX|DEFAULT_ENV)|PYTHON.*|OMP_.*|OMPI_.*|MKL_.*|"
    "OPENBLAS_.*|NUMEXPR_.*|KMP_.*|CUDA_.*|NVIDIA_.*|HIP_.*|ROCR_.*|NCCL_.*|GLOO_.*|UCX_.*|TORCH_.*|PYTORCH_.*|TF_.*|"
    "XLA_.*|JAX_.*|TRAINOP_READY_ADDRESSES"
)
"""Those of the user that containers get. Others may be tokens."""
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Isolation:
    """Absolute paths without symbolic links."""

    work: str
    """The only folder of the user in which containers write."""
    home: str
    hidden: tuple[str, ...]
    shown: tuple[str, ...]
    """Parts of what is hidden, and parts of the work folder, that containers read."""

    @classmethod
    def find(cls, work: Path, hide: Iterable[Path] = (), variables: Mapping[str, str] = os.environ) -> Isolation:
        """For a run in the folder `work`. `hide` are further folders that containers do not see.

        Raises `OSError` if the folder has what is to be protected.
        """
        work = work.resolve()
        home = Path(variables.get("HOME") or _home_of_user()).resolve()
        hidden = [Path(each).resolve() for each in (*_HIDDEN, *_SCRATCH, tempfile.gettempdir(), home, _home_of_user())]
        python = [Path(each) for each in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
        _check_folder(work, hidden, python)
        libraries = [Path(each) for each in (*sys.path, site.getusersitepackages())]
        shown = [each for each in [*python, *(each.resolve() for each in python)] if _is_below(each, [work, *hidden])]
        shown += [each for each in libraries if _is_below(each, hidden) and not _is_below(each, [work])]
        shown = [each for each in shown if not any(inner.is_relative_to(each) for inner in (work, *hidden))]
        more = [each.resolve() for each in hide]
        seen = [each for each in more if _is_below(each, [work]) or not _is_below(each, hidden)]
        return cls(
            work=str(work),
            home=str(home),
            hidden=tuple(dict.fromkeys(map(str, [*hidden, *seen]))),
            shown=tuple(dict.fromkeys(map(str, [*shown, work / ".git"]))),
        )

    def of_cluster(self, directory: Path, programs: Path) -> Isolation:
        """Hides the directory of the cluster, too, but for these programs."""
        more = [str(directory)] if self._is_seen(directory) else []
        return replace(self, hidden=(*self.hidden, *more), shown=(*self.shown, str(programs)))

    def mounts(self, scratch: Path) -> list[Mount]:
        """The mounts of one container, whose files go below `scratch`, which is created."""
        own = {_SCRATCH[0]: "tmp", _SCRATCH[1]: "var-tmp", self.home: "home"}
        found = [Mount(each) for each in self.hidden if each not in own and Path(each).is_dir()]
        for target, name in own.items():
            (scratch / name).mkdir(parents=True, exist_ok=True)
            found.append(Mount(target, str(scratch / name)))
        found.append(Mount(self.work, self.work))
        found += [Mount(each, each, read_only=True) for each in self.shown if Path(each).exists()]
        return found + [Mount(each, os.devnull, read_only=True) for each in self._sockets()]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of the user that containers get, with folders of their own."""
        kept = {name: value for name, value in variables.items() if _VARIABLES.fullmatch(name)}
        kept = {name: value for name, value in kept.items() if not _SECRET.search(name)}
        return kept | {"HOME": self.home, "TMPDIR": _SCRATCH[0]}

    def _sockets(self) -> list[str]:
        """Sockets outside of what is hidden: a read-only file system does not keep programs from using them."""
        try:
            lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines()[1:]
        except OSError:
            return []
        paths = {fields[7] for line in lines if len(fields := line.split(None, 7)) > 7 and fields[7].startswith("/")}
        return sorted(each for each in paths if self._is_seen(Path(each)) and Path(each).is_socket())

    def _is_seen(self, path: Path) -> bool:
        return _is_below(path, [Path(self.work)]) or not _is_below(path, map(Path, self.hidden))


_HINT = "run it in a folder of its own"


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/root"


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(each) for each in folders)


def _check_folder(work: Path, hidden: Sequence[Path], python: Sequence[Path]) -> None:
    """Raises `OSError` if the run cannot write in `work` without writing elsewhere."""
    for each in hidden:
        if each.is_relative_to(work):
            raise OSError(f"--isolated: {work} cannot be the folder of the run, as {each} is in it; {_HINT}")
    for each in (*map(Path, _SYSTEM), *(each.resolve() for each in python)):
        if work.is_relative_to(each):
            raise OSError(f"--isolated: {work} cannot be the folder of the run, as it is in {each}; {_HINT}")

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    shown: tuple[tuple[str, str], ...]
    """Parts of what is hidden that containers read: by which path, and what is there."""
    kept: tuple[str, ...]
    """Parts of the work folder that containers only read. They are directly in it: what is mounted can be neither
    renamed nor replaced, but a folder above it could."""

    @classmethod
    def find(cls, work: Path, hide: Iterable[Path] = (), variables: Mapping[str, str] = os.environ) -> Isolation:
        """For a run in the folder `work`. `hide` are further folders that containers do not see.

        Raises `OSError` if the folder has what is to be protected, or is part of it.
        """
        work = work.resolve()
        home = Path(variables.get("HOME") or _home_of_user()).resolve()
        folders: tuple[str | Path, ...] = (*_HIDDEN, *_SCRATCH, tempfile.gettempdir(), home, _home_of_user(), *hide)
        hidden = [*dict.fromkeys(Path(each).resolve() for each in folders)]
        python = [Path(each) for each in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
        _check_folder(work, hidden, [each.resolve() for each in python])
        libraries = [Path(each) for each in (*sys.path, site.getusersitepackages())]
        return cls(
            work=str(work),
            home=str(home),
            hidden=tuple(map(str, hidden)),
            shown=tuple(_shown([*python, *libraries], work, hidden)),
            kept=tuple(dict.fromkeys(_kept(python, work))),
        )

    def of_cluster(self, programs: Path) -> Isolation:
        """Shows these programs, too."""
        return replace(self, shown=(*self.shown, (str(programs), str(programs.resolve()))))

    def mounts(self, scratch: Path) -> list[Mount]:
        """The mounts of one container, whose files go below `scratch`, which is created."""
        own = {_SCRATCH[0]: "tmp", _SCRATCH[1]: "var-tmp", self.home: "home"}
        found = [Mount(each) for each in self.hidden if each not in own and self._is_outermost(each)]
        for target, name in own.items():
            (scratch / name).mkdir(parents=True, exist_ok=True)
            found.append(Mount(target, str(scratch / name)))
        found.append(Mount(self.work, self.work))
        found += [Mount(each, each, read_only=True) for each in self.kept]
        found += [Mount(path, source, read_only=True) for path, source in self.shown if Path(source).exists()]
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

    def _is_outermost(self, path: str) -> bool:
        """Whether a hidden folder exists, and is in no other one."""
        others = [Path(each) for each in self.hidden if each != path]
        return Path(path).is_dir() and not _is_below(Path(path), others)

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


def _shown(paths: Iterable[Path], work: Path, hidden: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Those of the paths that are hidden, without one that has something hidden, or the work folder, in it."""
    found: dict[str, str] = {}
    for each in paths:
        real = each.resolve()
        has_other = any(inner.is_relative_to(real) for inner in (work, *hidden))
        if not has_other and not _is_below(real, [work]):
            found |= {str(path): str(real) for path in (each, real) if _is_below(path, hidden)}
    yield from found.items()


def _kept(python: Iterable[Path], work: Path) -> Iterator[str]:
    """The parts of the work folder that the user executes later without a look: its environments, and hooks of git."""
    inside = (path for each in python for path in (each.absolute(), each.resolve()) if path.is_relative_to(work))
    for path in (*inside, work / ".git"):
        first = work / path.relative_to(work).parts[0]
        if first.exists() and not first.is_symlink():
            yield str(first)


def _check_folder(work: Path, hidden: Sequence[Path], python: Sequence[Path]) -> None:
    """Raises `OSError` if the run cannot write in `work` without writing elsewhere."""
    for each in hidden:
        if each.is_relative_to(work):
            raise OSError(f"--isolated: {work} cannot be the folder of the run, as {each} is in it; {_HINT}")
    for each in (*map(Path, _SYSTEM), *python):
        if work.is_relative_to(each):
            raise OSError(f"--isolated: {work} cannot be the folder of the run, as it is in {each}; {_HINT}")

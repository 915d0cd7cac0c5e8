"""The GPUs of this machine: from a file, from NVML, or from /proc.

A GPU is named by its UUID, which `CUDA_VISIBLE_DEVICES` may have. GPUs in MIG mode count as one each.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

INVENTORY = "TRAINOP_GPU_INVENTORY"
"""The variable that names a file with one GPU a line, such as `nvidia-smi -L` prints or `GPU-…`."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PROC = Path("/proc/driver/nvidia/gpus")
_LISTED = re.compile(r".*\(UUID: (?P<uuid>[^\s()]+)\)")
_NAME = re.compile(r"[\w.:/-]+")
_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)
_MAX_SIZE = 1024 * 1024


def find_gpus(environ: Mapping[str, str], proc: Path = _PROC) -> tuple[str, ...]:
    """The names of the GPUs, those only that `CUDA_VISIBLE_DEVICES` leaves if it is set. Raises `OSError` with one
    message if the inventory is unreadable or invalid."""
    file = environ.get(INVENTORY)
    found = _read_inventory(Path(file)) if file else (_ask_nvml() or _read_proc(proc))
    return _visible(found, environ.get(_VISIBLE))


def _read_inventory(path: Path) -> Sequence[str]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_SIZE)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise OSError(f"{INVENTORY}: {path}: {why}; expected a file with one GPU a line") from error
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        listed = _LISTED.fullmatch(content)
        name = listed["uuid"] if listed else content
        if not name:
            continue
        if not _NAME.fullmatch(name) or name in found:
            fault = "is there twice" if name in found else "expected a UUID, an index or a line of nvidia-smi -L"
            raise OSError(f"{INVENTORY}: {path}:{number}: {name[:80]!r}: {fault}")
        found.append(name)
    return found


def _ask_nvml() -> Sequence[str]:
    """Nothing without the package `nvidia-ml-py`, without a driver, or if the driver does not answer."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return ()
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        finally:
            nvml.nvmlShutdown()
    return ()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _read_proc(folder: Path) -> Sequence[str]:
    """By the order of the PCI bus, as NVML has them."""
    return [*_uuids(sorted(folder.glob("*/information")))]


def _uuids(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        with suppress(OSError):
            if (found := _UUID.search(file.read_text(encoding="utf-8", errors="replace"))) and "?" not in found[1]:
                yield found[1]


def _visible(found: Sequence[str], wanted: str | None) -> tuple[str, ...]:
    """As CUDA reads the variable: indices or beginnings of UUIDs, until the first that is neither."""
    if wanted is None:
        return tuple(found)
    chosen: list[str] = []
    for each in (part.strip() for part in wanted.split(",")):
        if each.isdecimal():
            match = found[int(each)] if len(each) < 5 and int(each) < len(found) else None
        else:
            match = next((name for name in found if each and name.startswith(each)), None)
        if match is None or match in chosen:
            break
        chosen.append(match)
    return tuple(chosen)

"""GPUs are counted from a file, NVML or /proc."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainop.local.gpus import INVENTORY, find_gpus

A, B = "GPU-0a1b2c3d-0000-4000-8000-000000000001", "GPU-0a1b2c3d-0000-4000-8000-000000000002"
NOWHERE = Path("/nonexistent")


class NVMLError(Exception):
    pass


def use_nvml(patch: pytest.MonkeyPatch, uuids: Sequence[str | bytes], fault: str = "") -> list[str]:
    """Stands for pynvml; returns the names of the calls."""
    calls: list[str] = []

    def call(name: str, answer: str | bytes = "") -> str | bytes:
        calls.append(name)
        if name == fault:
            raise NVMLError(name)
        return answer

    module = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: call("init"),
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: call("uuid", uuids[handle]),
    )
    patch.setitem(sys.modules, "pynvml", module)
    return calls


@pytest.fixture(autouse=True)
def _without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for bus, uuid in (("0000:01:00.0", A), ("0000:41:00.0", B), ("0000:81:00.0", "GPU-????????-????")):
        folder = tmp_path / "gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"
        (folder / "information").write_text(text)
    return tmp_path / "gpus"


def test_nothing():
    assert find_gpus({}, NOWHERE) == ()


def test_nvml(monkeypatch: pytest.MonkeyPatch, proc: Path):
    calls = use_nvml(monkeypatch, [B, A.encode()])
    assert find_gpus({}, proc) == (B, A)
    assert calls[-1] == "shutdown"


@pytest.mark.parametrize("fault", ["init", "uuid"])
def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, proc: Path, fault: str):
    use_nvml(monkeypatch, [A], fault)
    assert find_gpus({}, proc) == (A, B)
    assert find_gpus({}, NOWHERE) == ()


def test_proc(proc: Path):
    """A GPU whose driver has lost it has no UUID."""
    assert find_gpus({}, proc) == (A, B)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("1", (B,)),
        ("1,0", (B, A)),
        (B, (B,)),
        ("GPU-0a1b2c3d-0000-4000-8000-000000000002, 0", (B, A)),
        ("", ()),
        ("-1", ()),
        ("0,7,1", (A,)),
        ("0,0", (A,)),
        ("99999999999", ()),
    ],
)
def test_the_gpus_that_are_visible_here(proc: Path, visible: str, found: tuple[str, ...]):
    """As CUDA reads the variable: what follows an invalid entry is not visible."""
    assert find_gpus({"CUDA_VISIBLE_DEVICES": visible}, proc) == found


def test_an_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: Path):
    use_nvml(monkeypatch, [A])
    file = tmp_path / "gpus.txt"
    file.write_text(f"# two\nGPU 0: NVIDIA A100-SXM4-40GB (UUID: {A})\n\n  fake-1  # index or UUID\n")
    assert find_gpus({INVENTORY: str(file)}, proc) == (A, "fake-1")
    file.write_text("")
    assert find_gpus({INVENTORY: str(file)}, proc) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a\na\n", ":2: 'a': is there twice"),
        (b"a,b\n", ":1: 'a,b': expected a UUID, an index or a line of nvidia-smi -L"),
        (b"GPU 0: two words\n", ":1: 'GPU 0: two words': expected a UUID"),
        (b"\xff\xfe\n", ": not UTF-8 text; expected a file with one GPU a line"),
        (None, ": No such file or directory; expected a file with one GPU a line"),
    ],
)
def test_an_invalid_inventory(tmp_path: Path, text: bytes | None, message: str):
    file = tmp_path / "gpus.txt"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(OSError, match=INVENTORY) as error:
        find_gpus({INVENTORY: str(file)}, NOWHERE)
    assert str(error.value).startswith(f"{INVENTORY}: {file}")
    assert message in str(error.value)


def test_the_gpus_of_this_machine():
    """With a real driver: NVML and /proc agree."""
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        pytest.skip("this machine has no NVIDIA driver (/proc/driver/nvidia/gpus)")
    sys.modules.pop("pynvml", None)
    pytest.importorskip("pynvml", reason="pip install nvidia-ml-py")
    found = find_gpus({})
    assert found
    assert set(found) == set(find_gpus({}, Path("/proc/driver/nvidia/gpus")))

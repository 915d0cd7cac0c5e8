"""`trainop ui` as users call it: which sources there are, and where the token is not written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept.test_runs import Home
from tests.patience import PATIENCE


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ((), "no cluster is configured", 1),
        (("train-9",), "no run train-9", 1),
        (("train-9", "-A"), "it has no namespace, context or kubeconfig", 2),
        (("--listen", ":8080"), "--listen needs --behind-proxy", 2),
        (("--behind-proxy", "train-9"), "--behind-proxy shows a cluster to its users", 2),
        (("--behind-proxy", "-A"), "--behind-proxy shows a cluster to its users", 2),
        (("--behind-proxy", "--listen", "8080"), "is not of the form host:port or :port", 2),
        (("--behind-proxy", "--listen", "0"), "is not of the form host:port or :port", 2),
        (("--behind-proxy",), "no cluster is configured", 1),
        (("--port", "99999"), "99999 is not in the range", 2),
        (("--kubeconfig", "/nonexistent"), "/nonexistent", 1),
    ],
)
def test_what_cannot_be_shown_is_one_line(home: Home, arguments: tuple[str, ...], words: str, code: int):
    said = home.trainop("ui", *arguments, code=code).stderr
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("mode", "refused"), [(0o644, True), (0o640, True), (0o600, False)])
def test_the_token_is_not_written_where_others_read(home: Home, mode: int, refused: bool):
    kubeconfig = home.path / "kubeconfig"
    kubeconfig.write_text(
        '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],'
        '"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],'
        '"users": [{"name": "u", "user": {}}]}'
    )
    written = home.path / "out"
    written.touch()
    written.chmod(mode)
    with written.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainop", "ui", "--kubeconfig", str(kubeconfig)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=home.environment,
        )
    try:
        if refused:
            _, said = process.communicate(timeout=PATIENCE)
            assert "other users can read" in said
            assert (process.returncode, written.read_text()) == (1, "")
        else:
            url = home.wait_for(written.read_text)
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=\S{32}\n", url)
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes() if os.path.isdir("/proc") else b""  # noqa: PTH112
            assert url.strip().rpartition("=")[2].encode() not in arguments
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_in_a_pod_the_page_logs_json_and_ends_at_once_when_the_kubelet_says_so(home: Home):
    """As the first process of a container, which no signal ends by itself."""
    kubeconfig = home.path / "kubeconfig"
    kubeconfig.write_text(
        '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],'
        '"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],'
        '"users": [{"name": "u", "user": {}}]}'
    )
    command = [sys.executable, "-m", "trainop", "ui", "--behind-proxy", "--listen=127.0.0.1:0"]
    log = home.path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, f"--kubeconfig={kubeconfig}"],
            stderr=out,
            env={**home.environment, "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        )
    try:
        line, _, _ = home.wait_for(lambda: "\n" in log.read_text() and log.read_text()).partition("\n")
        assert json.loads(line)["server"] == "page"
    finally:
        process.terminate()
        code = process.wait(PATIENCE)
    assert code == 0

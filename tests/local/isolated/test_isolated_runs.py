"""`trainop run --isolated`, seen by a script that tries to get out, and by one that only wants to work."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from tests.local.isolated import probe_names
from tests.needs import lack
from tests.patience import PATIENCE

Done = subprocess.CompletedProcess[str]
PROBE = Path(__file__).with_name("probe.py")
SECRET = "the secret of the user"
IS_ROOT = os.geteuid() == 0


def need_isolation(done: Done) -> None:
    """Leaves the test out, with the reason, where the machine forbids namespaces."""
    if "cannot be isolated on this machine" in done.stderr:
        lack(done.stderr.strip())


class Theatre:
    """A user with a home folder, a folder for the run, and servers that only processes of the user may reach."""

    def __init__(self, path: Path) -> None:
        self.path, self.home, self.work = path, path / "home", path / "work"
        self.home.mkdir()
        (self.work / ".git").mkdir(parents=True)
        (self.home / "secret").write_text(SECRET)
        (path / "temporary").write_text(SECRET)
        (self.work / ".git" / "post-commit").touch()
        shutil.copy(PROBE, self.work / "probe.py")
        if IS_ROOT:
            program = self.work / "id-of-other"
            shutil.copy(shutil.which("id") or "", program)
            os.chown(program, 65534, 65534)
            program.chmod(0o4755)
        self.servers = [socket.create_server(("127.0.0.1", 0))]
        self.abstract = f"trainop-test-{os.getpid()}"
        for address in (f"\0{self.abstract}", str(self.work / "socket")):
            server = socket.socket(socket.AF_UNIX)
            server.bind(address)
            server.listen()
            self.servers.append(server)
        for server in self.servers:
            threading.Thread(target=self._serve, args=(server,), daemon=True).start()

    @staticmethod
    def _serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer:
                    peer.sendall(SECRET.encode())

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def run(self, *args: str, code: int = 0, cwd: Path | None = None) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "trainop", "run", *args],
            cwd=cwd or self.work,
            env={
                **os.environ,
                "HOME": str(self.home),
                "XDG_STATE_HOME": str(self.path / "state"),
                "HF_TOKEN": SECRET,
                "PYTHONPATH": str(Path.cwd()),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        need_isolation(done)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def probe(self, *options: str, attempts: list[str] | None = None) -> tuple[dict[str, tuple[bool, str]], list[str]]:
        """What came of each attempt, and home, temporary and working folder of the script."""
        given = {
            "home": str(self.home),
            "name": f"trainop-test-{os.getpid()}",
            "temporary": str(self.path / "temporary"),
            "pid": os.getpid(),
            "length": 1,
            "port": self.servers[0].getsockname()[1],
            "host name": socket.gethostname(),
            "abstract": self.abstract,
            "attempts": attempts,
        }
        done = self.run(*options, "probe.py", "--", json.dumps(given))
        found = [json.loads(each) for each in re.findall(r"^master-0 +@ (.+)$", done.stdout, re.MULTILINE)]
        (folders,) = re.findall(r"^master-0 +% (.+)$", done.stdout, re.MULTILINE)
        return {name: (succeeded, text) for name, succeeded, text in found}, json.loads(folders)


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    made = Theatre(tmp_path_factory.mktemp("isolated"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def probed(theatre: Theatre) -> Any:
    return theatre.probe("--isolated")


@pytest.mark.parametrize("attempt", probe_names())
def test_nothing_of_the_machine_is_changed_or_reached(probed: Any, attempt: str):
    succeeded, text = probed[0][attempt]
    assert not succeeded, text
    assert SECRET not in text


def test_the_script_works_with_folders_of_its_own(theatre: Theatre, probed: Any):
    assert probed[1] == [str(theatre.home), "/tmp", str(theatre.work)]
    assert (theatre.work / "result").read_text().startswith("here"), "the folder of the run is the user's"
    assert [path.name for path in theatre.home.iterdir()] == ["secret"]
    assert (theatre.home / "secret").read_text() == SECRET


HARMLESS = [
    "read home",
    "read home by a link",
    "read a temporary file of the host",
    "see a process of the host",
    "reach a server of the host",
    "reach an abstract socket",
    "reach a socket in the folder",
    "read a token in a variable",
    "read the variables of a process of the host",
    *(["become another user"] if IS_ROOT else []),
]


def test_without_isolation_the_same_attempts_succeed(theatre: Theatre):
    """Else the others would prove nothing. Those that would change the machine are not tried."""
    found, _ = theatre.probe("--network=addresses", attempts=HARMLESS)
    assert {name: text for name, (succeeded, text) in found.items() if not succeeded} == {}
    assert len(found) == len(HARMLESS)


def test_an_environment_in_the_folder_is_only_read(theatre: Theatre):
    """As most projects have it: ./.venv, whose modules the user imports later."""
    folder = theatre.path / "project"
    venv.create(folder / ".venv", symlinks=True)
    packages = os.pathsep.join([str(Path.cwd()), str(Path(click.__file__).parents[1])])
    (folder / "train.py").write_text(
        "import pathlib, sys, sysconfig\npathlib.Path('result').touch()\n"
        "print('in', sys.prefix)\npathlib.Path(sysconfig.get_path('purelib'), 'sitecustomize.py').touch()\n"
    )
    done = subprocess.run(
        [folder / ".venv" / "bin" / "python", "-m", "trainop", "run", "--isolated", "train.py"],
        cwd=folder,
        env={**os.environ, "HOME": str(theatre.home), "PYTHONPATH": packages, "TRAINOP_KEEP_RUNS": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    need_isolation(done)
    assert f"in {folder / '.venv'}" in done.stdout, done.stdout + done.stderr
    assert re.search(r"Read-only file system: '\S+/\.venv/lib/\S+/sitecustomize\.py'", done.stdout), done.stdout
    assert (folder / "result").exists()


LEAVES_A_LINK = """
import os, sys
if not os.path.islink(".git"):
    os.symlink(sys.argv[1], ".git")
    sys.exit(1)
print("again", os.path.islink(".git"))
print(open(".git/secret").read())
"""


def test_a_link_that_one_container_leaves_is_not_followed_for_the_next(theatre: Theatre):
    folder = theatre.path / "linked"
    folder.mkdir()
    (folder / "train.py").write_text(LEAVES_A_LINK)
    arguments = ("--isolated", "train.py", "--max-restarts=1", "--", str(theatre.home))
    for _ in range(2):  # and for the next run
        done = theatre.run(*arguments, code=1, cwd=folder)
        assert "again True" in done.stdout
        assert "FileNotFoundError" in done.stdout
        assert SECRET not in done.stdout


RANKS = """
import os, socket
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank:
    while True:
        try:
            with socket.create_connection(address, timeout=60) as peer:
                peer.sendall(b"from %d" % rank)
            break
        except OSError:
            pass
else:
    with socket.create_server(("", address[1])) as server:
        print(sorted(server.accept()[0].recv(100).decode() for _ in range(2)), flush=True)
"""


def test_the_ranks_of_a_job_reach_each_other(theatre: Theatre):
    (theatre.work / "ranks.py").write_text(RANKS)
    assert "['from 1', 'from 2']" in theatre.run("--isolated", "ranks.py", "--nproc=3").stdout


CALLS_API = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
trusted = ssl.create_default_context(cafile=folder + "/ca.crt")
token = open(folder + "/token").read()
request = urllib.request.Request("https://kubernetes.default.svc/api/v1/namespaces/default/pods")
request.add_header("Authorization", "Bearer " + token)
print("API server says", urllib.request.urlopen(request, context=trusted, timeout=60).status, flush=True)
"""
JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: made}}
spec:
  runPolicy: {{backoffLimit: 0}}
  pytorchReplicaSpecs:
    Master:
      restartPolicy: Never
      template:
        spec:
          {spec}
          containers:
            - {{name: pytorch, image: i, command: [python, {script}], {more}}}
"""


def test_a_pod_with_a_service_account_reaches_the_api_server(theatre: Theatre):
    (theatre.work / "calls.py").write_text(CALLS_API)
    account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: own}\n---"
    job = account + JOB.format(spec="serviceAccountName: own", script="calls.py", more="")
    (theatre.work / "calls.yaml").write_text(job)
    assert "API server says 200" in theatre.run("--isolated", "calls.yaml").stdout


@pytest.mark.parametrize(
    ("volume", "mount", "words"),
    [
        ("hostPath: {path: %s}", "mountPath: /data", "a run with --isolated has no hostPath volumes"),
        ("hostPath: {path: %s/new}", "mountPath: /data", "a run with --isolated has no hostPath volumes"),
        ("emptyDir: {}", "mountPath: /data, subPath: link", "a run with --isolated has no subPath"),
    ],
)
def test_volumes_that_could_show_the_host_are_refused(theatre: Theatre, volume: str, mount: str, words: str):
    source = volume.replace("%s", str(theatre.home))
    spec = f"volumes: [{{name: v, {source}}}]"
    job = JOB.format(spec=spec, script="-c, 'print(1)'", more=f"volumeMounts: [{{name: v, {mount}}}]")
    (theatre.work / "volume.yaml").write_text(job)
    done = theatre.run("--isolated", "--start-timeout=3", "volume.yaml", code=1)
    assert words in done.stdout + done.stderr
    assert [path.name for path in theatre.home.iterdir()] == ["secret"]


def test_volumes_are_written_and_mount_points_are_not_left_behind(theatre: Theatre):
    """Also where a volume covers folders that isolation needs itself."""
    mounts = ["/data", str(theatre.home / "deep" / "point"), "/usr/share/new-point", "/tmp/mine"]
    listed = ", ".join(f"{{name: v, mountPath: {path}}}" for path in mounts)
    script = "; ".join(["import os", *(f"print(open({each + '/x'!r}, 'a').write('x'))" for each in mounts)])
    spec = "volumes: [{name: v, emptyDir: {}}]"
    job = JOB.format(spec=spec, script=f"-c, {json.dumps(script)}", more=f"volumeMounts: [{listed}]")
    (theatre.work / "volumes.yaml").write_text(job)
    done = theatre.run("--isolated", "volumes.yaml")
    assert len(re.findall(r"^master-0 +1$", done.stdout, re.MULTILINE)) == len(mounts), done.stdout
    for path in (*mounts[:3], str(theatre.home / "deep")):
        assert not Path(path).exists(), path


@pytest.mark.parametrize("target", ["/proc", "/sys", "/dev", "/"])
def test_a_volume_over_what_isolation_uses_gives_no_rights(theatre: Theatre, target: str):
    script = f"import os; os.makedirs('/mnt', exist_ok=True); print(open({str(theatre.home / 'secret')!r}).read())"
    spec = "volumes: [{name: v, emptyDir: {}}]"
    more = f"volumeMounts: [{{name: v, mountPath: {target}}}]"
    (theatre.work / "over.yaml").write_text(JOB.format(spec=spec, script=f"-c, {json.dumps(script)}", more=more))
    done = theatre.run("--isolated", "--start-timeout=20", "over.yaml", code=1)
    assert SECRET not in done.stdout + done.stderr


def test_commands_in_a_container_are_confined_as_it_is(theatre: Theatre):
    """A probe is such a command, as that of `kubectl exec`; so is what asks for stacks."""
    text = "import os, time, pathlib\nwhile not os.path.exists('/tmp/seen'): time.sleep(0.05)\n"
    text += "print('seen', pathlib.Path('/tmp/seen').read_text())\n"
    (theatre.work / "waits.py").write_text(text)
    check = "grep -E CapEff.*0{16} /proc/self/status && test -r /proc/$(pgrep -f waits.py | head -n 1)/environ"
    check += f" && ! cat {theatre.home}/secret && echo confined > /tmp/seen"
    probe = f"startupProbe: {{periodSeconds: 1, exec: {{command: [sh, -c, {json.dumps(check)}]}}}}"
    (theatre.work / "waits.yaml").write_text(JOB.format(spec="", script="waits.py", more=probe))
    assert "seen confined" in theatre.run("--isolated", "waits.yaml").stdout


@pytest.mark.parametrize(
    ("folder", "words"),
    [("home", "home is in it"), ("/", "is in it"), ("/usr", "it is in /usr"), (sys.prefix, "it is in ")],
)
def test_a_folder_that_cannot_be_given_away_is_refused(theatre: Theatre, folder: str, words: str):
    cwd = theatre.home if folder == "home" else Path(folder)
    done = theatre.run("--isolated", str(PROBE), code=2, cwd=cwd)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_isolation_needs_the_mode_namespaces(theatre: Theatre):
    done = theatre.run("--isolated", "--network=addresses", "probe.py", code=2)
    assert done.stderr == "--isolated needs --network namespaces\n"


@pytest.mark.skipif(not IS_ROOT, reason="an ordinary user runs sshd on a port of their own")
def test_an_mpi_job_over_ssh_is_refused_to_root(theatre: Theatre):
    """It would restart its workers until its limit: sshd can neither listen nor change the user."""
    spec = "{mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: l, image: i}]}}}}}"
    job = f"apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {{name: pi}}\nspec: {spec}\n"
    (theatre.work / "pi.yaml").write_text(job)
    done = theatre.run("--isolated", "pi.yaml", code=2)
    assert "pi.yaml:1:1: error: " in done.stderr
    assert "an MPIJob over ssh cannot run isolated as root" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_machine_without_namespaces_refuses_in_one_line_and_runs_nothing(theatre: Theatre):
    if not IS_ROOT or shutil.which("unshare") is None:
        pytest.skip("only root may forbid namespaces, in a user namespace of its own")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    (theatre.work / "ran.py").write_text("open('ran', 'w')\n")
    command = [sys.executable, "-m", "trainop", "run", "--isolated", "ran.py"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *command],
        cwd=theatre.work,
        env={**os.environ, "HOME": str(theatre.home), "PYTHONPATH": str(Path.cwd()), "TRAINOP_KEEP_RUNS": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"trainop: a run cannot be isolated on this machine: .+ \(it needs Linux 5\.12 .+\)\n", done.stderr
    )
    assert not (theatre.work / "ran").exists()

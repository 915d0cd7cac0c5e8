"""Images with the names and contents that others expect, made of an image of `images.py` and a few files."""

from __future__ import annotations

import functools
import io
import platform
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from e2e.cluster.places import binary
from e2e.realnode.images import ARCHITECTURES, Image, build, recipe
from e2e.realnode.oci import LayerFile, write_image
from trainop.engine.seen import Options

USER, UID = "mpiuser", 1000
"""The user of mpi-operator's images."""
PORT = 2222
SCRIPT = 0o755


@dataclass(frozen=True)
class File:
    contents: bytes
    mode: int = 0o644
    user: int = 0


@dataclass(frozen=True)
class Derived:
    """An image; `reference` is its name in the node."""

    reference: str
    base: str
    """One of `IMAGES`."""
    files: Mapping[str, File] = field(default_factory=dict)
    """By absolute path; parent directories belong to the same user."""
    entrypoint: tuple[str, ...] = ()

    def write(self, output: IO[bytes]) -> None:
        """Writes the archive of the image to a stream."""
        with tempfile.TemporaryDirectory() as folder:
            layer = Path(folder, "files.tar")
            self._pack(layer)
            machine = platform.machine()
            write_image(
                output,
                self.reference,
                [*Image(self.base).layers, LayerFile.of(layer)],
                ARCHITECTURES.get(machine, machine),
                recipe(self.base).environment,
                command={"Entrypoint": list(self.entrypoint)} if self.entrypoint else {"Cmd": ["/bin/sh"]},
            )

    def _pack(self, target: Path) -> None:
        with tarfile.open(target, "w") as archive:
            homes = {str(Path(path).parent): file.user for path, file in self.files.items() if file.user}
            for path, user in homes.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, 0o755, user
                archive.addfile(entry)
            for path, file in self.files.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.size, entry.mode, entry.uid = len(file.contents), file.mode, file.user
                archive.addfile(entry, io.BytesIO(file.contents))


def delivery() -> Derived:
    """Stands in for the default image of the init container that copies kubectl to launchers of MPIJobs."""
    deliver = b"#!/bin/sh\nexec cp /usr/local/bin/kubectl $TARGET_DIR/kubectl\n"
    files = {
        "/usr/local/bin/kubectl": File(binary("kubectl").read_bytes(), SCRIPT),
        "/usr/local/bin/deliver": File(deliver, SCRIPT),
    }
    return Derived(Options().mpi_delivery_image, "base", files, ("/usr/local/bin/deliver",))


RESOLVE = b"""#!/bin/sh
# mpirun of MPICH never ends if it starts before the names of all hosts resolve
if [ "$K_MPI_JOB_ROLE" = launcher ]; then
    for host in "$HOSTNAME" $(cut -d : -f 1 /etc/mpi/hostfile); do
        until getent hosts "$host" > /dev/null; do sleep 0.2; done
    done
fi
exec "$@"
"""


def mpi_pi(implementation: str) -> Derived:
    """The image of mpi-operator's tests: sshd on port 2222 for root and for `mpiuser`, and /home/mpiuser/pi."""
    home = f"/home/{USER}"
    daemon = f"PidFile {home}/sshd.pid\nHostKey {home}/.ssh/id_rsa\nStrictModes no\nPort {PORT}\n"
    program = f"#!/bin/sh\nexec python3 /srv/examples/mpi/pi.py {implementation}\n"
    base = "openmpi" if implementation == "openmpi" else "mpich"
    files = {
        f"{home}/pi": File(program.encode(), SCRIPT, UID),
        f"{home}/.sshd_config": File(daemon.encode(), user=UID),
        "/etc/passwd": File(accounts(base) + f"{USER}:x:{UID}:{UID}::{home}:/bin/sh\n".encode()),
        "/etc/ssh/ssh_config.d/port.conf": File(f"Port {PORT}\n".encode()),
        "/etc/ssh/sshd_config.d/port.conf": File(f"Port {PORT}\n".encode()),
        "/entrypoint.sh": File(RESOLVE, SCRIPT),
    }
    entrypoint = ("/entrypoint.sh",) if implementation == "mpich" else ()
    return Derived(f"docker.io/mpioperator/mpi-pi:{implementation}", base, files, entrypoint)


@functools.cache
def accounts(base: str) -> bytes:
    """/etc/passwd of an image."""
    with tarfile.open(build(base)[0].path) as archive:
        for entry in archive:
            if entry.name.removeprefix("./") == "etc/passwd" and (file := archive.extractfile(entry)):
                return file.read()
    raise ValueError(f"the image {base} has no /etc/passwd")

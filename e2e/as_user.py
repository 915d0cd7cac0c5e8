"""Runs Python as an ordinary user, in a copy of this checkout below a home directory that only this user can enter.

    python -m e2e.as_user -m pytest tests/local        (as root, on Linux)
    python -m e2e.as_user --awkward -m pytest tests    in a copy below /tmp at a path with a space, read-only home

The user needs no account. Python, its packages and built binaries may be in root's home directory: a mount namespace
makes them available under other paths. The copy is on a tmpfs and is removed with the process.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.places import cache

USER = 12345
"""UID and GID without an account, as in many containers."""
ROOT = Path(__file__).parents[1]
SCRIPT = """
set -e
user=$1
mount -t tmpfs none /mnt
mkdir -p /mnt/python /mnt/packages /mnt/testenv /mnt/home/tmp /mnt/read-only /mnt/tmp
chmod 0700 /mnt/home
chmod 1777 /mnt/tmp
mount --bind "$2" /mnt/python
mount --bind "$3" /mnt/packages
[ ! -d "$4" ] || mount --bind "$4" /mnt/testenv
case "$8" in /tmp/*) copy="/mnt$8" ;; *) copy="$8" ;; esac
mkdir "$copy"
tar -C "$5" --exclude=./.git --exclude=./.venv --exclude=__pycache__ --exclude='./.*_cache' -cf - . |
    tar -C "$copy" -xf -
chown -R "$user:$user" /mnt/home "$copy"
if [ -n "$6" ]; then
    mount -t tmpfs none "$6"
    chmod 0755 "$6"
    mkdir -p "$2"
    mount --bind /mnt/python "$2"
fi
[ "$copy" = "$8" ] || mount --bind /mnt/tmp /tmp
cd "$8"
set_user="setpriv --reuid=$user --regid=$user --clear-groups --"
$set_user "$7" -m venv --without-pip .venv
printf '%s\\n' "$8" /mnt/packages > "$(echo .venv/lib/python*/site-packages)/here.pth"
printf '#!/bin/sh\\nexec "%s/.venv/bin/python" -m trainop "$@"\\n' "$8" > .venv/bin/trainop
chmod +x .venv/bin/trainop
shift 8
exec $set_user .venv/bin/python "$@"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the copy is, and the user's home and temporary directory."""

    checkout: str
    home: str
    temporary: str


PRIVATE = Place("/mnt/home/checkout", home="/mnt/home", temporary="/mnt/home/tmp")
"""Below a home directory that only the user can enter."""
AWKWARD = Place("/tmp/a checkout", home="/mnt/read-only", temporary="/tmp")
"""Where a volume at `/tmp` covers the copy, a path needs quotes, and nothing can be kept in the home directory."""


def command(*arguments: str, place: Place = PRIVATE) -> list[str]:
    """The command line that runs this Python with `arguments` as the user; root must start it with `environment`."""
    prefix = Path(sys.base_prefix)
    python = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    hidden = next((str(path) for path in reversed(prefix.parents) if not path.stat().st_mode & stat.S_IXOTH), "")
    paths = [prefix, sysconfig.get_path("purelib"), cache(), ROOT, hidden, python]
    return ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(USER), *map(str, paths), place.checkout, *arguments]


def environment(place: Place = PRIVATE) -> dict[str, str]:
    return {
        "HOME": place.home,
        "PATH": f"{place.checkout}/.venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "TMPDIR": place.temporary,
        "TRAINOP_TESTENV": "/mnt/testenv",
    }


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("only root can become another user")
    awkward = sys.argv[1:2] == ["--awkward"]
    place = AWKWARD if awkward else PRIVATE
    argv = command(*sys.argv[2 if awkward else 1 :], place=place)
    os.execvpe(argv[0], argv, environment(place))

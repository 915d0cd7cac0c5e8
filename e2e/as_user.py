"""Runs Python as an ordinary user, in a copy of this checkout below a home directory that only this user can enter.

    python -m e2e.as_user -m pytest tests/local        (as root, on Linux)

The user needs no account. Python, its packages and built binaries may be in root's home directory: a mount namespace
makes them available under other paths. The copy is on a tmpfs and is removed with the process.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from pathlib import Path

from e2e.cluster.places import cache

USER = 12345
"""UID and GID without an account, as in many containers."""
ROOT = Path(__file__).parents[1]
SCRIPT = """
set -e
user=$1
mount -t tmpfs none /mnt
mkdir /mnt/python /mnt/packages /mnt/testenv /mnt/home
chmod 0700 /mnt/home
mount --bind "$2" /mnt/python
mount --bind "$3" /mnt/packages
[ ! -d "$4" ] || mount --bind "$4" /mnt/testenv
mkdir /mnt/home/checkout /mnt/home/tmp
tar -C "$5" --exclude=./.git --exclude=./.venv --exclude=__pycache__ --exclude='./.*_cache' -cf - . |
    tar -C /mnt/home/checkout -xf -
if [ -n "$6" ]; then
    mount -t tmpfs none "$6"
    chmod 0755 "$6"
    mkdir -p "$2"
    mount --bind /mnt/python "$2"
fi
cd /mnt/home/checkout
"$7" -m venv --without-pip .venv
printf '%s\n' /mnt/home/checkout /mnt/packages > "$(echo .venv/lib/python*/site-packages)/here.pth"
printf '#!%s\nfrom trainop.cli import main\nmain()\n' "$PWD/.venv/bin/python" > .venv/bin/trainop
chmod +x .venv/bin/trainop
chown -R "$user:$user" /mnt/home
shift 7
exec setpriv --reuid="$user" --regid="$user" --clear-groups -- .venv/bin/python "$@"
"""


def command(*arguments: str) -> list[str]:
    """The command line that runs this Python with `arguments` as the user; root must start it with `environment()`."""
    prefix = Path(sys.base_prefix)
    python = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    hidden = next((str(path) for path in reversed(prefix.parents) if not path.stat().st_mode & stat.S_IXOTH), "")
    paths = [prefix, sysconfig.get_path("purelib"), cache(), ROOT, hidden, python]
    return ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(USER), *map(str, paths), *arguments]


def environment() -> dict[str, str]:
    return {
        "HOME": "/mnt/home",
        "PATH": "/mnt/home/checkout/.venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "TMPDIR": "/mnt/home/tmp",
        "TRAINOP_TESTENV": "/mnt/testenv",
    }


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("only root can become another user")
    argv = command(*sys.argv[1:])
    os.execvpe(argv[0], argv, environment())

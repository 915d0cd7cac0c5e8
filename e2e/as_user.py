"""Runs Python as an ordinary user, in a copy of this checkout that lies in a home which only that user may enter.

    python -m e2e.as_user -m pytest tests/local        (as root, on Linux)

No account is needed, and nothing has to be readable for others: Python, its packages and what the tests have built may
lie in root's home, as they are shown elsewhere in a mount namespace. The copy goes with the process.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from pathlib import Path

from e2e.cluster.places import cache

USER = 12345
"""No account has this number, as with many containers."""
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
    """What runs this Python with these arguments so; root has to start it, with `environment()`."""
    prefix = Path(sys.base_prefix)
    python = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    closed = next((str(place) for place in reversed(prefix.parents) if not place.stat().st_mode & stat.S_IXOTH), "")
    places = [prefix, sysconfig.get_path("purelib"), cache(), ROOT, closed, python]
    return ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(USER), *map(str, places), *arguments]


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
    whole = command(*sys.argv[1:])
    os.execvpe(whole[0], whole, environment())

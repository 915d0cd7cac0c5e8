"""The script of a run: tries what an isolated one must not be able to do, and prints what came of each attempt."""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile

GIVEN = json.loads(sys.argv[1])
"""Places of the test that runs this, and the names of the attempts."""


def write(path):
    with open(path, "a") as file:
        file.write("here")
    return "written"


def read(path):
    with open(path) as file:
        return file.read(1000)


def call(address, family=socket.AF_INET):
    with socket.socket(family) as client:
        client.settimeout(20)
        client.connect(address)
        return client.recv(100).decode()


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def follow_link():
    """A symbolic link of its own out of the folder."""
    os.symlink(GIVEN["home"], "way-out")
    try:
        return read("way-out/secret")
    finally:
        os.unlink("way-out")


def trace(process):
    """ptrace(PTRACE_ATTACH)."""
    if ctypes.CDLL(None, use_errno=True).ptrace(16, process, 0, 0):
        raise OSError(os.strerror(ctypes.get_errno()))
    return "attached"


def become_other():
    """By a copy of `id` with the set-user-ID bit."""
    user = run("./id-of-other", "-u")
    if user == str(os.geteuid()):
        raise OSError("still the same user")
    return user


def make_device():
    os.mknod("disk", 0o60600, os.makedev(254, 0))
    return read("disk")


ATTEMPTS = {
    "read home": lambda: read(GIVEN["home"] + "/secret"),
    "read home by a link": follow_link,
    "read home by the root of process 1": lambda: read("/proc/1/root" + GIVEN["home"] + "/secret"),
    "read home by its own root": lambda: read("/proc/self/root" + GIVEN["home"] + "/secret"),
    "write /usr": lambda: write("/usr/" + GIVEN["name"]),
    "write /etc": lambda: write("/etc/" + GIVEN["name"]),
    "write beside the modules of Python": lambda: write(os.path.dirname(tempfile.__file__) + "/" + GIVEN["name"]),
    "write the hooks of git": lambda: write(".git/post-commit"),
    "replace the folder of git": lambda: os.rename(".git", "other"),
    "read a temporary file of the host": lambda: read(GIVEN["temporary"]),
    "see a process of the host": lambda: read(f"/proc/{GIVEN['pid']}/cmdline")[0] and "seen",
    "read the variables of process 1": lambda: read("/proc/1/environ")[0] and "read",
    "read the variables of a process of the host": lambda: read(f"/proc/{GIVEN['pid']}/environ")[0] and "read",
    "trace process 1": lambda: trace(1),
    "remount": lambda: run("mount", "-o", "remount,rw", "/usr"),
    "uncover": lambda: run("umount", "/tmp"),
    "uncover in a user namespace": lambda: run("unshare", "--user", "--mount", "umount", "/tmp"),
    "set a value of the kernel": lambda: write("/proc/sys/kernel/domainname"),
    "make a device": make_device,
    "become another user": become_other,
    "reach a server of the host": lambda: call(("127.0.0.1", GIVEN["port"])),
    "reach a server of the host by the hub": lambda: call(("10.244.0.1", GIVEN["port"])),
    "reach a server outside": lambda: call(("192.0.2.1", 80)),
    "look up a name of the host": lambda: socket.gethostbyname(GIVEN["host name"]),
    "reach an abstract socket": lambda: call("\0" + GIVEN["abstract"], socket.AF_UNIX),
    "reach a socket in the folder": lambda: call("socket", socket.AF_UNIX),
    "read a token in a variable": lambda: os.environ["HF_TOKEN"],
}

for name in GIVEN.get("attempts") or ATTEMPTS:
    try:
        print("@", json.dumps([name, True, str(ATTEMPTS[name]())]), flush=True)
    except (OSError, KeyError, IndexError, subprocess.SubprocessError) as error:
        print("@", json.dumps([name, False, f"{type(error).__name__}: {error}"]), flush=True)

write("result")
write(os.environ["HOME"] + "/secret")
with tempfile.NamedTemporaryFile() as file:
    write(file.name)
    print("%", json.dumps([os.environ["HOME"], os.path.dirname(file.name), os.getcwd()]), flush=True)
if not GIVEN.get("attempts"):
    write("/dev/shm/part")
    os.close(os.openpty()[0])

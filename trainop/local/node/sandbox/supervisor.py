"""The fork server: a single-threaded process that creates pod namespaces and forks an init for each container.

The agent starts it as `python -m trainop.local.node.sandbox.supervisor MODE FD`, where FD is its end of the control
socket. MODE is that of the network, or `isolated`. But for `addresses` it forks once and serves as PID 1 of a new PID
namespace, so the kernel kills all containers when it exits. It first sends {"reply": 0} with `pid`, or with `error` if
the mode is not available. Each request is then answered in order by {"reply": id}, with `error` if it failed:

    run-pod-sandbox    pod, hostname, address        creates the pod's namespaces
    stop-pod-sandbox   pod                           releases them
    start              pod, argv, env, cwd, mounts, group; descriptors: channel, stdout, stderr
                                                     forks an init, which uses that channel
    network            pod                           replies with a descriptor of the pod's network namespace
    socket             kind: tcp|tcp6|udp, address, port, pod
                                                     replies with a descriptor in the network of the hub, or of `pod`
                                                     if that is set; it is bound if `address` is set
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from trainop.local.node.sandbox import filesystem, isolation, linux, processes
from trainop.local.node.sandbox.bridge import Hub, PodNamespaces
from trainop.local.node.sandbox.channel import Channel, Message, wait_readable
from trainop.local.node.sandbox.container_init import ContainerInit, locate_needed, report_start_failure

_OPEN_FILES = 65536


class Supervisor:
    """Serves one agent and exits with it."""

    def __init__(self, control: socket.socket, *, namespaces: bool, isolated: bool) -> None:
        self._control = Channel(control)
        self._pods: dict[str, PodNamespaces] = {}
        self._inits: set[int] = set()
        self._hub = Hub(isolated=isolated) if namespaces else None
        self._isolated = isolated
        self._pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces else -1

    def serve(self) -> None:
        """Serves requests until the agent closes the control socket, then kills all remaining processes."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        raise_file_limit()
        gc.freeze()  # pages that the garbage collector never touches stay shared with the forks
        while True:
            ready = wait_readable(self._control.fileno(), wake_read)
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready:
                messages = self._control.receive()
                if messages is None:
                    break
                for message, fds in messages:
                    self._serve_request(message, fds)
        if self._hub is None:
            processes.kill_descendants(os.getpid())

    def _reap(self) -> None:
        self._inits -= {pid for pid, _ in processes.reap()}
        if self._hub is None:
            # Processes of an init that was killed are now children of this subreaper.
            orphans = set(processes.descendants(os.getpid())) - self._known()
            processes.kill_tree(list(orphans))

    def _known(self) -> set[int]:
        """PIDs of all inits and their descendants."""
        return self._inits | {pid for init in self._inits for pid in processes.descendants(init)}

    def _serve_request(self, message: Message, fds: list[int]) -> None:
        reply: Message = {"reply": message["id"]}
        reply_fds: list[int] = []
        try:
            match message["op"]:
                case "run-pod-sandbox" if self._hub is not None:
                    self._pods[message["pod"]] = self._hub.add_pod(message["hostname"], message["address"])
                case "stop-pod-sandbox":
                    if (pod := self._pods.pop(message["pod"], None)) is not None:
                        pod.close()
                case "start":
                    reply["pid"] = self._start(message, fds)
                case "network":
                    reply_fds = [os.dup(self._find_pod(message["pod"]).network)]
                case "socket":
                    reply_fds = [self._make_socket(message)]
        except OSError as error:
            reply["error"] = str(error)
        self._control.send(reply, reply_fds)
        for fd in [*fds, *reply_fds]:
            os.close(fd)

    def _make_socket(self, message: Message) -> int:
        if self._hub is None or not message["pod"]:
            return _make_socket(message)
        with self._hub.network_of(self._find_pod(message["pod"])):
            return _make_socket(message)

    def _find_pod(self, uid: str) -> PodNamespaces:
        if (pod := self._pods.get(uid)) is None:
            raise OSError("the pod is not running")
        return pod

    def _start(self, message: Message, fds: list[int]) -> int:
        """Forks an init and returns its PID; in mode `namespaces` it becomes PID 1 of a new PID namespace.

        unshare(CLONE_NEWPID) affects the next child only; setns then restores the supervisor's own namespace for
        later forks.
        """
        if self._hub is not None:
            linux.unshare(linux.CLONE_NEWPID)
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_init(message, fds, supervisor)
            finally:
                os._exit(0)
        self._inits.add(pid)
        if self._hub is not None:
            linux.setns(self._pid_namespace, linux.CLONE_NEWPID)
        return pid

    def _become_init(self, message: Message, fds: list[int], supervisor: int) -> None:
        """In the forked child: enters the pod's namespaces, mounts the file system, and runs the container.

        Without namespaces, the init becomes a subreaper and gets SIGTERM if the supervisor dies. SIGTERM shuts the
        channel down, which kills the container.
        """
        channel_fd, output, errors = fds
        self._control.socket.close()
        channel = socket.socket(fileno=channel_fd)
        hidden: dict[str, str] = {}
        try:
            if self._hub is not None:
                self._pods[message["pod"]].enter()
                for pod in self._pods.values():
                    pod.close()  # otherwise this init would keep all pods' namespaces alive
                linux.unshare(linux.CLONE_NEWNS)
                mounts = [filesystem.Mount(**mount) for mount in message["mounts"]]
                needed = filesystem.locate(locate_needed(message["argv"], message["env"], message["cwd"]))
                (isolation if self._isolated else filesystem).assemble(mounts)
                hidden = filesystem.find_hidden(needed, mounts)
                _scatter_pids()
            elif sys.platform == "linux":
                linux.adopt_orphans()
                linux.die_with_parent(signal.SIGTERM)
                if os.getppid() != supervisor:
                    return
        except OSError as error:
            report_start_failure(channel, str(error))
            return
        init = ContainerInit(
            Channel(channel), message["argv"], message["env"], message["cwd"], hidden, message["group"], self._isolated
        )
        signal.signal(signal.SIGTERM, lambda *_: channel.shutdown(socket.SHUT_RD))
        init.run(output, errors)


def _scatter_pids() -> None:
    """Lets the PIDs of this PID namespace begin at a random number.

    Containers share `/tmp` and `/dev/shm`, and programs name their files there by host name and PID. Without this, two
    clusters that run the same job at the same time have the same names, and Open MPI deletes the files of the other.
    """
    with suppress(OSError), open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:  # noqa: PTH123  # one write(2)
        file.write(str(1000 + int.from_bytes(os.urandom(2)) % 30000))


def raise_file_limit() -> None:
    """Raises the soft limit on open files. Each pod uses three descriptors, so the usual 1024 suffice for 300 pods."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _make_socket(message: Message) -> int:
    kind = socket.SOCK_DGRAM if message["kind"] == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET6 if message["kind"] == "tcp6" else socket.AF_INET, kind) as sock:
        if message.get("address"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((message["address"], message["port"]))
            if kind == socket.SOCK_STREAM:
                sock.listen(128)
        return sock.detach()


def _enter_namespaces() -> None:
    """Returns in a child that is PID 1 of new namespaces; the parent waits for the child and exits with it.

    An ordinary user needs a user namespace, in which the UID and GID are mapped to themselves. Root does not: a user
    namespace would only remove privileges. Raises `OSError`.
    """
    user, group = os.geteuid(), os.getegid()
    # UTS and IPC too: `Hub.add_pod` must be able to return to them, which needs privileges over these namespaces.
    flags = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
    if user == 0:
        linux.unshare(flags)
    else:
        linux.unshare(flags | linux.CLONE_NEWUSER)
        linux.map_user(user, group)
    child = os.fork()
    if child != 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.waitpid(child, 0)
        os._exit(0)
    linux.die_with_parent(signal.SIGKILL)
    filesystem.make_private()
    filesystem.mirror_devices()
    _check_proc()


def _check_proc() -> None:
    """Raises `OSError` if `/proc` cannot be mounted in a new PID namespace, as in some containers."""
    child = os.fork()
    if child == 0:
        try:
            linux.unshare(linux.CLONE_NEWNS)
            linux.mount("proc", "/proc", "proc")
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError("mount proc on /proc: not permitted here")


def _check_isolation() -> None:
    """Raises `OSError` if the kernel does not let this process isolate containers."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        problem = ""
        try:
            isolation.check()
        except OSError as error:
            problem = str(error)
        finally:
            os.write(writer, problem.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        problem = pipe.read()
    if os.waitpid(child, 0)[1] != 0 or problem:
        raise OSError(problem or "isolation could not be tried")


def main(mode: str, descriptor: str) -> None:
    """Reports over the control socket whether the mode is available, then serves."""
    control = socket.socket(fileno=int(descriptor))
    namespaces, isolated = mode != "addresses", mode == "isolated"
    try:
        if namespaces:
            _enter_namespaces()
            if isolated:
                _check_isolation()
        elif sys.platform == "linux":
            linux.adopt_orphans()
        supervisor = Supervisor(control, namespaces=namespaces, isolated=isolated)
    except (OSError, ImportError) as error:
        Channel(control).send({"reply": 0, "error": str(error)})
        return
    with suppress(ConnectionError):
        Channel(control).send({"reply": 0, "pid": os.getpid()})
        supervisor.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

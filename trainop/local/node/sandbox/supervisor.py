"""The fork server: one process without threads that makes pods' namespaces and forks an init for each container.

Started by the agent as `python -m trainop.local.node.sandbox.supervisor MODE FD`, FD being its end of the control
socket. In mode `namespaces` it forks once: the process that serves is PID 1 of a new PID namespace, so that the kernel
ends all pods with it. Requests, each answered in order by {"reply": id, ...} with `error` if it failed:

    hello                                      -> network mode, or why it cannot be had
    open-pod   pod, hostname, address          -> its namespaces
    close-pod  pod
    start      pod, container spec; fds: channel, stdout, stderr   (the rest is told over that channel)
    socket     kind: tcp|udp, address, port    -> a descriptor in the hub's network; bound, if `address` is given
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from trainop.local.node.sandbox import filesystem, linux, processes
from trainop.local.node.sandbox.bridge import Hub, PodNamespaces
from trainop.local.node.sandbox.channel import Channel, Message, wait_readable
from trainop.local.node.sandbox.container_init import ContainerInit, refuse

_FILES = 65536


class Supervisor:
    """Serves one agent, and ends with it."""

    def __init__(self, control: socket.socket, *, namespaces: bool) -> None:
        self._control = Channel(control)
        self._pods: dict[str, PodNamespaces] = {}
        self._inits: set[int] = set()
        self._hub = Hub() if namespaces else None
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces else -1

    def serve(self) -> None:
        """Until the agent is gone; then ends every process that is left."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        raise_file_limit()
        gc.freeze()  # what is not looked at by the collector stays shared with every fork
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
                    self._answer(message, fds)
        if self._hub is None:
            processes.kill_descendants(os.getpid())

    def _reap(self) -> None:
        self._inits -= {pid for pid, _ in processes.reap()}
        if self._hub is None:
            # An init that was killed left its processes to us.
            strays = set(processes.descendants(os.getpid())) - self._known()
            processes.kill_tree(list(strays))

    def _known(self) -> set[int]:
        return self._inits | {pid for init in self._inits for pid in processes.descendants(init)}

    def _answer(self, message: Message, fds: list[int]) -> None:
        reply: Message = {"reply": message["id"]}
        given: list[int] = []
        try:
            match message["op"]:
                case "open-pod" if self._hub is not None:
                    self._pods[message["pod"]] = self._hub.add_pod(message["hostname"], message["address"])
                case "close-pod":
                    if (pod := self._pods.pop(message["pod"], None)) is not None:
                        pod.close()
                case "start":
                    self._start(message, fds)
                case "socket":
                    given = [_make_socket(message)]
        except OSError as error:
            reply["error"] = str(error)
        self._control.send(reply, given)
        for fd in [*fds, *given]:
            os.close(fd)

    def _start(self, message: Message, fds: list[int]) -> None:
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
            linux.setns(self._own_pids, linux.CLONE_NEWPID)

    def _become_init(self, message: Message, fds: list[int], supervisor: int) -> None:
        channel_fd, output, errors = fds
        self._control.socket.close()
        channel = socket.socket(fileno=channel_fd)
        try:
            if self._hub is not None:
                self._pods[message["pod"]].enter()
                for pod in self._pods.values():
                    pod.close()  # else this init would keep the network of every pod alive
                linux.unshare(linux.CLONE_NEWNS)
                filesystem.assemble([filesystem.Mount(**mount) for mount in message["mounts"]])
            elif sys.platform == "linux":
                linux.adopt_orphans()
                linux.die_with_parent(signal.SIGTERM)
                if os.getppid() != supervisor:
                    return
        except OSError as error:
            refuse(channel, str(error))
            return
        init = ContainerInit(Channel(channel), message["argv"], message["env"], message["cwd"])
        signal.signal(signal.SIGTERM, lambda *_: channel.shutdown(socket.SHUT_RD))
        init.run(output, errors)


def raise_file_limit() -> None:
    """Three descriptors for each pod: the usual soft limit would do for 300."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _make_socket(message: Message) -> int:
    kind = socket.SOCK_DGRAM if message["kind"] == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as made:
        if message.get("address"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((message["address"], message["port"]))
            if kind == socket.SOCK_STREAM:
                made.listen(128)
        return made.detach()


def _enter_namespaces() -> None:
    """Returns in the child that is PID 1 of the new namespaces; the parent waits for it and ends with it.

    An ordinary user needs a user namespace and stays who they are in it; for root that would only take rights away.
    """
    user, group = os.geteuid(), os.getegid()
    # Also its own UTS and IPC namespaces: only those can be entered again after a pod's were made.
    wanted = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
    if user == 0:
        linux.unshare(wanted)
    else:
        linux.unshare(wanted | linux.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123  # one write(2) each
                file.write(text)
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
    """A `/proc` of one's own must be possible: in some containers the kernel refuses it."""
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


def main(mode: str, descriptor: str) -> None:
    """Says over the control socket whether the mode can be had, then serves."""
    control = socket.socket(fileno=int(descriptor))
    namespaces = mode == "namespaces"
    try:
        if namespaces:
            _enter_namespaces()
        elif sys.platform == "linux":
            linux.adopt_orphans()
        supervisor = Supervisor(control, namespaces=namespaces)
    except (OSError, ImportError) as error:
        Channel(control).send({"reply": 0, "error": str(error)})
        return
    with suppress(ConnectionError):
        Channel(control).send({"reply": 0, "pid": os.getpid()})
        supervisor.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

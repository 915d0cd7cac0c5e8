"""DNS of the local cluster: resolution of names, and DNS messages."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from trainop.local.node.network.addresses import AddressAllocator, replace_names, replace_paths, rewrite_command
from trainop.local.node.network.dns import answer
from trainop.local.node.network.loopback import LoopbackNames
from trainop.local.node.network.names import ObjectLookup, belongs_to_cluster, hosts_file, resolve, resolver_file
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import Command
from trainop.runtime.objects.metadata import Key, Unstructured


def make_pod(name: str, address: str = "", *, ready: bool = True, phase: str = "Running", **spec: Any) -> Unstructured:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    meta = {"name": name, "namespace": "team", "uid": name, "labels": {"job": "j", "replica": name}}
    return Unstructured(
        {"metadata": meta, "spec": spec, "status": {"podIP": address, "phase": phase, "conditions": conditions}}
    )


def make_service(name: str, selector: dict[str, str], **spec: Any) -> Unstructured:
    meta = {"name": name, "namespace": "team", "uid": name}
    return Unstructured({"metadata": meta, "spec": {"clusterIP": "None", "selector": selector, **spec}})


PODS = [
    make_pod("j-master-0", "10.244.0.2", hostname="j-master-0", subdomain="all"),
    make_pod("j-worker-0", "10.244.0.3", ready=False, hostname="j-worker-0", subdomain="all"),
    make_pod("j-worker-1", "10.244.0.4", hostname="j-worker-1", subdomain="all"),
    make_pod("alone", "10.244.0.5"),
    make_pod("alone-starting", "10.244.0.6", ready=False),
    make_pod("finished", "10.244.0.7", ready=False, phase="Succeeded"),
    make_pod("failed", "10.244.0.8", ready=False, phase="Failed"),
]
SERVICES = [
    make_service("j-master-0", {"replica": "j-master-0"}),
    make_service("j-worker-0", {"replica": "j-worker-0"}),
    make_service("early", {"replica": "j-worker-0"}, publishNotReadyAddresses=True),
    make_service("all", {"job": "j"}),
    make_service("done", {"replica": "finished"}),
    make_service("broken", {"replica": "failed"}, publishNotReadyAddresses=True),
    make_service("by-hand", {}),
]


def look(found: list[Unstructured], namespace: str, name: str) -> Unstructured | None:
    return next((one for one in found if one.metadata.key == Key(namespace, name)), None)


NAMES = ObjectLookup(
    service=lambda namespace, name: look(SERVICES, namespace, name),
    pod=lambda namespace, name: look(PODS, namespace, name),
    pods=lambda namespace: [pod for pod in PODS if pod.metadata.namespace == namespace],
)


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("j-master-0.team.svc.cluster.local", ["10.244.0.2"]),
        ("J-Master-0.team.svc.cluster.local.", ["10.244.0.2"]),
        ("j-worker-0.team.svc.cluster.local", None),
        ("early.team.svc.cluster.local", ["10.244.0.3"]),
        ("all.team.svc.cluster.local", ["10.244.0.2", "10.244.0.4", "10.244.0.5"]),
        ("j-worker-1.all.team.svc.cluster.local", ["10.244.0.4"]),
        ("j-worker-0.all.team.svc.cluster.local", None),
        ("nobody.all.team.svc.cluster.local", None),
        ("done.team.svc.cluster.local", ["10.244.0.7"]),  # nobody is to wait for a master that has ended
        ("finished.team.svc.cluster.local", ["10.244.0.7"]),
        ("broken.team.svc.cluster.local", None),
        ("by-hand.team.svc.cluster.local", None),
        ("alone.team.svc.cluster.local", ["10.244.0.5"]),
        ("alone-starting.team.svc.cluster.local", None),
        ("j-master-0.other.svc.cluster.local", None),
        ("10-244-0-9.team.pod.cluster.local", ["10.244.0.9"]),
        ("localhost", ["127.0.0.1"]),
        ("j-master-0", None),
        ("pypi.org", None),
        ("cluster.local", None),
        ("a.b.c.d.e.team.svc.cluster.local", None),
    ],
)
def test_a_name_stands_for_ready_pods(name: str, addresses: list[str] | None) -> None:
    assert resolve(name, NAMES) == addresses


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("any.other.svc.cluster.local", True),
        ("any.other.svc", True),
        ("any.team", True),
        ("any", True),
        ("localhost", True),
        ("pypi.org", False),
        ("any.other", False),
    ],
)
def test_only_names_of_the_world_beyond_are_asked_for_there(name: str, inside: bool) -> None:
    assert belongs_to_cluster(name, NAMES) is inside


def question(name: str, kind: int = 1, *, flags: int = 0x0100, count: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, flags, count, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


async def lookup(name: str) -> list[str] | None:
    return {"one.local": ["10.0.0.1"], "many.local": [f"10.0.1.{n}" for n in range(60)]}.get(name)


def header(message: bytes) -> tuple[int, int, int]:
    number, flags, _, answers = struct.unpack_from("!HHHH", message)
    assert number == 7
    return flags & 0xF, flags & 0x0200, answers


async def test_dns_answers_with_addresses() -> None:
    response = await answer(question("one.local"), lookup)
    assert header(response) == (0, 0, 1)
    assert response.endswith(bytes([10, 0, 0, 1]))
    assert response[12:].startswith(question("one.local")[12:])


@pytest.mark.parametrize(
    ("query", "code", "answers"),
    [
        (question("none.local"), 3, 0),
        (question("one.local", kind=28), 0, 0),
        (question("one.local", flags=0x2900), 4, 0),
        (question("one.local", count=2), 1, 0),
        (question("one.local")[:14], 1, 0),
    ],
    ids=["unknown name", "other family", "other operation", "two questions", "cut off"],
)
async def test_dns_answers_what_it_cannot_give(query: bytes, code: int, answers: int) -> None:
    assert header(await answer(query, lookup)) == (code, 0, answers)


@pytest.mark.parametrize("query", [b"", b"short", question("one.local", flags=0x8100)])
async def test_dns_does_not_answer_invalid_queries(query: bytes) -> None:
    assert await answer(query, lookup) == b""


async def test_a_long_answer_is_cut_for_udp_and_whole_over_tcp() -> None:
    short = await answer(question("many.local"), lookup, limit=512)
    assert len(short) <= 512
    assert header(short)[1]
    assert header(await answer(question("many.local"), lookup)) == (0, 0, 60)


def test_files_of_the_resolver() -> None:
    spec = {"subdomain": "all", "hostAliases": [{"ip": "10.1.1.1", "hostnames": ["files", "files.example"]}]}
    pod = {"metadata": {"namespace": "team"}, "spec": spec}
    lines = hosts_file(pod, "10.244.0.2", "w-0").splitlines()
    assert lines[0] == "127.0.0.1\tlocalhost"
    assert lines[-2:] == ["10.244.0.2\tw-0.all.team.svc.cluster.local w-0", "10.1.1.1\tfiles files.example"]
    assert hosts_file({"metadata": {}, "spec": {}}, "10.244.0.2", "w-0").endswith("\n10.244.0.2\tw-0\n")
    assert resolver_file(pod, "10.244.0.1").splitlines() == [
        "nameserver 10.244.0.1",
        "search team.svc.cluster.local svc.cluster.local cluster.local",
        "options ndots:5 timeout:2 attempts:3",
    ]


def test_a_pod_adds_search_domains_and_options() -> None:
    """As the workers of MPIJobs do, whose processes look for the launcher by its host name alone."""
    own = {
        "searches": ["j.team.svc.cluster.local", "cluster.local"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }
    pod = {"metadata": {"namespace": "team"}, "spec": {"dnsConfig": own}}
    assert resolver_file(pod, "10.244.0.1").splitlines()[1:] == [
        "search team.svc.cluster.local svc.cluster.local cluster.local j.team.svc.cluster.local",
        "options ndots:2 timeout:2 attempts:3 edns0",
    ]


def test_addresses_are_not_used_again_before_all_others_were() -> None:
    addresses = AddressAllocator("namespaces", seed=0)
    first = addresses.allocate(Key("team", "p"))
    addresses.release(first)
    assert first == "10.244.0.2"
    assert addresses.allocate(Key("team", "p")) == "10.244.0.3"
    taken = {addresses.allocate(Key("team", f"p{n}")) for n in range(2**16 - 4)}
    assert first in taken
    assert not taken & {"10.244.0.0", "10.244.0.1", "10.244.255.255"}
    with pytest.raises(RuntimeError, match="no address is left"):
        addresses.allocate(Key("team", "one more"))


def test_on_loopback_a_name_keeps_its_address() -> None:
    addresses = AddressAllocator("addresses", seed=5, platform="linux")
    promised = addresses.reserve(Key("team", "j-worker-1"))
    assert promised.startswith("127.21.")
    assert addresses.allocate(Key("team", "other")) != promised
    assert addresses.allocate(Key("team", "j-worker-1")) == promised
    addresses.release(promised)
    assert addresses.allocate(Key("team", "j-worker-1")) == promised


def test_where_only_one_loopback_address_is_configured_all_share_it() -> None:
    addresses = AddressAllocator("addresses", seed=5, platform="darwin")
    assert {addresses.allocate(Key("team", name)) for name in "abc"} == {"127.0.0.1"}


def test_on_loopback_names_of_services_pods_and_siblings_are_known() -> None:
    addresses = AddressAllocator("addresses", seed=0, platform="linux")
    meta = {"name": "j-master-0", "ownerReferences": [{"name": "j", "controller": True}]}
    address_of = LoopbackNames(NAMES, addresses).address_of("team", meta)
    master = addresses.reserve(Key("team", "j-master-0"))
    assert address_of("j-master-0") == master
    assert address_of("j-master-0.team.svc.cluster.local") == master
    assert address_of("j-master-0.team") == master
    assert address_of("j-worker-7") == addresses.reserve(Key("team", "j-worker-7"))
    assert address_of("j-worker-1.all") == addresses.reserve(Key("team", "j-worker-1"))
    assert address_of("j-worker-7.not-there-yet.team.svc") == addresses.reserve(Key("team", "j-worker-7"))
    assert address_of("stranger.not-there-yet.team.svc") is None
    assert address_of("alone") == addresses.reserve(Key("team", "alone"))
    assert address_of("unheard-of") is None
    assert address_of("j-master-0.other") is None
    assert address_of("python") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("job-0", "127.16.0.2"),
        ("tcp://job-0:23456", "tcp://127.16.0.2:23456"),
        ("job-0.team.svc:80,job-0:81", "<full>:80,127.16.0.2:81"),
        ('{"worker": ["job-0:2222"]}', '{"worker": ["127.16.0.2:2222"]}'),
        ("sh -c 'nslookup job-0;'", "sh -c 'nslookup 127.16.0.2;'"),
        ("my-job-0", "my-job-0"),
        ("job-0-1", "job-0-1"),
        ("/data/job-0", "/data/job-0"),
        ("ssh user@job-0", "ssh user@127.16.0.2"),
    ],
)
def test_whole_words_that_are_names_become_addresses(text: str, expected: str) -> None:
    known = {"job-0": "127.16.0.2", "job-0.team.svc": "<full>"}
    assert replace_names(text, known.get) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/n/v"),
        ("/data/x", "/n/v/x"),
        ("--out=/data/x:/data/deep/y", "--out=/n/v/x:/n/w/y"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("cat /data;", "cat /n/v;"),
        ("data", "data"),
    ],
)
def test_paths_below_mount_points_become_the_paths_behind_them(text: str, expected: str) -> None:
    assert replace_paths(text, [Mount("/data", "/n/v"), Mount("/data/deep", "/n/w")]) == expected


def test_a_whole_command_is_written_out() -> None:
    mounts = [Mount("/data", "/n/v"), Mount("/tmp/memory")]
    command = Command(["run", "/data/t.py"], {"MASTER": "job-0:1", "POD": "job-1"}, "/data", mounts)
    written = rewrite_command(command, {"job-0": "127.16.0.2", "job-1": "127.16.0.3"}.get, {"POD"})
    assert written.argv == ["run", "/n/v/t.py"]
    assert written.environment == {"MASTER": "127.16.0.2:1", "POD": "job-1"}
    assert written.directory == "/n/v"

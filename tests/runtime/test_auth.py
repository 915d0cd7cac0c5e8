"""Client configuration: precedence of the sources, effect of each field, and a one-line error for every mistake."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.patience import PATIENCE
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.client.auth import ClusterConfig, ConfigError, load_config
from trainop.runtime.client.cluster import AuthHeaders, Credentials
from trainop.runtime.client.credentials import TokenFile
from trainop.runtime.client.proxy import proxy_for
from trainop.runtime.client.tls import Material, read_material
from trainop.runtime.client.transport import NotConnectedError


def kubeconfig(user: dict[str, Any] | None = None, /, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def load(path: Path, content: Any, **environ: str) -> ClusterConfig:
    return load_config(str(write(path / "config", content)), clock=VirtualClock(), environ=environ)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    write(folder / "token", "pod-token\n")
    write(folder / "ca.crt", "ca")
    write(folder / "namespace", "system")
    return folder


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def test_sources_in_their_order(tmp_path: Path, account: Path):
    def server(flag: Path | None = None, /, **environ: str) -> str:
        return load_config(str(flag) if flag else None, environ=environ, service_account=account).server

    def at(name: str) -> Path:
        return write(
            tmp_path / name, kubeconfig() | {"clusters": [{"name": "c", "cluster": {"server": f"https://{name}"}}]}
        )

    (tmp_path / ".kube").mkdir()
    home = {"HOME": str(tmp_path)}
    at(".kube/config")
    assert server(**home) == "https://.kube/config"
    assert server(**home, **IN_POD) == "https://10.0.0.1:6443"
    assert server(**home, **IN_POD, KUBECONFIG=str(at("variable"))) == "https://variable"
    assert server(at("flag"), **home, **IN_POD, KUBECONFIG=str(at("variable"))) == "https://flag"


@virtual_time
async def test_service_account(account: Path):
    config = load_config(
        None, clock=VirtualClock(), environ=IN_POD | {"HTTPS_PROXY": "http://p"}, service_account=account
    )
    assert (config.server, config.namespace, config.proxy) == ("https://10.0.0.1:6443", "system", None)
    assert config.ca == account / "ca.crt"
    assert config.credentials is not None
    assert (await config.credentials.auth_headers()).headers == {"authorization": "Bearer pod-token"}


def test_service_account_needs_no_heavy_import(account: Path):
    """In-cluster configuration must not import YAML or kubernetes_asyncio (36 MiB)."""
    import subprocess  # noqa: PLC0415  # only here

    program = (
        "import sys, pathlib; from trainop.runtime.client.auth import load_config; import trainop.runtime.client.http; "
        f"load_config(None, environ={IN_POD!r}, service_account=pathlib.Path({str(account)!r})); "
        "print([name for name in ('yaml', 'kubernetes_asyncio') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert out.stdout.strip() == "[]"


def test_ipv6_address_of_the_service(account: Path):
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert load_config(None, environ=environ, service_account=account).server == "https://[fd00::1]:443"


def test_files_merge_and_the_first_wins(tmp_path: Path):
    first = write(tmp_path / "first", {"contexts": [{"name": "x", "context": {"cluster": "c"}}], "users": None})
    second = write(
        tmp_path / "second",
        yaml.safe_dump(kubeconfig({"token": "t"}, **{"certificate-authority": "ca.pem"}) | {"current-context": "x"}),
    )
    write(tmp_path / "ca.pem", "ca")
    listed = os.pathsep.join([str(tmp_path / "missing"), str(first), str(second)])
    config = load_config(None, environ={"KUBECONFIG": listed})
    assert config.server == "https://api:6443"
    assert config.ca == tmp_path / "ca.pem"
    assert config.credentials is None
    assert load_config(None, "here", environ={"KUBECONFIG": listed}).namespace == "team"


@virtual_time
async def test_fields_of_cluster_and_user(tmp_path: Path):
    encoded = base64.b64encode(b"pem").decode()
    user = {"client-certificate-data": encoded, "client-key-data": encoded, "as": "boss", "as-groups": ["g", "h"]}
    config = load(
        tmp_path,
        kubeconfig(
            user,
            **{
                "certificate-authority-data": encoded,
                "insecure-skip-tls-verify": True,
                "tls-server-name": "other",
                "proxy-url": "http://proxy:3128",
            },
        ),
        HTTPS_PROXY="http://ignored",
    )
    assert read_material(config, None) == Material(b"pem", b"pem", b"pem")
    assert (config.insecure, config.tls_server_name, config.proxy) == (True, "other", "http://proxy:3128")
    assert config.headers == (("impersonate-user", "boss"), ("impersonate-group", "g"), ("impersonate-group", "h"))
    assert "pem" not in repr(config.client_key) or "client_key" not in repr(config)


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({"token": "inline", "username": "x"}, "Bearer inline"),
        ({"tokenFile": "token"}, "Bearer from-file"),
        ({"username": "x", "password": "y"}, "Basic eDp5"),
    ],
)
@virtual_time
async def test_tokens_and_passwords(tmp_path: Path, user: dict[str, str], authorization: str):
    write(tmp_path / "token", "from-file\n")
    credentials = load(tmp_path, kubeconfig(user)).credentials
    assert credentials is not None
    assert (await credentials.auth_headers()).headers == {"authorization": authorization}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not a kubeconfig: while parsing"),
        ("just words", "must be an object with clusters, users and contexts"),
        ({}, "no current-context is set; contexts there: none"),
        (kubeconfig() | {"current-context": "there"}, "context 'there' does not exist; contexts there: here"),
        (kubeconfig() | {"clusters": []}, "context 'here' names cluster 'c'; clusters there: none"),
        (kubeconfig() | {"users": []}, "context 'here' names user 'u'; users there: none"),
        (kubeconfig() | {"clusters": {}}, "clusters must be a list of entries|names cluster 'c'"),
        (kubeconfig() | {"clusters": "c"}, "clusters must be a list of entries"),
        (kubeconfig(server="api:6443"), "server of cluster 'c' is 'api:6443'; it must be https://host:port"),
        (kubeconfig(**{"certificate-authority": "nope.pem"}), "certificate-authority of cluster 'c'.*does not exist"),
        (kubeconfig(**{"certificate-authority-data": "%"}), "certificate-authority-data of cluster 'c' is not base64"),
        (kubeconfig({"tokenFile": "nope"}), "tokenFile of user 'u'.*does not exist"),
        (kubeconfig({"exec": {"args": []}}), "exec of user 'u' needs command"),
        (kubeconfig(**{"proxy-url": "socks5://p"}), "only http:// and https:// proxies work"),
    ],
)
def test_mistakes_are_reported_in_one_line(tmp_path: Path, content: Any, complaint: str):
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "config") in str(caught.value)


def test_missing_files_are_named(tmp_path: Path, account: Path):
    with pytest.raises(ConfigError, match="--kubeconfig /nope: no such file"):
        load_config("/nope", environ={})
    with pytest.raises(ConfigError, match="KUBECONFIG is /nope: no such file"):
        load_config(None, environ={"KUBECONFIG": "/nope"})
    with pytest.raises(ConfigError, match="no cluster is configured: neither --kubeconfig nor"):
        load_config(None, environ={"HOME": str(tmp_path)})
    (account / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt does not exist"):
        load_config(None, environ=IN_POD, service_account=account)


def test_a_user_without_a_home_and_an_account(monkeypatch: pytest.MonkeyPatch):
    def no_account(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", no_account)
    with pytest.raises(ConfigError, match=r"no cluster is configured: .* and ~/\.kube/config does not exist"):
        load_config(None, environ={})
    with pytest.raises(ConfigError, match=r"--kubeconfig ~/config: no such file"):
        load_config("~/config", environ={})


@pytest.mark.case("runtime-37", "ab")
@pytest.mark.case("runtime-30", "b")
@virtual_time
async def test_token_file_is_read_again(tmp_path: Path):
    clock = VirtualClock()
    path = write(tmp_path / "token", "one\n")
    tokens = TokenFile(path, clock)

    async def token() -> str:
        return (await tokens.auth_headers()).headers["authorization"].removeprefix("Bearer ")

    assert await token() == "one"
    write(path, "two")
    assert await token() == "one"
    clock.jump(3600)
    assert await token() == "one", "a jump of the wall clock has no effect"
    await clock.sleep(50)
    assert await token() == "two"
    await clock.sleep(50)
    write(path, " \n")
    assert await token() == "two", "an empty file means that a rotation is in progress"
    path.unlink()
    assert await token() == "two"
    write(path, "three")
    assert await token() == "three"
    write(path, "four")
    assert tokens.refused(await tokens.auth_headers())
    assert await token() == "four", "after a 401 the file is read again at once"


@virtual_time
async def test_missing_token_file_is_an_error(tmp_path: Path):
    with pytest.raises(NotConnectedError, match="contains no token"):
        await TokenFile(tmp_path / "token", VirtualClock()).auth_headers()


PLUGIN = """\
import json, os, sys, pathlib
counter = pathlib.Path(sys.argv[1])
runs = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(runs))
sys.stderr.write("x" * 200_000)
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = {"token": f"{os.environ['PREFIX']}{runs}-{info['spec'].get('cluster', {}).get('server')}", %s}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def plugin(tmp_path: Path, extra: str = "") -> dict[str, Any]:
    script = write(tmp_path / "plugin.py", PLUGIN % extra)
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script), str(tmp_path / "runs")],
        "env": [{"name": "PREFIX", "value": "p"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }


async def test_exec_plugin_is_run_when_needed(tmp_path: Path):
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": plugin(tmp_path)}))), environ={})
    credentials = config.credentials
    assert credentials is not None
    for _ in range(2):
        assert (await credentials.auth_headers()).headers == {"authorization": "Bearer p1-https://api:6443"}
    assert credentials.refused(await credentials.auth_headers())
    assert (await credentials.auth_headers()).headers == {"authorization": "Bearer p2-https://api:6443"}


async def test_exec_plugin_is_run_again_shortly_before_expiry(tmp_path: Path):
    spec = plugin(tmp_path, '"expirationTimestamp": "2026-01-01T00:01:00Z", "clientCertificateData": "cert"')
    clock = SteppedClock()
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": spec}))), clock=clock, environ={})
    credentials = config.credentials
    assert credentials is not None
    seen = []
    for seconds in (0.0, 49.0, 2.0):
        clock.seconds += seconds
        auth = await credentials.auth_headers()
        seen.append(auth.headers["authorization"][7:9])
        assert auth.certificate == b"cert"
    assert seen == ["p1", "p1", "p2"]


async def test_exec_plugin_is_run_once_for_all_waiters(tmp_path: Path):
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": plugin(tmp_path)}))), environ={})
    assert config.credentials is not None
    answers = await asyncio.gather(*[config.credentials.auth_headers() for _ in range(5)])
    assert {auth.headers["authorization"] for auth in answers} == {"Bearer p1-https://api:6443"}


async def refuse_all(credentials: Credentials, shown: list[AuthHeaders]) -> set[str]:
    """Report a 401 for each of the credentials shown; returns the tokens used for the retries."""

    async def again(auth: AuthHeaders) -> str:
        if credentials.refused(auth):
            auth = await credentials.auth_headers()
        return auth.headers["authorization"][7:9]

    return set(await asyncio.gather(*[again(auth) for auth in shown]))


async def test_exec_plugin_is_run_once_for_sixty_requests_that_were_refused(tmp_path: Path):
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": plugin(tmp_path)}))), environ={})
    credentials = config.credentials
    assert credentials is not None
    old = await credentials.auth_headers()
    assert await refuse_all(credentials, [old] * 30) == {"p2"}
    assert await refuse_all(credentials, [old] * 30) == {"p2"}, (
        "a 401 for the old token that arrives later does not run the plugin again"
    )
    assert await refuse_all(credentials, [await credentials.auth_headers()] * 60) == {"p2"}, (
        "the plugin is not run again at once"
    )
    assert (tmp_path / "runs").read_text() == "2"


async def test_exec_plugin_that_fails_is_not_run_for_each_waiter(tmp_path: Path):
    runs = tmp_path / "runs"
    spec = {"command": "sh", "args": ["-c", f"echo >> {runs}; exit 1"], "interactiveMode": "Never"}
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": spec}))), environ={})
    assert config.credentials is not None
    outcomes = await asyncio.gather(*[config.credentials.auth_headers() for _ in range(60)], return_exceptions=True)
    assert all(isinstance(outcome, NotConnectedError) for outcome in outcomes)
    assert runs.read_text() == "\n"


@virtual_time
async def test_token_in_the_kubeconfig_is_read_again(tmp_path: Path):
    path = write(tmp_path / "config", kubeconfig({"token": "one"}))
    credentials = load_config(str(path), clock=VirtualClock(), environ={}).credentials
    assert credentials is not None

    async def token() -> str:
        return (await credentials.auth_headers()).headers["authorization"].removeprefix("Bearer ")

    assert await token() == "one"
    write(path, kubeconfig({"token": "two"}))
    assert await token() == "one"
    await asyncio.sleep(50)
    assert await token() == "two"
    write(path, kubeconfig({"token": "three"}, server="https://other:6443"))
    await asyncio.sleep(50)
    assert await token() == "two", "a token for another server is not sent to this one"


async def test_exec_plugin_that_hangs_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainop.runtime.client.execplugin.TIMEOUT", 0.05)
    spec = {"command": "sleep", "args": ["60"]}
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": spec}))), environ={})
    assert config.credentials is not None
    with pytest.raises(NotConnectedError, match="exec plugin sleep: no answer in"):
        await config.credentials.auth_headers()


async def test_exec_plugin_is_killed_on_cancellation_and_has_no_terminal(tmp_path: Path):
    script = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} {sys.stdin.read()}.'); time.sleep(60)"
    spec = {"command": sys.executable, "args": ["-c", script, str(tmp_path / "pid")], "interactiveMode": "IfAvailable"}
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": spec}))), environ={})
    assert config.credentials is not None
    asking = asyncio.ensure_future(config.credentials.auth_headers())

    def written() -> str:
        return (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""

    async with asyncio.timeout(PATIENCE):
        while not written().endswith("."):  # noqa: ASYNC110  # the program tells nobody
            await asyncio.sleep(0.01)
    pid, _, read = written().partition(" ")
    assert read == ".", "stdin is empty"
    asking.cancel()
    await asyncio.wait([asking])
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_token_file_is_read_once_for_all_waiters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "token", "t")
    reads: list[Path] = []
    read_text = Path.read_text

    def counted(self: Path) -> str:
        reads.append(self)
        return read_text(self)

    monkeypatch.setattr(Path, "read_text", counted)
    credentials = TokenFile(path, VirtualClock())
    await asyncio.gather(*[credentials.auth_headers() for _ in range(5)])
    assert reads == [path]


class SteppedClock(VirtualClock):
    """A clock that only the test advances, independent of the real duration of a subprocess."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"command": "/does/not/exist", "installHint": "get it"}, "No such file or directory; get it"),
        ({"command": "sh", "args": ["-c", "echo no luck >&2; exit 3"]}, "exit code 3: no luck"),
        ({"command": "sh", "args": ["-c", "echo nonsense"]}, "not an ExecCredential"),
        ({"command": "sh", "args": ["-c", "echo '{\"status\": {}}'"]}, "neither token nor certificate"),
        ({"command": "sh", "interactiveMode": "Always"}, "needs a terminal"),
    ],
)
async def test_exec_plugin_that_fails_says_why(tmp_path: Path, spec: dict[str, Any], complaint: str):
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": spec}))), environ={})
    assert config.credentials is not None
    with pytest.raises(NotConnectedError, match=complaint):
        await config.credentials.auth_headers()


def jwt(expires_in: float) -> str:
    parts = ({"alg": "none"}, {"exp": int(time.time() + expires_in), "sub": "me"})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "sig"])


def oidc(**config: str) -> dict[str, Any]:
    return {"auth-provider": {"name": "oidc", "config": config}}


async def test_auth_provider_is_left_to_the_library(tmp_path: Path):
    token = jwt(3600)
    credentials = load(tmp_path, kubeconfig(oidc(**{"id-token": token}))).credentials
    assert credentials is not None
    assert (await credentials.auth_headers()).headers == {"authorization": f"Bearer {token}"}
    assert credentials.refused(await credentials.auth_headers())


async def test_auth_provider_that_fails_says_why(tmp_path: Path):
    credentials = load(tmp_path, kubeconfig(oidc())).credentials
    assert credentials is not None
    with pytest.raises(NotConnectedError, match=r"login of context 'here' failed: .*No valid id-token"):
        await credentials.auth_headers()


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://10.1.2.3:443", {"HTTPS_PROXY": "http://p"}, "http://p"),
        ("https://10.1.2.3:443", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("http://10.1.2.3", {"HTTPS_PROXY": "http://p"}, None),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, None),
        ("https://11.1.2.3", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8,x/y"}, "http://p"),
        ("https://api.corp.net", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a, corp.net"}, None),
        ("https://corp.net", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".corp.net"}, "http://p"),
        ("https://mycorp.net", {"HTTPS_PROXY": "http://p", "NO_PROXY": "corp.net"}, "http://p"),
        ("https://api:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "api:6443"}, None),
        ("https://api:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "api:443"}, "http://p"),
        ("https://api", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, None),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p"}, None),
        ("https://localhost", {"HTTPS_PROXY": "http://p"}, None),
    ],
)
def test_proxies_of_the_environment(server: str, environ: dict[str, str], proxy: str | None):
    assert proxy_for(server, environ) == proxy


# Fuzzing -------------------------------------------------------------------------------------------------------------

STRANGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.text(max_size=5)
    | st.sampled_from(["https://[::1", "a\x00b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
GOOD = kubeconfig(
    {"token": "t", "exec": {"command": "c", "args": [], "env": [{"name": "a", "value": "b"}]}, "as-groups": ["g"]},
    **{"extensions": [{"name": "e", "extension": {}}], "proxy-url": "http://p", "tls-server-name": "n"},
) | {"users": [{"name": "u", "user": {"exec": {"command": "c", "env": [{"name": "a", "value": "b"}]}, "as": "x"}}]}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def spoil(value: Any, path: tuple[Any, ...], strange: Any) -> Any:
    if not path:
        return strange
    spoilt = copy.copy(value)
    spoilt[path[0]] = spoil(value[path[0]], path[1:], strange)
    return spoilt


@pytest.mark.parametrize("path", places(GOOD), ids=lambda path: ".".join(map(str, path)) or "all")
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(strange=STRANGE)
def test_any_value_of_a_kubeconfig_is_accepted_or_a_config_error(tmp_path: Path, path: tuple[Any, ...], strange: Any):
    try:
        load(tmp_path, spoil(GOOD, path, strange))
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017  # one that loads is as good


@pytest.mark.parametrize("path", [("users", 0, "name"), ("clusters", 0, "name"), ("contexts", 0, "name")])
def test_a_name_with_a_line_break_leaves_the_error_on_one_line(tmp_path: Path, path: tuple[Any, ...]):
    with pytest.raises(ConfigError, match=r"there: one two$") as caught:
        load(tmp_path, spoil(GOOD, path, "one\ntwo"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"a: " + b"[" * 2_000 + b"]" * 2_000,
        b'{"users": "\xff\xfe"}',
        b"\xff\xfe\x00",
        b"users: 2025-99-99",
        b"users: !!int x",
        b'users: !!int ""',
        b"users: !!bool x",
        b"users: !!timestamp x",
        b"users: !!python/object:os.system x",
        b"? {a: b}\n: c",
        b"\x00",
    ],
)
def test_any_bytes_of_a_kubeconfig_are_one_line_that_names_the_file(tmp_path: Path, raw: bytes):
    path = tmp_path / "config"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), clock=VirtualClock(), environ={})
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 3_000


@pytest.mark.parametrize(
    "said",
    [
        b'{"status":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
        b"[" * 100_000,
        b'{"status": {"token": "\xff"}}',
        b'{"status": {"token": 5}}',
        b'{"status": {"token": ["t"]}}',
        b'{"status": []}',
        b'{"status": {"token": "t", "expirationTimestamp": "9999999-01-01T00:00:00Z"}}',
        b'{"status": {"token": "t", "expirationTimestamp": 5}}',
        b'{"status": {"token": "a\\r\\nx-other: b"}}',
        b'{"status": {"token": "\\u00fc"}}',
        b"",
    ],
)
async def test_any_output_of_an_exec_plugin_is_a_credential_or_a_connection_error(tmp_path: Path, said: bytes):
    (tmp_path / "said").write_bytes(said)
    spec = {"command": "cat", "args": [str(tmp_path / "said")]}
    config = load_config(str(write(tmp_path / "config", kubeconfig({"exec": spec}))), environ={})
    assert config.credentials is not None
    with pytest.raises(NotConnectedError, match="exec plugin cat: "):
        await config.credentials.auth_headers()

"""Reads and merges kubeconfig files and builds a `ClusterConfig` from one of their contexts.

For every named entry and for `current-context`, the first file that has it wins, as in client-go. Each error message
is one line with the file, the place in the file and the expected value.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict
from urllib.parse import urlsplit

import msgspec

from trainop.runtime.client.cluster import ClusterConfig, ConfigError, Credentials, Pem
from trainop.runtime.client.credentials import AuthProviderCredentials, StaticCredentials, TokenFile, TokenText
from trainop.runtime.client.execplugin import ExecCredentials, ExecPlugin
from trainop.runtime.client.proxy import proxy_for
from trainop.runtime.clock import Clock
from trainop.runtime.errors import UNREADABLE
from trainop.runtime.objects.metadata import Json
from trainop.runtime.texts import cut


class Entry(NamedTuple):
    """A cluster, user or context, and the file against which its relative paths are resolved."""

    file: Path
    value: Json

    def pem(self, data: str, file: str, what: str, reread: Callable[[], Entry]) -> Pem | None:
        """The PEM source in field `data` (inline base64) or else `file` (a path). Inline text is read again through
        `reread` on each use; `what` names the entry in errors."""
        if self.value.get(data):
            self.inline(data, what)
            return lambda: reread().inline(data, what)
        if self.value.get(file):
            return self.path(file, what)
        return None

    def inline(self, data: str, what: str) -> bytes:
        """Decodes the base64 text in field `data`; raises `ConfigError`."""
        if not self.value.get(data):
            raise ConfigError(f"{self.file}: {data} of {what} was removed; restore it")
        try:
            return base64.b64decode(self.value[data], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ConfigError(f"{self.file}: {data} of {what} is not base64: {error}") from error

    def path(self, field: str, what: str) -> Path:
        """The existing file that `field` names; raises `ConfigError`."""
        path = self.file.parent / str(self.value[field])
        if not path.is_file():
            raise ConfigError(f"{self.file}: {field} of {what}: {path} does not exist")
        return path


class _NamedExtension(TypedDict, total=False):
    name: str | None
    extension: Any


class _ExecVariable(TypedDict):
    name: str
    value: str


_TEXT = str | None
_CLUSTER = TypedDict(
    "_CLUSTER",
    {
        "server": _TEXT,
        "certificate-authority": _TEXT,
        "certificate-authority-data": _TEXT,
        "insecure-skip-tls-verify": bool | None,
        "tls-server-name": _TEXT,
        "proxy-url": _TEXT,
        "extensions": list[_NamedExtension] | None,
    },
    total=False,
)


class _EXEC(TypedDict, total=False):
    command: str
    args: list[str] | None
    env: list[_ExecVariable] | None
    apiVersion: _TEXT
    interactiveMode: _TEXT
    installHint: _TEXT
    provideClusterInfo: bool | None


_USER = TypedDict(
    "_USER",
    {
        "token": _TEXT,
        "tokenFile": _TEXT,
        "username": _TEXT,
        "password": _TEXT,
        "client-certificate": _TEXT,
        "client-certificate-data": _TEXT,
        "client-key": _TEXT,
        "client-key-data": _TEXT,
        "as": _TEXT,
        "as-uid": _TEXT,
        "as-groups": list[str] | None,
        "as-user-extra": dict[str, list[str]] | None,
        "exec": _EXEC | None,
    },
    total=False,
)


class _CONTEXT(TypedDict, total=False):
    cluster: _TEXT
    user: _TEXT
    namespace: _TEXT


class _NamedCluster(TypedDict):
    name: str
    cluster: NotRequired[_CLUSTER | None]


class _NamedUser(TypedDict):
    name: str
    user: NotRequired[_USER | None]


class _NamedContext(TypedDict):
    name: str
    context: NotRequired[_CONTEXT | None]


_TYPES: dict[str, Any] = {
    "clusters": list[_NamedCluster],
    "users": list[_NamedUser],
    "contexts": list[_NamedContext],
}
"""The fields that are read, with the types of client-go (`tools/clientcmd/api/v1/types.go`)."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Merged kubeconfig files. `file` is named in errors that belong to no particular entry."""

    file: Path
    current: str
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]
    contexts: Mapping[str, Entry]
    files: Sequence[Path] = ()

    def config(self, clock: Clock, environ: Mapping[str, str], context: str | None = None) -> ClusterConfig:
        """The configuration for `context` (default: the current one). Raises `ConfigError`.

        Tokens and certificates are reread from the same entries of the same files while in use. Any other change, such
        as another current context, takes effect after a restart.
        """
        name = context or self.current
        known = _list_names(self.contexts)
        if not name:
            raise ConfigError(f"{self.file}: no current-context is set; contexts there: {known}")
        if name not in self.contexts:
            raise ConfigError(f"{self.file}: context {name!r} does not exist; contexts there: {known}")
        chosen = self.contexts[name]
        cluster = self._named(self.clusters, chosen, name, "cluster")
        server = self._server(cluster, str(chosen.value["cluster"]))
        user = self._named(self.users, chosen, name, "user") if chosen.value.get("user") else Entry(chosen.file, {})
        cluster_label = f"cluster {chosen.value['cluster']!r}"
        user_label = f"user {chosen.value.get('user')!r}"
        proxy = cluster.value.get("proxy-url") or proxy_for(server, environ)
        if proxy and not _is_url(proxy):
            raise ConfigError(
                f"{cluster.file}: proxy {proxy!r} of {cluster_label}: only http:// and https:// proxies work"
            )
        reread_cluster = functools.partial(_reread, self.files, name, server, "cluster")
        reread_user = functools.partial(_reread, self.files, name, server, "user")
        return ClusterConfig(
            server=server,
            credentials=_credentials(user, user_label, name, _cluster_info(cluster), clock, reread=reread_user),
            ca=cluster.pem("certificate-authority-data", "certificate-authority", cluster_label, reread_cluster),
            client_certificate=user.pem("client-certificate-data", "client-certificate", user_label, reread_user),
            client_key=user.pem("client-key-data", "client-key", user_label, reread_user),
            insecure=bool(cluster.value.get("insecure-skip-tls-verify")),
            tls_server_name=cluster.value.get("tls-server-name") or None,
            proxy=proxy or None,
            namespace=str(chosen.value.get("namespace") or "default"),
            headers=_impersonation(user.value),
        )

    @staticmethod
    def _named(entries: Mapping[str, Entry], context: Entry, name: str, kind: str) -> Entry:
        wanted = str(context.value.get(kind) or "")
        if wanted not in entries:
            known = _list_names(entries)
            raise ConfigError(f"{context.file}: context {name!r} names {kind} {wanted!r}; {kind}s there: {known}")
        return entries[wanted]

    @staticmethod
    def _server(cluster: Entry, name: str) -> str:
        server = str(cluster.value.get("server") or "")
        if not _is_url(server):
            raise ConfigError(f"{cluster.file}: server of cluster {name!r} is {server!r}; it must be https://host:port")
        return server.rstrip("/")


def _list_names(entries: Mapping[str, Entry]) -> str:
    """The names for an error message, on one line even if a name contains line breaks."""
    return ", ".join(" ".join(name.split()) for name in entries) or "none"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # for example `https://[::1`, or a port that is not a number
        return False


def read(files: Sequence[Path]) -> Kubeconfig:
    """Reads and merges existing files. Raises `ConfigError`."""
    current = ""
    merged: dict[str, dict[str, Entry]] = {"clusters": {}, "users": {}, "contexts": {}}
    for file in files:
        content = _parse(file)
        current = current or str(content.get("current-context") or "")
        for kind, entries in merged.items():
            for name, value in _entries(file, content, kind):
                entries.setdefault(name, Entry(file.absolute(), value))
    return Kubeconfig(files[0], current, merged["clusters"], merged["users"], merged["contexts"], tuple(files))


def _reread(files: Sequence[Path], context: str, server: str, kind: str) -> Entry:
    """The current cluster or user entry of `context`, read from the files again. Raises `ConfigError`, also if the
    context now names another server: credentials must never be sent to a server that they are not meant for."""
    config = read(files)
    if context not in config.contexts:
        raise ConfigError(f"{config.file}: context {context!r} does not exist anymore")
    chosen = config.contexts[context]
    cluster = config._named(config.clusters, chosen, context, "cluster")  # noqa: SLF001  # same module
    now = config._server(cluster, str(chosen.value["cluster"]))  # noqa: SLF001
    if now != server:
        raise ConfigError(f"{cluster.file}: the server was {server} and is {now} now; restart to use it")
    return cluster if kind == "cluster" else config._named(config.users, chosen, context, "user")  # noqa: SLF001


def _parse(file: Path) -> Json:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; it must be a readable kubeconfig file") from error
    try:
        content = msgspec.json.decode(text)
    except UNREADABLE:
        content = _parse_yaml(file, text)
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: not a kubeconfig: it must be an object with clusters, users and contexts")
    return content


def _parse_yaml(file: Path, text: bytes) -> Any:
    import yaml  # noqa: PLC0415  # not needed in a pod

    try:
        return yaml.safe_load(text)
    except RecursionError as error:
        raise ConfigError(f"{file}: not a kubeconfig: it is nested too deep") from error
    # PyYAML also raises built-in errors for values that do not fit their tag, such as the date 2025-99-99.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        problem = cut(" ".join(str(error).split()))
        raise ConfigError(f"{file}: not a kubeconfig: {problem}") from error


def _entries(file: Path, content: Json, kind: str) -> list[tuple[str, Json]]:
    singular = kind.removesuffix("s")
    listed = content.get(kind) or []
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and "name" in entry for entry in listed):
        raise ConfigError(f"{file}: {kind} must be a list of entries with a name and a {singular}")
    if not all(isinstance(entry.get(singular) or {}, dict) for entry in listed):
        raise ConfigError(f"{file}: each {singular} in {kind} must be an object")
    try:
        msgspec.convert(listed, _TYPES[kind])
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{file}: {kind}: {error}") from error
    return [(entry["name"], entry.get(singular) or {}) for entry in listed]


def _credentials(
    user: Entry, user_label: str, context: str, cluster: Json, clock: Clock, *, reread: Callable[[], Entry]
) -> Credentials | None:
    """The credentials of a user. If several are set, the order of precedence is token, token file, password, exec,
    auth-provider, as in client-go."""
    value = user.value
    if value.get("token"):
        return TokenText(lambda: str(reread().value.get("token") or ""), str(user.file), clock)
    if value.get("tokenFile"):
        return TokenFile(user.path("tokenFile", user_label), clock)
    if value.get("username"):
        return StaticCredentials.basic(str(value["username"]), str(value.get("password") or ""))
    if value.get("exec"):
        try:
            return ExecCredentials(ExecPlugin.parse(value["exec"], user.file.parent, cluster), clock)
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{user.file}: exec of {user_label} needs command, args and env: {error!r}") from error
    if value.get("auth-provider"):
        return AuthProviderCredentials(user.file, context, clock)
    return None


def _cluster_info(cluster: Entry) -> Json:
    """The cluster information for exec plugins with `provideClusterInfo` (client.authentication.k8s.io `Cluster`)."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    info = {name: cluster.value[name] for name in names if cluster.value.get(name)}
    for extension in cluster.value.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _impersonation(user: Json) -> tuple[tuple[str, str], ...]:
    """The impersonation headers for `as`, `as-uid`, `as-groups` and `as-user-extra`."""
    headers = [("impersonate-user", str(user["as"]))] if user.get("as") else []
    headers += [("impersonate-uid", str(user["as-uid"]))] if user.get("as-uid") else []
    headers += [("impersonate-group", str(group)) for group in user.get("as-groups") or ()]
    for name, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"impersonate-extra-{name}", str(value)) for value in values]
    return tuple(headers)

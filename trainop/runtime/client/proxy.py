"""Selects the HTTP proxy for a server from HTTPS_PROXY, HTTP_PROXY and NO_PROXY, including CIDR ranges, as Go does
(`golang.org/x/net/http/httpproxy`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def proxy_for(server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy URL for `server`; None if no proxy is set, NO_PROXY covers the host, or it is a loopback address."""
    url = urlsplit(server)
    proxy = _variable(environ, f"{url.scheme}_proxy")
    host = (url.hostname or "").lower()
    if not proxy or _is_local(host):
        return None
    if any(_covers(entry.strip().lower(), host, url.port) for entry in _variable(environ, "no_proxy").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Whether a NO_PROXY entry covers `host`. Entries are `*`, an address, a CIDR range, a domain with its subdomains,
    or `.domain` for subdomains only. All but ranges may have a port."""
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    if "/" in entry:
        return address is not None and _in_range(address, entry)
    name, colon, digits = entry.rpartition(":")
    if colon and digits.isdecimal() and ":" not in name:
        return int(digits) == port and _covers(name, host, port)
    if address is not None:
        return _address(entry) == address
    domain = entry.removeprefix("*").removeprefix(".")
    return host.endswith(f".{domain}") or (host == domain and not entry.startswith((".", "*")))


def _in_range(address: _Address, entry: str) -> bool:
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False

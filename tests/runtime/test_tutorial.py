"""The operators of `docs/runtime-tutorial.md`: its listings equal the files, and the operators work as described."""

from __future__ import annotations

import ast
import base64
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from structlog.testing import capture_logs

from trainop.runtime import NAMESPACES, SECRETS, Json, NotFoundError, Resource
from trainop.runtime.objects.metadata import EVENTS
from trainop.testing import TestCluster

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "runtime"
PAGE = (ROOT / "docs" / "runtime-tutorial.md").read_text(encoding="utf-8")
USERS = Resource("example.com", "v1", "databaseusers", "DatabaseUser")
SHARED = Resource("example.com", "v1", "sharedsecrets", "SharedSecret")


def load(name: str) -> ModuleType:
    """Import the example anew, so that each test has a separate operator and database."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listing(language: str, begins: str) -> str:
    found = [code for code in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if code.startswith(begins)]
    assert len(found) == 1, begins
    return str(found[0])


@pytest.mark.parametrize("name", ["database_users", "shared_secrets"])
def test_the_listing_of_the_page_is_the_file(name: str):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert listing("python", source.partition("\n")[0]) == source


@pytest.mark.parametrize(
    ("section", "original", "port"),
    [
        ("From kopf", listing("python", "import secrets"), listing("python", '"""A database account')),
        ("From controller-runtime", listing("go", "package main"), listing("python", '"""Copies a Secret')),
    ],
)
def test_every_number_is_in_the_original_the_port_and_the_table(section: str, original: str, port: str):
    table = PAGE.partition(f"## {section}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    for code in (original, port):
        comments = "".join(re.findall(r"(?:#|//) ((?:\(\d+\) ?)+)$", code, re.MULTILINE))
        assert sorted({int(number) for number in re.findall(r"\d+", comments)}) == [int(number) for number in rows]


def test_the_kopf_original_is_python():
    ast.parse(listing("python", "import secrets"))


def user(role: str = "reader") -> Json:
    metadata = {"name": "ann", "namespace": "default"}
    return {"apiVersion": "example.com/v1", "kind": "DatabaseUser", "metadata": metadata, "spec": {"role": role}}


async def has_event(cluster: TestCluster, reason: str) -> bool:
    return any(event["reason"] == reason for event in (await cluster.client.list(EVENTS, "default")).items)


def password_of(secret: Json) -> str:
    return base64.b64decode(secret["data"]["password"]).decode()


async def test_a_database_user_from_creation_to_deletion():
    module = load("database_users")
    accounts: dict[str, tuple[str, str]] = module.database.accounts

    async def account_is_current() -> bool:
        secret = await cluster.client.get(SECRETS, "ann", "default")
        return accounts["ann"] == ("writer", password_of(secret))

    async with TestCluster(EXAMPLES / "database-user-crd.yaml") as cluster:
        cluster.start(module.operator)
        await cluster.create(user())
        made = await cluster.wait_for(USERS, "ann", until=lambda obj: obj["status"]["phase"] == "Ready")
        assert made["metadata"]["finalizers"] == ["example.com/database-user"]
        secret = await cluster.client.get(SECRETS, "ann", "default")
        assert accounts["ann"] == ("reader", password_of(secret))
        await cluster.wait_until(lambda: has_event(cluster, "Rotated"))

        await cluster.client.patch(USERS, "ann", "default", {"spec": {"role": "writer"}})
        await cluster.wait_until(account_is_current)

        await cluster.client.delete(SECRETS, "ann", "default")
        secret = await cluster.wait_for(SECRETS, "ann")
        await cluster.wait_until(account_is_current)

        old = {"metadata": {"annotations": {module.ROTATED_AT: "2020-01-01T00:00:00+00:00"}}}
        await cluster.client.patch(SECRETS, "ann", "default", old)
        before = secret["data"]
        await cluster.wait_for(SECRETS, "ann", until=lambda obj: obj["data"] != before)
        await cluster.wait_until(account_is_current)

        await cluster.client.patch(USERS, "ann", "default", {"spec": {"role": "king"}})
        await cluster.wait_for(USERS, "ann", until=lambda obj: obj["status"]["phase"] == "Failed")
        assert accounts["ann"][0] == "writer"

        await cluster.client.delete(USERS, "ann", "default")
        await cluster.wait_gone(USERS, "ann")
        assert accounts == {}
        await cluster.wait_gone(SECRETS, "ann")


async def test_an_unreachable_database_delays_creation_and_deletion(monkeypatch: pytest.MonkeyPatch):
    module = load("database_users")
    monkeypatch.setattr(module, "RETRY_AFTER", 0.05)
    module.database.available = False
    async with TestCluster(EXAMPLES / "database-user-crd.yaml") as cluster:
        cluster.start(module.operator)
        await cluster.create(user())
        await cluster.wait_for(USERS, "ann", until=lambda obj: obj["metadata"]["finalizers"])
        with pytest.raises(NotFoundError):
            await cluster.client.get(SECRETS, "ann", "default")
        module.database.available = True
        await cluster.wait_for(USERS, "ann", until=lambda obj: obj["status"]["phase"] == "Ready")
        module.database.available = False
        await cluster.client.delete(USERS, "ann", "default")
        await cluster.wait_for(USERS, "ann", until=lambda obj: obj["metadata"]["deletionTimestamp"])
        assert "ann" in module.database.accounts
        module.database.available = True
        await cluster.wait_gone(USERS, "ann")
        assert module.database.accounts == {}


def namespace(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def shared_secret() -> Json:
    spec = {"secret": "pull", "namespaceLabels": {"team": "a"}}
    metadata = {"name": "pull", "namespace": "default"}
    return {"apiVersion": "example.com/v1", "kind": "SharedSecret", "metadata": metadata, "spec": spec}


def source(value: str) -> Json:
    data = {"token": base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull", "namespace": "default"}, "data": data}


async def test_a_shared_secret_from_creation_to_deletion():
    module = load("shared_secrets")
    one, two = namespace("one", team="a"), namespace("two", team="a")
    async with TestCluster(EXAMPLES / "shared-secret-crd.yaml", one, namespace("other", team="b")) as cluster:
        client = cluster.client
        cluster.start(module.operator)
        await cluster.create(shared_secret())
        await cluster.wait_until(lambda: has_event(cluster, "SecretMissing"))

        await cluster.create(source("1"))
        copied = await cluster.wait_for(SECRETS, "pull", "one")
        assert copied["data"] == source("1")["data"]
        await cluster.wait_for(SHARED, "pull", until=lambda obj: obj["status"]["copies"] == 1)
        await cluster.wait_until(lambda: has_event(cluster, "Copied"))

        await client.patch(SECRETS, "pull", "default", {"data": source("2")["data"]})
        await cluster.wait_for(SECRETS, "pull", "one", until=lambda obj: obj["data"] == source("2")["data"])

        await cluster.create(two)
        await cluster.wait_for(SHARED, "pull", until=lambda obj: obj["status"]["copies"] == 2)
        await client.delete(SECRETS, "pull", "two")
        await cluster.wait_for(SECRETS, "pull", "two")

        await client.patch(NAMESPACES, "one", None, {"metadata": {"labels": {"team": None}}})
        await cluster.wait_gone(SECRETS, "pull", "one")
        with pytest.raises(NotFoundError):
            await client.get(SECRETS, "pull", "other")

        await client.delete(SHARED, "pull", "default")
        await cluster.wait_gone(SHARED, "pull")
        with pytest.raises(NotFoundError):
            await client.get(SECRETS, "pull", "two")
        assert (await client.get(SECRETS, "pull", "default"))["data"] == source("2")["data"]


async def test_a_foreign_secret_is_never_overwritten():
    module = load("shared_secrets")
    theirs = {**source("theirs"), "metadata": {"name": "pull", "namespace": "one"}}
    async with TestCluster(EXAMPLES / "shared-secret-crd.yaml", namespace("one", team="a"), theirs) as cluster:
        cluster.start(module.operator)
        with capture_logs() as logs:
            await cluster.create(source("1"), shared_secret())

            async def failed() -> bool:
                return "secret pull in namespace one is not a copy" in str(logs)

            await cluster.wait_until(failed)
        assert (await cluster.client.get(SECRETS, "pull", "one"))["data"] == theirs["data"]
        await cluster.client.delete(SHARED, "pull", "default")
        await cluster.wait_gone(SHARED, "pull")
        assert (await cluster.client.get(SECRETS, "pull", "one"))["data"] == theirs["data"]

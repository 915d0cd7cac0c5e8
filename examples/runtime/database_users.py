"""A database account and a Secret with its password for every DatabaseUser; docs/runtime-tutorial.md explains it."""

import secrets
import sys
from datetime import datetime, timedelta

from trainop.runtime import (
    SECRETS,
    Changed,
    Context,
    Operator,
    Resource,
    Result,
    TerminalError,
    Unstructured,
    Watch,
    create_or_patch,
    decode_unstructured,
    set_controller,
)

USERS = Resource("example.com", "v1", "databaseusers", "DatabaseUser")
PASSWORDS = Watch(SECRETS, decode_unstructured, label_selector="app=database-users")
ROTATED_AT = "example.com/rotated-at"
ROTATE_EVERY = timedelta(days=1)
RETRY_AFTER = 10.0


class UnavailableError(Exception):
    """The database does not answer."""


class Database:
    """Stands for the client of your database."""

    def __init__(self) -> None:
        self.accounts: dict[str, tuple[str, str]] = {}
        self.available = True

    async def set_account(self, name: str, role: str, password: str) -> None:
        self._check()
        self.accounts[name] = (role, password)

    async def grant(self, name: str, role: str) -> None:
        self._check()
        self.accounts[name] = (role, self.accounts[name][1])

    async def drop_account(self, name: str) -> None:
        self._check()
        self.accounts.pop(name, None)

    def _check(self) -> None:
        if not self.available:
            raise UnavailableError("the database does not answer")


database = Database()
operator = Operator("database-users", metrics="0", health="0")  # (1)


async def drop(_ctx: Context, user: Unstructured) -> Result | None:  # (8)
    try:
        await database.drop_account(user.metadata.name)
    except UnavailableError:
        return Result(requeue_after=RETRY_AFTER)
    return None


users = operator.for_(USERS, Changed(lambda user: user.metadata.generation))  # (2)
users.owns(PASSWORDS).finalizes("example.com/database-user", drop)  # (6) (8)


@users.reconcile
async def ensure(ctx: Context, user: Unstructured) -> Result:  # (2)
    name, role = user.metadata.name, user.raw["spec"]["role"]
    if role not in ("reader", "writer"):
        await set_phase(ctx, user, "Failed")
        raise TerminalError(f"there is no role {role}")  # (3)
    left = rotation_due(ctx.store(PASSWORDS).get(user.metadata.key), ctx.clock.now())
    try:
        if left <= timedelta():  # there is no Secret, or it is too old
            await rotate(ctx, user, role)
            left = ROTATE_EVERY
        else:
            await database.grant(name, role)  # (5)
    except UnavailableError:
        return Result(requeue_after=RETRY_AFTER)  # (4)
    await set_phase(ctx, user, "Ready")
    return Result(requeue_after=left.total_seconds())  # (9)


async def rotate(ctx: Context, user: Unstructured, role: str) -> None:
    password = secrets.token_urlsafe(24)
    await database.set_account(user.metadata.name, role, password)
    metadata = {
        "name": user.metadata.name,
        "namespace": user.metadata.namespace,
        "labels": {"app": "database-users"},
        "annotations": {ROTATED_AT: ctx.clock.now().isoformat()},
    }
    secret = set_controller(user, USERS, {"metadata": metadata, "stringData": {"password": password}})  # (6)
    result, _ = await create_or_patch(ctx.client, SECRETS, secret)
    ctx.event(user, "Normal", "Rotated", f"the secret with the password was {result.value}")  # (7)


def rotation_due(secret: Unstructured | None, now: datetime) -> timedelta:
    if secret is None:
        return timedelta()
    return datetime.fromisoformat(secret.metadata.annotations[ROTATED_AT]) + ROTATE_EVERY - now


async def set_phase(ctx: Context, user: Unstructured, phase: str) -> None:
    if user.raw.get("status") != {"phase": phase}:
        patch = {"status": {"phase": phase}}
        await ctx.client.patch(USERS, user.metadata.name, user.metadata.namespace, patch, subresource="status")


if __name__ == "__main__":
    sys.exit(operator.run())

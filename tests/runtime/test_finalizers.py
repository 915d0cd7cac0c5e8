"""`finalizing` against the embedded API server: the order of finalizer, side effects and clean-up, and every race."""

from __future__ import annotations

import pytest

from tests.runtime.racing import race
from trainop.runtime import (
    CONFIG_MAPS,
    DONE,
    Client,
    ConflictError,
    Json,
    NotFoundError,
    ReconcileError,
    Result,
    Unstructured,
    finalizing,
)

OURS = "example.com/bucket"
THEIRS = "example.com/theirs"


class CleanUp:
    """A clean-up function that counts its calls, and returns or raises the given outcome."""

    def __init__(self, *outcomes: Result | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.runs = 0

    async def __call__(self) -> Result | None:
        self.runs += 1
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def make(client: Client, *finalizers: str) -> Unstructured:
    metadata = {"name": "a", "namespace": "default", "finalizers": list(finalizers)}
    return Unstructured(await client.create(CONFIG_MAPS, {"metadata": metadata}))


async def read(client: Client) -> Unstructured:
    return Unstructured(await client.get(CONFIG_MAPS, "a", "default"))


async def delete(client: Client) -> Unstructured:
    """Delete the object, which its finalizers keep; returns it with its deletionTimestamp."""
    await client.delete(CONFIG_MAPS, "a", "default")
    return await read(client)


async def set_finalizers(client: Client, *finalizers: str) -> Json:
    return await client.patch(CONFIG_MAPS, "a", "default", {"metadata": {"finalizers": list(finalizers)}})


async def test_the_finalizer_is_stored_before_the_first_effect_and_removed_after_clean_up():
    client, racing, _ = race()
    obj, clean_up = await make(client, THEIRS), CleanUp()
    result = await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up)
    assert result == Result(requeue=True), "the reconcile ends after adding the finalizer"
    obj = await read(client)
    assert obj.metadata.finalizers == (THEIRS, OURS)
    racing.verbs.clear()
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) is None
    assert (racing.verbs, clean_up.runs) == ([], 0), "no request is sent if the finalizer is present"
    obj = await delete(client)
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == DONE
    assert ((await read(client)).metadata.finalizers, clean_up.runs) == ((THEIRS,), 1)


async def test_the_object_is_deleted_with_the_last_finalizer_and_a_stale_cache_has_no_effect():
    client, _, _ = race()
    await make(client, OURS)
    obj, clean_up = await delete(client), CleanUp()
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == DONE
    with pytest.raises(NotFoundError):
        await read(client)
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == DONE
    assert clean_up.runs == 2, "the cache is stale, so clean-up must be idempotent"


async def test_a_stale_view_of_a_live_object_ends_the_reconcile():
    client, _, other = race()
    obj, clean_up = await make(client), CleanUp()
    await set_finalizers(other, THEIRS)
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == Result(requeue=True)
    assert (await read(client)).metadata.finalizers == (THEIRS,), (
        "concurrent changes of the finalizers are not overwritten"
    )


async def test_an_object_that_is_deleted_before_it_has_the_finalizer_is_left_alone():
    client, _, other = race()
    gone, clean_up = await make(client), CleanUp()
    await other.delete(CONFIG_MAPS, "a", "default")
    assert await finalizing(client, CONFIG_MAPS, gone, OURS, clean_up) == DONE
    stale = await make(client, THEIRS)
    deleted = await delete(other)
    assert await finalizing(client, CONFIG_MAPS, stale, OURS, clean_up) == Result(requeue=True)
    assert await finalizing(client, CONFIG_MAPS, deleted, OURS, clean_up) == DONE
    assert ((await read(client)).metadata.finalizers, clean_up.runs) == ((THEIRS,), 0)


@pytest.mark.parametrize("outcome", [ReconcileError("not yet"), Result(requeue_after=5), Result(requeue=True)])
async def test_the_finalizer_stays_until_clean_up_has_finished(outcome: Result | Exception):
    client, _, _ = race()
    await make(client, OURS)
    obj, clean_up = await delete(client), CleanUp(outcome, DONE)
    if isinstance(outcome, Result):
        assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == outcome
    else:
        with pytest.raises(ReconcileError, match="not yet"):
            await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up)
    assert (await read(client)).metadata.finalizers == (OURS,)
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == DONE
    with pytest.raises(NotFoundError):
        await read(client)


async def test_after_a_conflict_the_finalizer_is_removed_without_a_second_clean_up():
    client, racing, other = race()
    await make(client, OURS)
    obj, clean_up = await delete(client), CleanUp()
    racing.before["PATCH"] = lambda: other.patch(CONFIG_MAPS, "a", "default", {"metadata": {"labels": {"x": "y"}}})
    racing.verbs.clear()
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up) == DONE
    assert (clean_up.runs, racing.verbs) == (1, ["PATCH", "GET", "PATCH"])
    with pytest.raises(NotFoundError):
        await read(client)


async def test_a_foreign_finalizer_removed_meanwhile_is_not_restored():
    client, racing, other = race()
    await make(client, "example.com/first", OURS, THEIRS)
    obj = await delete(client)
    racing.before["PATCH"] = lambda: set_finalizers(other, OURS, THEIRS)
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, CleanUp()) == DONE
    assert (await read(client)).metadata.finalizers == (THEIRS,)


async def test_an_object_deleted_during_clean_up_is_no_error_and_its_successor_is_not_touched():
    client, racing, other = race()
    await make(client, OURS)
    obj = await delete(client)

    async def replace() -> None:
        await set_finalizers(other)
        await make(other, OURS, THEIRS)

    racing.before["PATCH"] = lambda: set_finalizers(other)
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, CleanUp()) == DONE
    await make(client, OURS)
    obj = await delete(client)
    racing.before["PATCH"] = replace
    assert await finalizing(client, CONFIG_MAPS, obj, OURS, CleanUp()) == DONE
    assert (await read(client)).metadata.finalizers == (OURS, THEIRS)


async def test_a_removal_gives_up_after_repeated_conflicts():
    client, racing, other = race()
    await make(client, OURS)
    obj, clean_up = await delete(client), CleanUp()
    counts = iter(range(100))

    async def interfere() -> None:
        await other.patch(CONFIG_MAPS, "a", "default", {"data": {"n": str(next(counts))}})

    racing.always["PATCH"] = interfere
    with pytest.raises(ConflictError):
        await finalizing(client, CONFIG_MAPS, obj, OURS, clean_up)
    assert next(counts) == 5
    assert (await read(client)).metadata.finalizers == (OURS,), "the next reconcile retries"

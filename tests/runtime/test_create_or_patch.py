"""`create_or_patch` against the embedded API server, with other writers in between (controller-runtime
`pkg/controller/controllerutil`: CreateOrPatch)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from tests.runtime.racing import race
from trainop.runtime import (
    CONFIG_MAPS,
    PODS,
    ConflictError,
    Json,
    NotFoundError,
    OperationResult,
    OwnerError,
    Resource,
    create_or_patch,
    owner_reference,
)
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS

CRD = Path(__file__).parent.parent.parent / "examples" / "runtime" / "crd.yaml"
GREETINGS = Resource("example.com", "v1", "greetings", "Greeting")
OURS = owner_reference("example.com/v1", "Greeting", "a", "u1")


def config_map(**data: str | None) -> Json:
    return {"metadata": {"name": "a", "namespace": "default"}, "data": data}


async def test_an_object_is_created_then_patched_then_left_alone():
    client, racing, _ = race()
    wanted = config_map(x="1")
    kept = copy.deepcopy(wanted)
    result, created = await create_or_patch(client, CONFIG_MAPS, wanted)
    assert (result, created["data"], created["kind"]) == (OperationResult.CREATED, {"x": "1"}, "ConfigMap")
    result, patched = await create_or_patch(client, CONFIG_MAPS, config_map(x="2"))
    assert (result, patched["data"]) == (OperationResult.UPDATED, {"x": "2"})
    racing.verbs.clear()
    result, same = await create_or_patch(client, CONFIG_MAPS, config_map(x="2"))
    assert (result, same, racing.verbs) == (OperationResult.UNCHANGED, patched, ["GET"])
    assert wanted == kept, "the argument is not mutated"


async def test_fields_of_others_are_kept_and_none_removes_a_field():
    client, _, other = race()
    theirs = config_map(theirs="1", gone="1")
    theirs["metadata"]["labels"] = {"theirs": "1"}
    await other.create(CONFIG_MAPS, theirs)
    _, after = await create_or_patch(client, CONFIG_MAPS, config_map(ours="1", gone=None))
    assert after["data"] == {"theirs": "1", "ours": "1"}
    assert after["metadata"]["labels"] == {"theirs": "1"}


async def test_a_change_receives_the_existing_or_the_new_object():
    client, _, _ = race()

    def count(obj: Json) -> None:
        data = obj.setdefault("data", {})
        data["n"] = str(int(data.get("n", "0")) + 1)

    named: Json = {"metadata": {"name": "a", "namespace": "default"}}
    results = [await create_or_patch(client, CONFIG_MAPS, named, count) for _ in range(3)]
    assert [result for result, _ in results] == [OperationResult.CREATED] + [OperationResult.UPDATED] * 2
    assert [obj["data"]["n"] for _, obj in results] == ["1", "2", "3"]
    result, _ = await create_or_patch(client, CONFIG_MAPS, named, lambda obj: obj)
    assert result is OperationResult.UNCHANGED


async def test_defaults_of_the_api_server_in_a_list_make_no_update():
    """A merge patch replaces lists, so one is sent each time; the server adds the defaults again, and nothing
    changes."""
    client, racing, _ = race()
    pod: Json = {
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"},
    }
    _, created = await create_or_patch(client, PODS, pod)
    assert created["spec"]["containers"][0] != pod["spec"]["containers"][0], "the server has added defaults"
    racing.verbs.clear()
    assert (await create_or_patch(client, PODS, pod))[0] is OperationResult.UNCHANGED
    assert racing.verbs == ["GET", "PATCH"]


async def test_an_object_that_appears_between_get_and_create_is_patched():
    client, racing, other = race()
    racing.before["POST"] = lambda: other.create(CONFIG_MAPS, config_map(theirs="1"))
    result, after = await create_or_patch(client, CONFIG_MAPS, config_map(ours="1"))
    assert (result, after["data"]) == (OperationResult.UPDATED, {"theirs": "1", "ours": "1"})
    assert racing.verbs == ["GET", "POST", "GET", "PATCH"]


async def test_an_object_that_changes_between_get_and_patch_is_read_again():
    client, racing, other = race()
    await other.create(CONFIG_MAPS, config_map(n="1"))
    racing.before["PATCH"] = lambda: other.patch(CONFIG_MAPS, "a", "default", {"data": {"n": "5"}})

    def add_one(obj: Json) -> None:
        obj["data"]["n"] = str(int(obj["data"]["n"]) + 1)

    result, after = await create_or_patch(client, CONFIG_MAPS, config_map(), add_one)
    assert (result, after["data"]["n"]) == (OperationResult.UPDATED, "6"), "the concurrent write is kept"
    assert racing.verbs == ["GET", "PATCH", "GET", "PATCH"]


async def test_an_object_that_is_deleted_between_get_and_patch_is_created():
    client, racing, other = race()
    await other.create(CONFIG_MAPS, config_map(n="1"))
    racing.before["PATCH"] = lambda: other.delete(CONFIG_MAPS, "a", "default")
    result, after = await create_or_patch(client, CONFIG_MAPS, config_map(n="2"))
    assert (result, after["data"]) == (OperationResult.CREATED, {"n": "2"})


async def test_an_object_that_is_replaced_between_get_and_patch_is_read_again():
    client, racing, other = race()
    await other.create(CONFIG_MAPS, config_map(n="1"))

    async def replace() -> None:
        await other.delete(CONFIG_MAPS, "a", "default")
        await other.create(CONFIG_MAPS, config_map(n="7"))

    racing.before["PATCH"] = replace
    seen: list[str] = []

    def note(obj: Json) -> None:
        seen.append(obj["data"]["n"])
        obj["data"]["n"] += "0"

    _, after = await create_or_patch(client, CONFIG_MAPS, config_map(), note)
    assert (seen, after["data"]["n"]) == (["1", "7"], "70")


async def test_a_writer_gives_up_after_repeated_conflicts():
    client, racing, other = race()
    await other.create(CONFIG_MAPS, config_map(n="0"))
    counts = iter(range(100))
    racing.always["PATCH"] = lambda: other.patch(CONFIG_MAPS, "a", "default", {"data": {"n": str(next(counts) + 1)}})
    with pytest.raises(ConflictError):
        await create_or_patch(client, CONFIG_MAPS, config_map(n="mine"))
    assert racing.verbs == ["GET", "PATCH"] * 5


async def test_a_missing_namespace_is_no_race():
    client, racing, _ = race()
    nowhere: Json = {"metadata": {"name": "a", "namespace": "nowhere"}}
    with pytest.raises(NotFoundError):
        await create_or_patch(client, CONFIG_MAPS, nowhere)
    assert racing.verbs == ["GET", "POST"]
    with pytest.raises(ValueError, match=r"metadata\.name"):
        await create_or_patch(client, CONFIG_MAPS, {"metadata": {"generateName": "a-"}})


async def test_an_owner_is_added_but_never_replaces_another_controller():
    client, _, other = race()
    plain = {**OURS, "name": "b", "uid": "u2", "controller": False}
    theirs = config_map(n="0")
    theirs["metadata"] |= {"ownerReferences": [plain], "finalizers": ["example.com/theirs"]}
    await other.create(CONFIG_MAPS, theirs)
    wanted = config_map(n="1")
    wanted["metadata"] |= {"ownerReferences": [OURS], "finalizers": ["example.com/ours"]}
    _, after = await create_or_patch(client, CONFIG_MAPS, wanted)
    assert after["metadata"]["ownerReferences"] == [plain, OURS]
    assert after["metadata"]["finalizers"] == ["example.com/theirs", "example.com/ours"]
    assert (await create_or_patch(client, CONFIG_MAPS, wanted))[0] is OperationResult.UNCHANGED
    wanted["metadata"]["ownerReferences"] = [{**OURS, "uid": "u3"}]
    with pytest.raises(OwnerError, match="already controlled by Greeting a"):
        await create_or_patch(client, CONFIG_MAPS, wanted)


async def test_a_status_is_written_through_its_subresource():
    client, racing, other = race()
    await other.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(CRD.read_text()))

    def greeting(text: str, who: str = "you") -> Json:
        metadata = {"name": "a", "namespace": "default"}
        return {"metadata": metadata, "spec": {"who": who}, "status": {"text": text}}

    result, after = await create_or_patch(client, GREETINGS, greeting("one"))
    assert (result, after["status"]) == (OperationResult.CREATED, {"text": "one"})
    result, after = await create_or_patch(client, GREETINGS, greeting("two", "me"))
    assert (result, after["spec"], after["status"]) == (OperationResult.UPDATED, {"who": "me"}, {"text": "two"})
    racing.verbs.clear()
    result, after = await create_or_patch(client, GREETINGS, greeting("three", "me"))
    assert (result, after["status"], racing.verbs) == (OperationResult.UPDATED, {"text": "three"}, ["GET", "PATCH"])
    assert (await create_or_patch(client, GREETINGS, greeting("three", "me")))[0] is OperationResult.UNCHANGED

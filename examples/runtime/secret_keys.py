"""Lists the keys of each labelled Secret in a ConfigMap, with the types of kubernetes_asyncio;
docs/runtime-kubernetes-asyncio.md explains it."""

import asyncio
import sys

from kubernetes_asyncio.client import Configuration, V1ConfigMap, V1ObjectMeta, V1Secret
from kubernetes_asyncio.config import load_config

from trainop.runtime import (
    CONFIG_MAPS,
    SECRETS,
    Context,
    Key,
    Operator,
    Unstructured,
    Watch,
    configure_logging,
    create_or_patch,
    decode_unstructured,
    set_controller,
    to_model,
)

LABEL = "example.com/list-keys"
SOURCES = Watch(SECRETS, decode_unstructured, label_selector=LABEL)
LISTS = Watch(CONFIG_MAPS, decode_unstructured, label_selector=LABEL)
operator = Operator("secret-keys", metrics="0", health="0", leader_election=False)


@operator.for_(SOURCES).owns(LISTS).reconcile
async def list_keys(ctx: Context, obj: Unstructured) -> None:
    secret = to_model(V1Secret, obj)  # (2)
    name, namespace = f"{secret.metadata.name}-keys", secret.metadata.namespace
    before = ctx.cache.get(CONFIG_MAPS, Key(namespace, name), as_=V1ConfigMap)  # (3)
    wanted = V1ConfigMap(
        metadata=V1ObjectMeta(name=name, namespace=namespace, labels=secret.metadata.labels),
        data={
            "keys": "\n".join(sorted(secret.data or {})),
            "secret-made": secret.metadata.creation_timestamp.isoformat(),
        },
    )
    result, after = await create_or_patch(ctx.client, CONFIG_MAPS, set_controller(secret, SECRETS, wanted))  # (4)
    if before is not None and before.data != after.data:
        ctx.event(obj, "Normal", "KeysChanged", f"the list of keys was {result.value}")


def main() -> int:
    configure_logging()
    configuration = Configuration()
    asyncio.run(load_config(client_configuration=configuration))
    return operator.run_on(configuration)  # (1)


if __name__ == "__main__":
    sys.exit(main())

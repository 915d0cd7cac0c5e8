"""A complete controller: keeps a ConfigMap for every Greeting (crd.yaml, greeting.yaml).

`python examples/runtime/greetings.py` works on the cluster of your kubeconfig; `trainop cluster` prints one to export.
"""

import asyncio
import sys

from trainop.runtime import (
    CONFIG_MAPS,
    DONE,
    Cache,
    Client,
    Controller,
    EnqueueObject,
    EnqueueOwner,
    HttpTransport,
    Key,
    Manager,
    PatchKind,
    Resource,
    Result,
    configure_logging,
    decode_unstructured,
    load_config,
    set_controller,
)

GREETINGS = Resource("example.com", "v1", "greetings", "Greeting")


class GreetingReconciler:
    def __init__(self, client: Client, cache: Cache) -> None:
        self.client = client
        self.greetings = cache.informer(GREETINGS, decode_unstructured)
        self.maps = cache.informer(CONFIG_MAPS, decode_unstructured, label_selector="app=greetings")

    async def reconcile(self, key: Key) -> Result:
        greeting, current = self.greetings.store.get(key), self.maps.store.get(key)
        if greeting is None or greeting.metadata.terminating:
            return DONE  # its ConfigMap goes with it: the garbage collector follows the owner reference
        text = f"Hello, {greeting.raw['spec']['who']}!"
        if current is None or current.raw.get("data") != {"text": text}:
            metadata = {"name": key.name, "namespace": key.namespace, "labels": {"app": "greetings"}}
            wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}
            wanted = set_controller(greeting, GREETINGS, wanted)
            await self.client.patch(CONFIG_MAPS, key.name, key.namespace, wanted, kind=PatchKind.APPLY, force=True)
        if greeting.raw.get("status") != {"text": text}:
            seen = {"resourceVersion": greeting.metadata.resource_version}  # a conflict means: look again
            patch = {"metadata": seen, "status": {"text": text}}
            await self.client.patch(GREETINGS, key.name, key.namespace, patch, subresource="status")
        return DONE


def build(client: Client) -> Manager:
    cache, manager = Cache(client), Manager()
    reconciler = GreetingReconciler(client, cache)
    controller = Controller("greetings", reconciler, workers=4)
    controller.watch(reconciler.greetings, EnqueueObject())
    controller.watch(reconciler.maps, EnqueueOwner(GREETINGS))
    manager.add_cache(cache)
    manager.add_controller(controller)
    return manager


async def main() -> int:
    configure_logging()  # without it tracebacks show local variables
    transport = HttpTransport(load_config())
    try:
        return await build(Client(transport)).run()  # SIGTERM: finishes what runs, then 0
    finally:
        await transport.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""A complete operator: keeps a ConfigMap for every Greeting (crd.yaml, greeting.yaml).

`python examples/runtime/greetings.py` works on the cluster of your kubeconfig; `trainop cluster` prints one to export.
"""

import sys

from trainop.runtime import (
    CONFIG_MAPS,
    Context,
    Operator,
    Resource,
    Unstructured,
    Watch,
    create_or_patch,
    decode_unstructured,
    set_controller,
)

GREETINGS = Resource("example.com", "v1", "greetings", "Greeting")
MAPS = Watch(CONFIG_MAPS, decode_unstructured, label_selector="app=greetings")

operator = Operator("greetings", metrics="0", health="0")  # on a laptop; in a pod the ports are 8080 and 8081


@operator.for_(GREETINGS, workers=4).owns(MAPS).reconcile
async def greet(ctx: Context, greeting: Unstructured) -> None:
    name, namespace = greeting.metadata.name, greeting.metadata.namespace
    if greeting.metadata.terminating:
        return  # its ConfigMap goes with it: the garbage collector follows the owner reference
    text = f"Hello, {greeting.raw['spec']['who']}!"
    metadata = {"name": name, "namespace": namespace, "labels": {"app": "greetings"}}
    wanted = set_controller(greeting, GREETINGS, {"metadata": metadata, "data": {"text": text}})
    await create_or_patch(ctx.client, CONFIG_MAPS, wanted)
    if greeting.raw.get("status") != {"text": text}:
        seen = {"resourceVersion": greeting.metadata.resource_version}  # a conflict means: look again
        patch = {"metadata": seen, "status": {"text": text}}
        await ctx.client.patch(GREETINGS, name, namespace, patch, subresource="status")


if __name__ == "__main__":
    sys.exit(operator.run())  # SIGTERM: finishes what runs, then 0

"""The page in the folder of the manifests: which components fit which overlays."""

from __future__ import annotations

from trainop.manifests.pairs import INCLUDED, NO, YES, Tree, overlays, pairs
from trainop.manifests.text import GENERATED

_TEXT = """\
<!-- {generated}; change trainop/manifests/. -->
# Manifests

`crds` is an installation of its own, once per cluster; an overlay installs operators. No overlay contains CRDs, so
that `kubectl delete -k` of an overlay never deletes a job of another namespace.
[docs/install.md](../docs/install.md) says what each part is for.

| component | {overlays} |
|---|{line}|
{rows}

- "yes": it can be added, in any order with others. kustomize refuses other pairs, and says which object it has not
  found: `no matches for Id …`. It accepts `grafana-dashboard`, `prometheus-rule` and `user-roles` anywhere.
- "with": if that component stands before it in the list `components`.
- "included": it is part of the overlay.
- `namespaced` has no object of the cluster, so that who administers a namespace can install it. What needs rights in
  the whole cluster does not fit: `dijob`, because di-server reads nodes and reviews tokens; `secure-metrics`, because
  the operator reviews tokens; webhooks, because their configuration is an object of the cluster; and roles for users,
  which an administrator of the cluster adds to `crds`.
- `mpi-operator` and `di-system` have other programs than training-operator, whose components do not fit. The webhooks
  of `di-system` have the failure policy Fail already.
"""


def readme(tree: Tree) -> str:
    found, columns = pairs(tree), overlays(tree)
    rows = (f"| `{name}` | {' | '.join(map(_cell, fits.values()))} |" for name, fits in found.items())
    return _TEXT.format(
        generated=GENERATED,
        overlays=" | ".join(f"`{name}`" for name in columns),
        line="|".join("---" for _ in columns),
        rows="\n".join(rows),
    )


def _cell(fit: str) -> str:
    return {YES: "yes", INCLUDED: "included", NO: "-"}.get(fit, f"with `{fit}`")

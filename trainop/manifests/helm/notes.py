"""What helm prints after an installation: what there is, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from trainop.manifests.helm.chart import NAMESPACE_NAME

_NOTHING: Mapping[str, str] = MappingProxyType({})


def notes(
    about: str, deployments: Sequence[str], jobs: str, further: str = "", left: Mapping[str, str] = _NOTHING
) -> str:
    """The template of the notes. `jobs` is the plural of a kind; `left` are the objects that a program makes itself,
    such as `secret/x`, with the condition under which it does. In all texts, `$namespace` is that of the operator."""
    listed = " ".join(f"deployment/{name}" for name in deployments)
    kubectl = "  kubectl --namespace {{ $namespace }}"
    own = "".join(
        f"{{{{- if {condition} }}}}\n{kubectl} delete {name} --ignore-not-found\n{{{{- end }}}}\n"
        for name, condition in left.items()
    )
    return f"""\
{{{{- $namespace := {NAMESPACE_NAME} }}}}
{about}
Wait until it is ready:

  kubectl --namespace {{{{ $namespace }}}} wait --for=condition=Available {listed} --timeout=5m

Then create a job, for example from examples/{jobs.removesuffix("jobs")}, and see how it goes:

  kubectl get {jobs} --all-namespaces
  kubectl describe {jobs} NAME
{further}
Helm never changes a CRD. Before each `helm upgrade`, apply those of the new version:

  kubectl apply --server-side --force-conflicts -f CHART/crds

`helm uninstall` leaves the CRDs, and with them all jobs, and what the programs made for themselves:

{own}"""

"""Would a cluster take a pod of ours? It is asked, and no pod is made: people may work there."""

from collections.abc import Mapping
from typing import Final

from kakoi.sandbox.kubernetes import KubernetesAdapter
from kakoi.sandbox.machine import Check, bad, good, tried

_NAME: Final = "kubernetes"


async def examine_cluster(area: str, env: Mapping[str, str], *, limit_s: float) -> list[Check]:
    """The check on the cluster that kubectl finds with `env`."""
    return [await tried(area, _NAME, _check(area, env), limit_s=limit_s)]


async def _check(area: str, env: Mapping[str, str]) -> Check:
    found = await KubernetesAdapter(cluster_env=env).would_be_taken()
    if not found:
        return bad(area, _NAME, found.reason, found.fix)
    return good(area, _NAME, f"{found.reason}; never taken unasked")

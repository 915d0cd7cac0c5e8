"""The client of version 1.7, whose methods are named by kind, with the names that it has since 1.8."""

from __future__ import annotations

import logging
from typing import Any


class _Logs(logging.Handler):
    """Collects what `get_job_logs` of 1.7 logs instead of returning it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and len(record.args) == 2:
            pod, text = str(record.args[0]), str(record.args[1])
            self.found[pod] = self.found.get(pod, "") + text


class KindClient:
    """One kind and namespace of a client of version 1.7."""

    def __init__(self, client: Any, kind: str, namespace: str) -> None:
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self.core_api = client.core_api

    def _own(self, verb: str, ending: str = "") -> Any:
        return getattr(self._client, f"{verb}_{self._kind.lower()}{ending}")

    def create_job(self, job: Any) -> None:
        self._own("create")(job, namespace=self._namespace)

    def get_job(self, name: str, **more: Any) -> Any:
        return self._own("get")(name, namespace=self._namespace, **more)

    def list_jobs(self, **more: Any) -> Any:
        return self._own("list", "s")(namespace=self._namespace, **more)

    def update_job(self, job: Any, name: str) -> None:
        self._own("patch")(job, name, namespace=self._namespace)

    def delete_job(self, name: str, **more: Any) -> None:
        self._own("delete")(name, namespace=self._namespace, **more)

    def wait_for_job_conditions(self, name: str, *, wait_timeout: float, **more: Any) -> Any:
        chosen = {"namespace": self._namespace, "job_kind": self._kind, "timeout": wait_timeout}
        return self._client.wait_for_job_conditions(name, **chosen, **more)

    def get_job_conditions(self, name: str = "", job: Any = None) -> Any:
        return self._client.get_job_conditions(name, self._namespace, self._kind, job)

    def is_job_created(self, name: str = "", job: Any = None) -> bool:
        return bool(self._client.is_job_created(name, self._namespace, self._kind, job))

    def is_job_running(self, name: str = "", job: Any = None) -> bool:
        return bool(self._client.is_job_running(name, self._namespace, self._kind, job))

    def is_job_restarting(self, name: str = "", job: Any = None) -> bool:
        return bool(self._client.is_job_restarting(name, self._namespace, self._kind, job))

    def is_job_succeeded(self, name: str = "", job: Any = None) -> bool:
        return bool(self._client.is_job_succeeded(name, self._namespace, self._kind, job))

    def is_job_failed(self, name: str = "", job: Any = None) -> bool:
        return bool(self._client.is_job_failed(name, self._namespace, self._kind, job))

    def get_job_pod_names(self, name: str, **more: Any) -> list[str]:
        return list(self._client.get_job_pod_names(name, self._namespace, **more))

    def get_job_logs(self, name: str, *, container: str, **more: Any) -> tuple[dict[str, str], dict[str, Any]]:
        logs, root = _Logs(), logging.getLogger()
        level, handlers = root.level, root.handlers
        root.handlers = [logs]
        root.setLevel(logging.INFO)
        try:
            self._client.get_job_logs(name, self._namespace, container=container, **more)
        finally:
            root.handlers = handlers
            root.setLevel(level)
        return logs.found, {}

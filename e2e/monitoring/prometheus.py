"""A Prometheus process on loopback that scrapes one target."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.daemons import free_ports
from e2e.monitoring.programs import find


class Prometheus:
    """Scrapes `target` (host:port) every second under the job name `job`, with the rules of a file.

    `scrape` are further settings of the scrape; `inside` is a command prefix, such as `unshare` with mounts of its own.
    """

    def __init__(
        self,
        folder: Path,
        job: str,
        target: str,
        rules: Path | None = None,
        *,
        scrape: Mapping[str, Any] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "prometheus.log"
        config = folder / "prometheus.yml"
        scraped = {"job_name": job, "static_configs": [{"targets": [target]}], **(scrape or {})}
        settings = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        text = {"global": settings, "scrape_configs": [scraped], "rule_files": [str(rules)] if rules else []}
        config.write_text(yaml.safe_dump(text), encoding="utf-8")
        self._command = [
            *inside,
            str(find("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def query(self, expression: str) -> list[Any]:
        """The series of an instant query; empty while Prometheus starts. Raises `ValueError` for an invalid one."""
        found: list[Any] = self._get("query", query=expression).get("result", [])
        return found

    def alerts(self) -> list[Any]:
        """The alerts that are pending or firing."""
        found: list[Any] = self._get("alerts").get("alerts", [])
        return found

    def failure(self) -> str:
        """The error of the last scrape; empty before the first one, and if it succeeded."""
        return next((str(each["lastError"]) for each in self._get("targets").get("activeTargets", ())), "")

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:
                    return {}
                raise ValueError(error.read().decode()) from None
        except OSError:
            return {}

"""The endpoint that pods report to: `POST /apis/GROUP/VERSION/namespaces/NAMESPACE/KINDS/NAME/status`.

Answers are those of Kubeflow Trainer's status server: 200 with the payload, errors as `metav1.Status`. Nothing is
decided by what a report says; it is written into the status of the job (`writer.py`).
"""

from __future__ import annotations

import http
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import structlog
from aiohttp import web

from trainop.controllers.progress.payload import MAX_BODY, InvalidReportError, TrainerStatus, read_report
from trainop.controllers.progress.reporters import BusyError, Reporter, TokenCheck, read_claims
from trainop.controllers.progress.writer import Job, ProgressWriter
from trainop.engine.kind import Kind
from trainop.engine.progress import TRAINER_STATUS, ProgressEndpoint, audience_of, is_asked
from trainop.engine.seen import Pod
from trainop.engine.status import FAILED, SUCCEEDED, Status
from trainop.runtime import ApiError, Clock, Informer, Json, Key, Unstructured
from trainop.runtime.lowlevel import EARLIEST, Bodies, BodyRefusedError, Handler, HandlerFunctions, LogThrottle

PATH = "/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}/status"
BODY_TIMEOUT = 10.0
"""Seconds in which a body must arrive, as upstream."""
CONNECTIONS = 256
LOG_INTERVAL = 300.0

log = structlog.get_logger(__name__)


class Refused(Exception):  # noqa: N818  # an answer, not an error of the program
    """The report is answered with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Reporting(NamedTuple):
    """The jobs of one kind, and the pods that may report for them."""

    kind: Kind
    jobs: Informer[Unstructured]
    pods: Informer[Pod]


def find_ratios(kinds: Iterable[Reporting]) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Namespace, framework, name and progress, from 0 to 1, of each unfinished job that reports."""
    for each in kinds:
        for job in each.jobs.store.list():
            shown = (job.raw.get("status") or {}).get(TRAINER_STATUS)
            percent = shown.get("progressPercentage") if isinstance(shown, dict) else None
            if isinstance(percent, int) and each.kind.concerns(job) and not _is_finished(job):
                yield (job.metadata.namespace, each.kind.name, job.metadata.name), percent / 100


class ProgressServer:
    """Answers the reports; `application` is to be served over TLS."""

    def __init__(
        self,
        kinds: Iterable[Reporting],
        *,
        endpoint: ProgressEndpoint,
        tokens: TokenCheck,
        writer: ProgressWriter,
        clock: Clock,
        count: Callable[[int], None] = lambda _status: None,
        tell: Callable[[Unstructured, str], None] = lambda _job, _pod: None,
    ) -> None:
        """`count` gets the status of each answer, `tell` the job and the pod of each report."""
        self._kinds: dict[tuple[str, str, str], list[Reporting]] = {}
        for each in kinds:
            resource = each.kind.resource
            self._kinds.setdefault((resource.group, resource.version, resource.plural), []).append(each)
            each.jobs.add_handler(_show_to(writer))
        self._endpoint = endpoint
        self._tokens = tokens
        self._writer = writer
        self._count = count
        self._tell = tell
        self._clock = clock
        self._bodies = Bodies(MAX_BODY, memory=128 * MAX_BODY)
        self._throttle = LogThrottle(clock, LOG_INTERVAL)
        self.application = web.Application()
        self.application.router.add_post(PATH, self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            async with self._bodies.receive(request, BODY_TIMEOUT) as body:
                answer = await self._take(request, body)
        except BodyRefusedError as error:
            answer = _refuse(error.status, str(error))
        except Refused as refusal:
            answer = _refuse(refusal.status, str(refusal))
        except BusyError:
            answer = _refuse(429, "too many tokens are being reviewed")
        except (ApiError, ConnectionError, TimeoutError) as error:
            if (left_out := self._throttle.count("review")) is not None:
                log.warning("tokens cannot be reviewed", error=str(error), left_out=left_out)
            answer = _refuse(500, "the token cannot be reviewed")
        self._count(answer.status)
        return answer

    async def _take(self, request: web.Request, body: bytes) -> web.Response:
        of_kind, key = self._find_kind(request), Key(request.match_info["namespace"], request.match_info["name"])
        reporter = await self._identify(request, of_kind, key)
        job, kind = self._find_job(of_kind, key, reporter)
        try:
            status = read_report(body)
        except InvalidReportError as error:
            raise Refused(422, str(error)) from None
        if status is None:
            return _respond(200, {})
        self._tell(job, reporter.pod)
        dated = self._date(job, status)
        self._writer.put(Job(kind.source, key, job.metadata.uid), dated, job.metadata.resource_version)
        return _respond(200, {"trainerStatus": status.as_json()})

    def _date(self, job: Unstructured, status: TrainerStatus) -> TrainerStatus:
        """The report with a time: other replicas hear of it by a change of the field, and it may say the same as the
        one before. A checkpoint has the time at which the first report said that it is there."""
        now, uid = self._clock.now(), job.metadata.uid
        if status.last_updated_time is None:
            status = msgspec.structs.replace(status, last_updated_time=now)
        return status.date_checkpoint(now, (self._writer.last(uid), (job.raw.get("status") or {}).get(TRAINER_STATUS)))

    def _find_kind(self, request: web.Request) -> list[Reporting]:
        asked = request.match_info
        found = self._kinds.get((asked["group"], asked["version"], asked["plural"]))
        if not found:
            raise Refused(404, "the server could not find the requested resource")
        return found

    async def _identify(self, request: web.Request, of_kind: list[Reporting], key: Key) -> Reporter:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        audience = audience_of(of_kind[0].kind.resource, *key)
        claims = read_claims(token.strip(), audience) if scheme.lower() == "bearer" else None
        if claims is None or not self._may_exist(of_kind, claims.reporter, key):
            raise Refused(403, f"no token of a pod of {key} for the audience {audience}")
        reporter = await self._tokens.identify(token.strip(), claims, audience)
        if reporter is None or not self._may_exist(of_kind, reporter, key):
            raise Refused(403, "the token is not valid")
        return reporter

    def _may_exist(self, of_kind: list[Reporting], reporter: Reporter, key: Key) -> bool:
        return reporter.namespace == key.namespace and any(_find_pod(each, reporter) for each in of_kind)

    def _find_job(self, of_kind: list[Reporting], key: Key, reporter: Reporter) -> tuple[Unstructured, Kind]:
        for each in of_kind:
            job = each.jobs.store.get(key)
            if job is None or not each.kind.concerns(job):
                continue
            pod = _find_pod(each, reporter)
            if pod is None or not _belongs(each.kind, pod, job):
                raise Refused(403, f"pod {reporter.pod} is not a pod of {each.kind.resource.kind} {key}")
            if not is_asked(job.metadata.annotations, self._endpoint):
                raise Refused(403, f"{each.kind.resource.kind} {key} does not report progress")
            if _is_finished(job):
                raise Refused(403, f"{each.kind.resource.kind} {key} has finished")
            return job, each.kind
        raise Refused(404, f'{of_kind[0].kind.resource} "{key.name}" not found')


def _show_to(writer: ProgressWriter) -> Handler[Unstructured]:
    """The handler that shows the writer the jobs as the cache has them."""

    def forget(job: Unstructured | None, _key: Key) -> None:
        if job is not None:
            writer.forget(job.metadata.uid)

    return HandlerFunctions(writer.observe, lambda _, new: writer.observe(new), forget)


def _find_pod(reporting: Reporting, reporter: Reporter) -> Pod | None:
    """The pod that the token is bound to, if the cache has it. A deleted pod reports no more."""
    pod = reporting.pods.store.get(Key(reporter.namespace, reporter.pod))
    return pod if pod is not None and pod.metadata.uid == reporter.uid else None


def _belongs(kind: Kind, pod: Pod, job: Unstructured) -> bool:
    """Whether the job controls the pod, or the pod is of a batch Job, which only its labels connect to the job: nobody
    but the operator makes such Jobs with these labels and the name of the job's launcher."""
    if pod.metadata.controlled_by(job.metadata.uid):
        return True
    controller = pod.metadata.controller
    return (
        controller is not None
        and controller.kind == "Job"
        and kind.launcher is not None
        and controller.name == kind.launcher(job)
        and kind.children.is_of(kind.controller, pod.metadata)
    )


def _is_finished(job: Unstructured) -> bool:
    status = Status(job.raw.get("status"), EARLIEST)
    return any(map(status.is_true, (SUCCEEDED, FAILED)))


def _refuse(status: int, message: str) -> web.Response:
    reason = http.HTTPStatus(status).phrase.replace(" ", "")
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }
    return _respond(status, body)


def _respond(status: int, body: Json) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")

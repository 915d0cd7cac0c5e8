"""Requests between the pods of a job: JSON over HTTP."""

import http.client
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(port, answers):
    """Answers POST requests for ever; `answers` maps a path to a function of the decoded body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = json.dumps(answers[self.path](json.loads(body))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_args):
            pass

    ThreadingHTTPServer(("", port), Handler).serve_forever()


def post(address, path, body, patience=30.0):
    """The decoded answer of the pod at `host:port`. It may have no name yet, or not listen yet: for `patience`
    seconds."""
    end = time.monotonic() + patience
    while True:
        try:
            connection = http.client.HTTPConnection(address, timeout=30)
            connection.request("POST", path, json.dumps(body))
            answer = json.loads(connection.getresponse().read())
            connection.close()
        except (OSError, http.client.HTTPException, ValueError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return answer

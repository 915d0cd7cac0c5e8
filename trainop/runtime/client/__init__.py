"""The Kubernetes API client: configuration, credentials, TLS, connections, requests with retries, and decoding.

Layers from top to bottom: `Client` (objects and lists), `Sender` (one request with retries and metrics), `Transport`
(one HTTP exchange; `HttpTransport` over aiohttp, or the embedded API server in the same process).
"""

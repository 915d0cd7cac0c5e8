"""HTTP servers of the operator: probes, metrics and webhooks, with connection limits and TLS certificates.

`server` has the applications and `HttpServer`, `listener` accepts and limits connections, and `certificate_folder`
holds the serving certificate and reloads it from a mounted folder.
"""

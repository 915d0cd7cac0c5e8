"""Admission webhooks: the HTTPS server, the AdmissionReview protocol, and self-managed serving certificates.

`server` receives a review, `admission` decodes it, calls the registered handler and encodes the response.
`rotation` keeps the certificate Secret and the `caBundle` of the webhook configurations up to date; `keyring`
(state of the Secret), `certificates` (X.509) and `injection` (JSON patches) are its pure parts.
"""

"""A client of registries (OCI distribution-spec v1.1): logins, retries, resumed uploads, mounts, referrers.

In: references and blobs. Out: manifests and blobs that match their digests. Read first: ``client.Registry``
and ``transport.Transport``.
"""

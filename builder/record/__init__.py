"""What is said of an image: the applied-patch manifest, in-toto statements, a bill of materials, signatures.

In: a finished plan. Out: documents with the same bytes for the same build. Read first:
``manifest.Manifest`` and ``documents.make_documents``.
"""

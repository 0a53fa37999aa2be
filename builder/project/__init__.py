"""What the user keeps on disk: the project's directory, overlay specs, locks, pins, the cache.

In: a directory with ``overlays/``, ``patches/`` and ``Dockerfile.in``. Out: frozen, checked values, and
files that are written whole or not at all. Read first: ``project.find_root`` and ``spec.read_spec``.
"""

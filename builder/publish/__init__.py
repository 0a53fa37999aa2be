"""Where builds go: registries, layouts, a Docker Engine, buildx, a CI matrix; attestations attached to them.

In: results of ``build``. Out: what was delivered, by digest. Read first: ``push.deliver`` and
``fleet.build_many``.
"""

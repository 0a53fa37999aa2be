"""SGLang's sources as git objects: of a commit, of a release's wheel, of any revision with a name.

In: an upstream pin of a spec, or a name such as ``v0.5.23`` or ``DIR@REV``. Out: files as bytes, in a bare
repository of the user's cache. Read first: ``upstream.resolve_upstream`` and ``git.GitStore``.
"""

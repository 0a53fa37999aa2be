"""Writing patches: import, edit, refresh, export, lint. Everything here works on bytes and git objects.

In: mailboxes, diffs, commits, a git work tree. Out: canonical patch files at the end of a series, proved on
their release. Read first: ``importing.import_input_patches`` and ``export.export_applied``.
"""

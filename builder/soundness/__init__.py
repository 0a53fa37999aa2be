"""Is what is patched still Python? Files before and after, compiled and compared; nothing of them is run.

In: a tree's files before and after a patch. Out: what the change breaks: syntax, names, imports, data
files. Read first: ``series.check_series`` and ``check.Checker``.
"""

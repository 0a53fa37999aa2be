"""Evidence beyond source: what a compiler says of the patched kernels, and what a GPU computes with them.

:func:`evidence.compile.report` and :func:`evidence.gpu.report` each run a process of their
own, since they load tilelang and execute the tree's kernels; the processes' modules are ``lowering`` and
``kernel_gate``. Unlike probes, these run the tree's code with the caller's rights: ask them about trees
that you would also serve from.
"""

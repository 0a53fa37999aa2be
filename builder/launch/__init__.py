"""From an image to processes on machines: ranks, arguments, memory, and one module for each output.

In: a spec's ``launch`` section, an image by digest, nodes. Out: a script, a compose file, systemd units or
Kubernetes objects. Read first: ``server.server_arguments`` and ``arguments.read_parser``.
"""

"""Lint: every rule of the patch format, each with an id, a line, and a mend where one is safe."""

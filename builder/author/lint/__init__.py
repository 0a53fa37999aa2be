"""Lint: every rule of the patch format, each with an id, a line, and a repair where one is safe."""

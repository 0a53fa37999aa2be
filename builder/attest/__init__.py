"""Attestations: what was built from what, in formats that other tools read."""

"""Probes: small programs that decide from a source tree alone whether a defect is there."""

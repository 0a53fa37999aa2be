"""Which patches has upstream made unnecessary? Evidence of several kinds, one verdict; docs/retirement.md."""

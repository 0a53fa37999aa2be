"""overlay: a versioned set of source patches over a pinned SGLang, baked into digest-pinned images."""

__version__ = "0.1.0"

"""OCI images as values (image-spec v1.1): references, manifests, configs, layers, layouts. Knows no network.

In: bytes. Out: checked values, and layers with the same bytes for the same files on any machine. Read
first: ``model.RawManifest`` and ``layer.build_layer``.
"""

"""Image values: descriptors, manifests, configs and layers. Nothing here knows networks."""

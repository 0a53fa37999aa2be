"""A Docker Engine: bakes a Dockerfile, holds images, runs containers."""

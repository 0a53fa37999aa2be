#!/bin/sh
# The main job from nothing: a small base image made of the SGLang wheel, then an overlay built on it.
# Run by `make demo`; everything it makes is in .demo.
set -eu

show() {
    printf '\n$ %s\n' "$*" >&2
    "$@"
}

base=$(show overlay base wheel sglang==0.5.20 --output oci:.demo/base)
echo "$base"
show overlay build glm53-flash-gb10 --base "$base" --platform linux/arm64 --output oci:.demo/image --lock .demo/lock

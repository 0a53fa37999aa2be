#!/bin/sh
# The main job from nothing: a small base image made of the SGLang wheel, an overlay built on it, and a look at
# what came out.
# Run by `make demo`; everything it makes is in .demo.
set -eu

show() {
    printf '\n$ %s\n' "$*" >&2
    "$@"
}

base=$(show overlay base wheel sglang==0.5.20 --output oci:.demo/base)
echo "$base"
show overlay build glm53-flash-gb10 --base "$base" --platform linux/arm64 --output oci:.demo/image --lock .demo/lock
show overlay verify oci:.demo/image --base "$base"

cat <<'END'

The image holds SGLang's sources, patched, and nothing that runs. In it: .venv/bin/overlay inspect oci:.demo/image --full
What each patch is for: docs/patches.md. For real, on two DGX Sparks: docs/tutorial.md
END

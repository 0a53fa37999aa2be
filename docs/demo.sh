#!/bin/sh
# The main job from nothing: a small base image out of the SGLang wheel, then the overlay built on it.
set -eu
out=.demo
base=sglang==0.5.20
name=glm53-flash-gb10

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

say overlay base wheel "$base" --output "oci:$out/base"
overlay base wheel "$base" --output "oci:$out/base"
digest=$(python -c 'import json,sys; print(json.load(open(sys.argv[1]))["manifests"][0]["digest"])' "$out/base/index.json")

say overlay build "$name" --base "oci:$out/base@$digest" --output "oci:$out/image"
overlay build "$name" --base "oci:$out/base@$digest" --output "oci:$out/image"

printf '\nThe base is in %s/base, the image in %s/image.\n' "$out" "$out"

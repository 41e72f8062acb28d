#!/usr/bin/env bash
# Build the container of the server where no Docker runs, ask it, and measure it.
#
#   sudo bash tools/try_containers.sh FOLDER
#
# It needs debootstrap, buildah and curl. FOLDER keeps the base, made by debootstrap as the image
# debian:trixie-slim is. OPTIONS has more options of `buildah build`, such as a --volume with the
# certificates of a proxy.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
# in MB, with Debian
largest=250
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
cd "$1"
export BUILDAH_ISOLATION=chroot LXSR_API_KEY=secret
images() { buildah --root "$PWD/images" --runroot "$PWD/run" "$@"; }

if [ ! -e base.tar ]; then
    debootstrap --variant=minbase trixie root > debootstrap.log
    # what the slim image leaves out, of this and of later packages
    rm -rf root/usr/share/{doc,info,locale,man}/* root/var/cache/apt/* root/var/lib/apt/lists/*
    printf 'path-exclude /usr/share/%s/*\n' doc info locale man > root/etc/dpkg/dpkg.cfg.d/slim
    tar -C root --one-file-system --exclude=./proc/* --exclude=./sys/* -cf base.tar .
fi
# A base that is there already lets the build use its layers again.
if ! images inspect --type image debian:trixie-slim > inspect.log 2>&1; then
    base=$(images from scratch)
    images add --quiet "$base" base.tar /
    images commit --quiet --rm "$base" docker.io/library/debian:trixie-slim
fi
# shellcheck disable=SC2086
images build --layers --format docker --pull-never ${OPTIONS:-} \
    --build-arg BASE=debian:trixie-slim -f "$source/containers/serve.Dockerfile" -t lxsr-serve "$source" > build.log 2>&1 || {
    tail build.log >&2
    exit 1
}

container=$(images from --pull-never localhost/lxsr-serve)
port=18123
images run --env LXSR_API_KEY --user lxsr "$container" -- \
    lxsr serve --host 0.0.0.0 --port $port --model lxsr-static > server.log 2>&1 &
server=$!
trap 'kill $(pgrep -f "^/opt/lxsr/bin/python.* --port $port") || true' EXIT
until curl -sf http://127.0.0.1:$port/health > health.json; do
    kill -0 $server || { cat server.log >&2; exit 1; }
    sleep 1
done
curl -sf http://127.0.0.1:$port/v1/embeddings -H "Authorization: Bearer secret" -d '{"input": "A dog."}' |
    grep -o '"total_tokens":[0-9]*'
size=$(du -s --apparent-size --block-size=MB "$(images mount "$container")" | cut -dM -f1)
echo "lxsr-serve: $size MB, user $(images inspect --format '{{.OCIv1.Config.User}}' "$container")"
[ "$size" -le $largest ] || { echo "expected at most $largest MB" >&2; exit 1; }

#!/usr/bin/env bash
# Try a command on a bare Debian: python3, python3-venv, make and git, without compiler and headers.
#
#   sudo bash tools/try_bare.sh FOLDER                           make demo
#   sudo bash tools/try_bare.sh FOLDER 'UPDATES=60 make demo'    another command
#
# It runs in a clone of the last commit, as root and as a plain user, each with the gettext catalogues of Debian's programs
# and with /usr/share/locale empty. FOLDER keeps the root file system, made by debootstrap, and a log of each run.
# SUITE=trixie takes another Debian; WHEELS=folder has wheels that pip takes before others, such as torch for the CPU.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//; 2,4p' "$0" >&2; exit 2; }
if [ -z "${INSIDE:-}" ]; then # mounts of its own, which end with this process
    INSIDE=1 exec unshare --mount --propagation private bash "$0" "$@"
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
command=${2:-make demo}
source=$(cd "$(dirname "$0")/.." && pwd)
root=$folder/root

if [ ! -e "$root/bare" ]; then
    scripts=/usr/share/debootstrap/scripts suite=${SUITE:-bookworm} # an older debootstrap does not know the newer suites
    debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-venv "$suite" "$root" \
        http://deb.debian.org/debian "$([ -e "$scripts/$suite" ] && echo "$scripts/$suite" || echo "$scripts/sid")" > "$folder/debootstrap.log"
    chroot "$root" useradd --create-home --shell /bin/bash plain
    touch "$root/bare"
fi
for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
cp /etc/resolv.conf "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # of a machine behind a proxy as well
if [ -n "${WHEELS:-}" ]; then
    mkdir -p "$root/wheels"
    mount --bind "$WHEELS" "$root/wheels"
fi

try() { # USER CATALOGUES
    local user=$1 log=$folder/$1-$2.log home status=0 start=$SECONDS
    home=$(chroot "$root" sh -c "echo ~$user")
    if [ "$2" = without ]; then mount -t tmpfs tmpfs "$root/usr/share/locale"; fi
    chroot --userspec="$user:$user" "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$home" LANG=C.UTF-8 \
        ${WHEELS:+PIP_FIND_LINKS=/wheels} bash -c "cd && cd lxsr && $command" > "$log" 2>&1 < /dev/null || status=$?
    if [ "$2" = without ]; then umount "$root/usr/share/locale"; fi
    echo "$user, $2 catalogues: status $status, $((SECONDS - start)) s, $log"
    grep "^install: " "$log" || true
    tail -n 4 "$log" | cut -c 1-160
}

found=$(chroot "$root" sh -c 'ls /usr/bin/*g++* /usr/bin/*gcc* /usr/bin/*clang* /usr/include/python3*/Python.h 2> /dev/null' || true)
echo "compilers and headers: ${found:-none}"
for user in root plain; do
    home=$root$(chroot "$root" sh -c "echo ~$user")
    rm -rf "$home/lxsr"
    git clone -q "$source" "$home/lxsr"
    chroot "$root" chown -R "$user:$user" "${home#"$root"}/lxsr"
    try "$user" with
    rm -rf "$home/lxsr/work"
    try "$user" without
done

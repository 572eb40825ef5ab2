#!/bin/sh
# Starts a process as a container engine does: in its own namespaces, with a root folder that contains only the
# machine's programs and libraries, and the given paths. Containers share nothing with each other: no /dev/shm, no
# System V memory, no processes, no network.
#
#     container.sh ROOTLESS FOLDER PATH... -- PROGRAM ARGUMENT...
#
# ROOTLESS is yes if uid 0 inside is the caller outside (an engine that a user runs), or no. FOLDER is empty and
# becomes the root; each PATH appears in it at the same place.
set -eu

if [ "${TENSORLEND_INSIDE:-}" != yes ]; then
    [ "$1" = yes ] && rootless="--user --map-root-user" || rootless=
    export TENSORLEND_INSIDE=yes
    # shellcheck disable=SC2086
    exec unshare $rootless --mount --pid --fork --kill-child --ipc --net --uts --cgroup --propagation private sh "$0" "$@"
fi

root=$2
shift 2
mount -t tmpfs -o mode=0755 tmpfs "$root"
for folder in usr bin sbin lib lib64; do
    if [ -L "/$folder" ]; then
        ln -s "$(readlink "/$folder")" "$root/$folder"
    elif [ -d "/$folder" ]; then
        mkdir "$root/$folder"
        mount --rbind "/$folder" "$root/$folder"
    fi
done
mkdir "$root/proc" "$root/dev" "$root/tmp" "$root/old"
mount -t proc proc "$root/proc"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
while [ "$1" != -- ]; do
    mkdir -p "$root$(dirname "$1")"
    if [ -d "$1" ]; then mkdir -p "$root$1"; else touch "$root$1"; fi
    mount --bind "$1" "$root$1"
    shift
done
shift
cd "$root"
pivot_root . old
cd /
umount -l old
exec "$@"

#!/bin/sh
# Starts a whole system for a test: systemd as the first process of a pid namespace, over a disposable copy of this
# machine's files. Its writes go to memory and have no effect outside.
#
#     system.sh FOLDER
#
# FOLDER/share is /run/test inside, and FOLDER/memory/up contains the changed files. It lives until standard input ends.
set -eu
folder=$1

case ${2:-machine} in
machine)
    exec unshare --mount --propagation private sh "$0" "$folder" outside
    ;;
outside)
    mkdir "$folder/memory"
    mount -t tmpfs tmpfs "$folder/memory"
    mkdir "$folder/memory/up" "$folder/memory/work" "$folder/memory/root" "$folder/memory/cgroup"
    mount -t cgroup2 cgroup2 "$folder/memory/cgroup"
    home=$folder/memory/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    own=$home/tensorlend-system-$$
    mkdir "$own"
    echo $$ >"$own/cgroup.procs"
    unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net --propagation private \
        sh "$0" "$folder" inside &
    child=$!
    read -r _ || true
    kill -KILL "$child" || true
    wait "$child" || true
    echo $$ >"$home/cgroup.procs"
    find "$own" -depth -type d -exec rmdir {} +
    ;;
inside)
    # /proc is still the machine's, so this is the pid by which outside processes can enter.
    read -r pid rest </proc/self/stat
    root=$folder/memory/root
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/memory/up,workdir=$folder/memory/work" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    for memory in run tmp dev; do mount -t tmpfs -o mode=0755 tmpfs "$root/$memory"; done
    chmod 1777 "$root/tmp"
    for device in null zero full random urandom tty; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/shm" "$root/dev/pts" "$root/run/test" "$root/old"
    # Sandboxed services (PrivateDevices=) need these, too.
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount --bind "$folder/share" "$root/run/test"
    # Removes the units that this machine's administrator enabled, and a policy that forbids starting services.
    rm -rf "$root/etc/systemd/system" "$root/usr/sbin/policy-rc.d"
    mkdir "$root/etc/systemd/system"
    : >"$root/etc/machine-id"
    cd "$root"
    pivot_root . old
    umount -l /old
    # As container managers do: by this systemd passes credentials to services.
    mount --make-rshared /
    echo "$pid"
    exec env --ignore-environment container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no \
        </dev/null >/run/test/system.log 2>&1
    ;;
esac

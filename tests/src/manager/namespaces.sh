#!/bin/sh
# A service manager of its own for a test: a private mount, pid and cgroup namespace, in which
# `systemd --user` finds a fresh /run and a cgroup tree that ends where it begins.
#
#     namespaces.sh FOLDER UID
#
# FOLDER holds bin/, units/ and etc/, and is /run/test inside. The manager lives until standard input
# ends, and everything that it started with it: the pid namespace ends with its first process.
set -eu
stage=${3:-machine}
folder=$1
uid=$2

case $stage in
machine)
    # A mount namespace first, so that what follows needs no cgroup tree of the machine's own.
    exec unshare --mount --propagation private sh "$0" "$folder" "$uid" cgroup
    ;;
cgroup)
    mkdir "$folder/cgroup"
    mount -t cgroup2 cgroup2 "$folder/cgroup"
    home=$folder/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    own=$home/tensorlend-test-$$
    mkdir "$own"
    echo $$ >"$own/cgroup.procs"
    status=0
    unshare --mount --pid --fork --cgroup --kill-child sh "$0" "$folder" "$uid" inside || status=$?
    echo $$ >"$home/cgroup.procs"
    find "$own" -depth -type d -exec rmdir {} +
    exit "$status"
    ;;
inside)
    # Seen through the machine's /proc still: the number by which others can enter.
    read -r pid rest </proc/self/stat
    mount -t proc proc /proc
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs -o mode=0755 tmpfs /run
    mkdir -p /run/systemd/system /run/test /run/user
    mount --bind "$folder" /run/test
    for file in passwd group; do
        if [ -e "/run/test/etc/$file" ]; then mount --bind "/run/test/etc/$file" "/etc/$file"; fi
    done
    # As a system's manager has it, or a user's.
    runtime=/run
    if [ "$uid" = 0 ]; then
        # Services of other users reach its sockets, too.
        umask 0
    else
        runtime=/run/user/$uid
        install --directory --owner="$uid" --group="$uid" --mode=0700 "$runtime"
    fi
    chown "$uid:$uid" /sys/fs/cgroup /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/cgroup.subtree_control \
        /sys/fs/cgroup/cgroup.threads
    env --ignore-environment PATH="$PATH" HOME=/run/test XDG_RUNTIME_DIR="$runtime" \
        SYSTEMD_UNIT_PATH=/run/test/.config/systemd/user:/run/test/units \
        setpriv --reuid="$uid" --regid="$uid" --clear-groups \
        /lib/systemd/systemd --user --unit=basic.target --log-target=console \
        </dev/null >/run/test/manager.log 2>&1 &
    echo "$pid"
    read -r _ || true
    ;;
esac

#!/bin/sh
# Starts a service manager for a test: `systemd --user` in a private mount, pid and cgroup namespace,
# with a fresh /run and a cgroup tree whose root is its own group.
#
#     namespaces.sh FOLDER UID
#
# FOLDER contains bin/, units/ and etc/, and is /run/test inside. The manager lives until standard
# input ends. Its processes end with it: the kernel ends a pid namespace with its first process.
set -eu
stage=${3:-machine}
folder=$1
uid=$2

case $stage in
machine)
    # Enters a mount namespace first, so that mounting the cgroup tree does not affect the machine.
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
    # /proc is still the machine's, so this is the pid by which outside processes can enter.
    read -r pid rest </proc/self/stat
    mount -t proc proc /proc
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs -o mode=0755 tmpfs /run
    mkdir -p /run/systemd/system /run/test /run/user
    mount --bind "$folder" /run/test
    for file in passwd group; do
        if [ -e "/run/test/etc/$file" ]; then mount --bind "/run/test/etc/$file" "/etc/$file"; fi
    done
    # The runtime folder of a system's manager, or of a user's.
    runtime=/run
    if [ "$uid" = 0 ]; then
        # Services of other users must reach its sockets.
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

#!/bin/sh
# The first process in the namespaces of a test's own libvirt. It reaps what others leave: libvirt waits for that.
#
#   usage: libvirtd.sh DIR
set -eu
dir=$1
mount --make-rprivate /
mount -t tmpfs tmpfs /run
for pair in etc:/etc/libvirt lib:/var/lib/libvirt cache:/var/cache/libvirt logs:/var/log/libvirt run:/run/libvirt; do
    mkdir -p "$dir/${pair%%:*}" "${pair#*:}"
    mount --bind "$dir/${pair%%:*}" "${pair#*:}"
done
mkdir -p /run/lock

# QEMU runs as a user of its own, as on any host. Debian's package for whole hosts makes that user; here it is known inside.
for file in passwd group; do
    cp "/etc/$file" "$dir/$file"
    mount --bind "$dir/$file" "/etc/$file"
done
grep -q ^libvirt-qemu: /etc/group || echo 'libvirt-qemu:x:64055:' >>/etc/group
grep -q ^libvirt-qemu: /etc/passwd ||
    echo 'libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin' >>/etc/passwd
if [ -e /dev/kvm ]; then
    mknod "$dir/kvm" c 10 232
    chmod 0666 "$dir/kvm"
    mount --bind "$dir/kvm" /dev/kvm
fi
cat >/etc/libvirt/qemu.conf <<'END'
user = "libvirt-qemu"
group = "libvirt-qemu"
security_driver = "none"
namespaces = [ ]
cgroup_controllers = [ ]
remember_owner = 0
stdio_handler = "file"
END
cat >/etc/libvirt/libvirtd.conf <<'END'
auth_unix_ro = "none"
auth_unix_rw = "none"
END

ip link set lo up
ip link add br0 type bridge
ip addr add 10.88.7.1/24 dev br0
ip link set br0 up

libvirtd --config /etc/libvirt/libvirtd.conf &
daemon=$!
# A shell reaps its children, and as the first process everybody's.
wait "$daemon"

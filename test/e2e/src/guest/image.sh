#!/bin/sh
# Makes a guest's kernel and disk of the packages that mmdebstrap unpacked.
#
#   usage: image.sh ROOT SOURCES OUT
set -eu
root=$1
sources=$2
out=$3

# The kernel runs straight from its package: NVMe and ext4 are built in, so that it needs no initial RAM disk.
kernel=$(chroot "$root" apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: *\(linux-image-.*\)/\1/p' | head -n 1)
chroot "$root" sh -c "cd /tmp && apt-get download -qq $kernel"
dpkg-deb --fsys-tarfile "$root"/tmp/linux-image-*.deb |
    tar -x -C "$root" --keep-directory-symlink ./boot ./lib/modules
chroot "$root" depmod "${kernel#linux-image-}"
mv "$root/boot/vmlinuz-${kernel#linux-image-}" "$out/vmlinuz"
rm -rf "$root"/tmp/* "$root"/boot/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb

# An address of the network that QEMU emulates, and no route out of it.
cat >"$root/etc/systemd/network/10-wired.network" <<'END'
[Match]
Driver=virtio_net

[Network]
Address=10.0.2.15/24
LinkLocalAddressing=no
IPv6AcceptRA=no
END
echo guest >"$root/etc/hostname"
echo '127.0.0.1 localhost guest' >"$root/etc/hosts"
: >"$root/etc/machine-id"
chroot "$root" systemctl --quiet enable systemd-networkd.service
# Nobody logs in, and there is nothing to clean up.
chroot "$root" systemctl --quiet mask systemd-networkd-wait-online.service e2scrub_reap.service e2scrub_all.timer \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-tmpfiles-clean.timer \
    getty@tty1.service serial-getty@ttyS0.service modprobe@drm.service

install -m 0755 "$sources/agent.sh" "$root/usr/local/sbin/test-agent"
cat >"$root/etc/systemd/system/test-agent.service" <<'END'
[Unit]
Description=Does what the test asks
DefaultDependencies=no
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/local/sbin/test-agent
Restart=always
RestartSec=100ms
# What a script left running goes on.
KillMode=process
END
cat >"$root/etc/udev/rules.d/90-test-agent.rules" <<'END'
SUBSYSTEM=="virtio-ports", ATTR{name}=="test-agent", TAG+="systemd", ENV{SYSTEMD_WANTS}="test-agent.service"
END

# Without what is mounted below it.
mkdir "$out/root"
mount --bind "$root" "$out/root"
truncate -s 1536M "$out/disk.ext4"
mkfs.ext4 -q -O ^has_journal -d "$out/root" "$out/disk.ext4"
umount "$out/root"
rmdir "$out/root"

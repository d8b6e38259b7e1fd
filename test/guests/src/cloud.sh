#!/bin/sh
# Makes a disk that boots of the packages that mmdebstrap unpacked.
#
#   usage: cloud.sh ROOT SOURCES OUT
set -eu
root=$1
sources=$2
out=$3
boot_mib=48
root_mib=1152

# The resolver in there does not run yet.
cp --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
kernel=$(chroot "$root" apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: *\(linux-image-.*\)/\1/p' | head -n 1)
chroot "$root" sh -c "cd /tmp && apt-get download -qq $kernel busybox-static syslinux-common"
dpkg-deb --fsys-tarfile "$root"/tmp/linux-image-*.deb |
    tar -x -C "$root" --keep-directory-symlink ./boot ./lib/modules
# Without drivers of what no emulated machine has.
(cd "$root/lib/modules" && find . -name '*.ko' |
    grep -E '/(infiniband|ethernet|nvme|gpu|sound|media|usb|btrfs|xfs|ceph|nfsd?|ocfs2|gfs2|target|sctp|tipc|openvswitch)/' | xargs rm -f)
chroot "$root" depmod "${kernel#linux-image-}"
work=$sources/work
mkdir "$work"
mv "$root/boot/vmlinuz-${kernel#linux-image-}" "$work/vmlinuz"
dpkg-deb --fsys-tarfile "$root"/tmp/busybox-static_*.deb | tar -x -C "$work" ./bin/busybox
dpkg-deb --fsys-tarfile "$root"/tmp/syslinux-common_*.deb | tar -x -C "$work" ./usr/lib/syslinux/mbr/mbr.bin

# Drivers in the order in which they need each other. Those that are built in have no file.
mkdir -p "$work/initrd/bin" "$work/initrd/m" "$work/initrd/dev" "$work/initrd/proc" "$work/initrd/sys" "$work/initrd/root"
number=10
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk rng-core virtio-rng \
    scsi_common scsi_mod cdrom sr_mod virtio_scsi isofs; do
    file=$(find "$root/lib/modules" -name "$module.ko" | head -n 1)
    [ -z "$file" ] || cp "$file" "$work/initrd/m/$number-$module.ko"
    number=$((number + 1))
done
cp "$work/bin/busybox" "$work/initrd/bin/busybox"
install -m 0755 "$sources/init" "$work/initrd/init"
(cd "$work/initrd" && find . | sort | ../bin/busybox cpio -o -H newc -R 0:0 2>/dev/null) | gzip -n >"$work/initrd.gz"

rm -rf "$root"/tmp/* "$root"/boot/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
install -m 0644 "$sources/cloud.cfg" "$root/etc/cloud/cloud.cfg"
# As an image is that nobody has booted yet.
: >"$root/etc/machine-id"
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/hostname" "$root/var/lib/dbus/machine-id"
echo '/dev/vda2 / ext4 errors=remount-ro 0 0' >"$root/etc/fstab"
ln -sf /run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
chroot "$root" systemctl --quiet enable systemd-networkd.service systemd-resolved.service
# Its packages have done what is done after an update.
touch "$root/etc/.updated" "$root/var/.updated"
# There is nothing to clean up, and nobody at a screen.
chroot "$root" systemctl --quiet mask e2scrub_reap.service e2scrub_all.timer apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer fstrim.timer systemd-tmpfiles-clean.timer getty@tty1.service modprobe@drm.service \
    modprobe@configfs.service modprobe@dm_mod.service modprobe@efi_pstore.service modprobe@fuse.service modprobe@loop.service \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount dev-mqueue.mount \
    dev-hugepages.mount proc-sys-fs-binfmt_misc.automount systemd-binfmt.service

# Without what is mounted below it.
mkdir "$work/root"
mount --bind "$root" "$work/root"
truncate -s "${root_mib}M" "$work/root.ext4"
mkfs.ext4 -q -d "$work/root" "$work/root.ext4"
umount "$work/root"
rmdir "$work/root"

# Two partitions: the boot loader's, and the root file system, which is the last and can grow.
truncate -s "${boot_mib}M" "$work/boot.fat"
mkfs.vfat -n BOOT "$work/boot.fat" >/dev/null
cat >"$work/syslinux.cfg" <<'CFG'
DEFAULT cloud
PROMPT 0
LABEL cloud
    KERNEL vmlinuz
    INITRD initrd.gz
    APPEND console=ttyS0 quiet tsc=reliable no_timer_check nokaslr mitigations=off
CFG
mcopy -i "$work/boot.fat" "$work/vmlinuz" "$work/initrd.gz" "$work/syslinux.cfg" ::/
syslinux --install "$work/boot.fat"
little() { printf "\\$(printf %o $(($1 & 255)))\\$(printf %o $(($1 >> 8 & 255)))\\$(printf %o $(($1 >> 16 & 255)))\\$(printf %o $(($1 >> 24 & 255)))"; }
# Flags, where it begins and what it is, where it ends, its first sector, its sectors.
partition() { printf "\\$1\\376\\377\\377\\$2\\376\\377\\377" && little "$3" && little "$4"; }
boot_from=2048
root_from=$((boot_from + boot_mib * 2048))
disk=$work/disk.raw
truncate -s "$((1 + boot_mib + root_mib + 1))M" "$disk"
dd if="$work/usr/lib/syslinux/mbr/mbr.bin" of="$disk" conv=notrunc status=none
{ partition 200 014 "$boot_from" "$((boot_mib * 2048))" && partition 000 203 "$root_from" "$((root_mib * 2048))"; } |
    dd of="$disk" bs=1 seek=446 conv=notrunc status=none
printf '\125\252' | dd of="$disk" bs=1 seek=510 conv=notrunc status=none
# The boot sector says where its file system begins.
little "$boot_from" | dd of="$work/boot.fat" bs=1 seek=28 conv=notrunc status=none
dd if="$work/boot.fat" of="$disk" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$work/root.ext4" of="$disk" bs=1M seek="$((1 + boot_mib))" conv=notrunc,sparse status=none
qemu-img convert -f raw -O qcow2 -c -W -m 4 "$disk" "$out/cloud.qcow2"
rm -rf "$work"

#!/bin/busybox sh
# Finds the root file system, as any distribution's initial RAM disk does: with the drivers of the devices that are there.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in /m/*.ko; do insmod "$module" 2>/dev/null; done
# Disks and discs are there soon after their drivers.
tries=0
while { [ ! -b /dev/vda2 ] || [ ! -b /dev/sr0 ]; } && [ "$tries" -lt 500 ]; do
    tries=$((tries + 1))
    usleep 20000
done
mount -t ext4 -o ro /dev/vda2 /root || exec sh
for folder in dev proc sys; do mount -o move "/$folder" "/root/$folder"; done
exec switch_root /root /sbin/init

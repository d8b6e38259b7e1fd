#!/bin/busybox sh
# The tiny guest's only process: reads a NoCloud seed, does as it says, and gives a shell to whoever is at the console.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /m/*.ko; do insmod "$module" 2>/dev/null; done
mkdir -p /dev/pts && mount -t devpts devpts /dev/pts
echo root:x:0:0:root:/:/bin/sh >/etc/passwd
echo /bin/sh >/etc/shells

# The disc is there soon after its driver; beside twenty others that boot, some seconds after.
tries=0
while [ ! -b /dev/sr0 ] && [ "$tries" -lt 500 ]; do
    tries=$((tries + 1))
    usleep 20000
done
# At this place of a disc is its label.
label=$(dd if=/dev/sr0 bs=1 skip=32808 count=6 2>/dev/null)
if [ "$label" = cidata ] && mount -t iso9660 -o ro /dev/sr0 /seed 2>/dev/null; then
    hostname "$(sed -n 's/^local-hostname: *//p' /seed/meta-data)"
    sed -n 's/^  - "\(.*\)"$/\1/p' /seed/meta-data >/.ssh/authorized_keys
fi
chmod 700 /.ssh
chmod 600 /.ssh/authorized_keys 2>/dev/null

ip link set lo up
# Lines of: what, the card's address, the value.
told() {
    awk '
        { gsub(/"/, "") }
        /^  [a-z0-9]+:$/ { list = ""; dns = 0 }
        $1 == "macaddress:" { mac = $2 }
        $1 == "routes:" { list = "" }
        $1 == "nameservers:" { dns = 1 }
        $1 == "addresses:" { list = dns ? "dns" : "address" }
        $1 == "-" && list != "" { print list, mac, $2 }
        $1 == "via:" { print "via", mac, $2 }
    ' /seed/network-config
}
[ -f /seed/network-config ] && told | while read -r what mac value; do
    for card in /sys/class/net/*; do
        [ "$(cat "$card/address")" = "$mac" ] || continue
        case $what in
        address) ip addr add "$value" dev "${card##*/}" && ip link set "${card##*/}" up ;;
        via) ip route add default via "$value" dev "${card##*/}" ;;
        dns) echo "nameserver $value" >>/etc/resolv.conf ;;
        esac
    done
done

# Its keys are on its disk, so that it is the same host after a stop and a start.
keys=/tmp
mount -t vfat /dev/vda /disk 2>/dev/null && keys=/disk
[ -s "$keys/hostkey" ] || dropbearkey -t ed25519 -f "$keys/hostkey" >/dev/null 2>&1
sync
dropbear -s -r "$keys/hostkey" 2>/dev/null

# The power button.
acpid -d >/dev/null 2>&1 &
echo "tiny: ready"
while :; do
    setsid sh -c 'exec sh </dev/ttyS0 >/dev/ttyS0 2>&1'
    sleep 1
done

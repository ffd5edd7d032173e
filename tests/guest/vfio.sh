#!/bin/busybox sh
# The guest of the VFIO test: gives a device to vfio-pci and runs the driver from user space on it.

/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
while read -r module; do
    insmod "/modules/$module" || echo "E2E failed: insmod $module"
done </modules.order

device=
for path in /sys/bus/pci/devices/*; do
    [ "$(cat "$path/vendor") $(cat "$path/device")" != "0x1234 0x11e8" ] || device=${path##*/}
done
echo "E2E device address=$device"
# Before it is bound, the driver has to say what to do.
/bin/edu "$device"
echo vfio-pci >"/sys/bus/pci/devices/$device/driver_override"
echo "$device" >/sys/bus/pci/drivers_probe
/bin/edu "$device"
echo "E2E ended status=$?"
# What the IOMMU stopped.
dmesg | grep -m 1 "DMAR: .*fault addr" | sed 's/.*fault addr/E2E fault addr/'
echo "E2E end"
poweroff -f

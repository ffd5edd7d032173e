#!/bin/busybox sh
# The guest's first process: brings eth0 up, runs /plan, answers on the console in lines of the form
# "E2E <what> <key>=<value> ...", which the test reads.

/bin/busybox mkdir -p /proc /sys /dev /tmp /bin
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mount -t tmpfs -o size=70% tmpfs /tmp

. /addresses

# say WHAT KEY=VALUE...
say() { echo "E2E $*"; }

# stat NAME: a counter of the network driver
stat() { cat "/sys/class/net/eth0/statistics/$1"; }

# now: milliseconds since boot. /proc/uptime has seconds, a point, and two digits; a number that starts
# with 0 would be taken for octal.
now() {
    read -r up _ </proc/uptime
    hundredths=${up#*.}
    echo $((${up%.*} * 1000 + ${hundredths#0} * 10))
}

address() { case $1 in 4) echo "$peer_v4" ;; 6) echo "$peer_v6" ;; esac; }

# fetch FAMILY BYTES SECONDS: the payload into /tmp/data, within a time. The client is a script on the
# connection itself: nc would copy a kilobyte at a time, and the guest never send a large segment.
fetch() {
    printf '#!/bin/sh\necho GET %s; cat >/tmp/data\n' "$2" >/tmp/client
    chmod +x /tmp/client
    : >/tmp/data
    timeout "$3" nc "$(address "$1")" "$transfer_port" -e /tmp/client
}

# get FAMILY BYTES: the payload, once
get() {
    packets=$(stat rx_packets) bytes=$(stat rx_bytes) start=$(now)
    fetch "$1" "$2" 110
    end=$(now)
    packets=$(($(stat rx_packets) - packets)) bytes=$(($(stat rx_bytes) - bytes))
    say get family="$1" bytes="$(wc -c </tmp/data)" sha256="$(sha256sum </tmp/data | cut -c1-64)" \
        ms=$((end - start)) rx_packets=$packets rx_bytes=$bytes
}

# put FAMILY: /tmp/data back to the peer
put() {
    packets=$(stat tx_packets) bytes=$(stat tx_bytes) start=$(now)
    size=$(wc -c </tmp/data)
    printf '#!/bin/sh\necho PUT %s; cat /tmp/data; cat >/tmp/answer\n' "$size" >/tmp/client
    rm -f /tmp/answer
    timeout 110 nc "$(address "$1")" "$transfer_port" -e /tmp/client
    end=$(now)
    packets=$(($(stat tx_packets) - packets)) bytes=$(($(stat tx_bytes) - bytes))
    say put family="$1" bytes="$size" sha256="$(cat /tmp/answer || echo none)" \
        ms=$((end - start)) tx_packets=$packets tx_bytes=$bytes
}

# traffic FAMILY BYTES: fetches for ever; a fetch that hangs is given up
traffic() {
    round=0
    while :; do
        fetch "$1" "$2" 20
        say traffic round=$round bytes="$(wc -c </tmp/data)" sha256="$(sha256sum </tmp/data | cut -c1-64)"
        round=$((round + 1))
    done
}

# load: loads the drivers, waits for the interface
load() {
    if [ -e /modules.order ]; then
        while read -r module; do
            grep -q "^$(basename "$module" .ko | tr - _) " /proc/modules && continue
            insmod "/modules/$module" || say broken what="insmod-$module"
        done </modules.order
    fi
    tries=0
    # It is listed in /sys a moment before it can be used.
    while ! ip link show dev eth0 >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -gt 100 ]; then
            say broken what=no-eth0
            poweroff -f
        fi
        usleep 100000
    done
}

# configure: addresses, and the first packets: neighbours are learnt here, not in what is measured
configure() {
    echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
    echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_ra
    ip addr add "$guest_v4/24" dev eth0
    ip link set eth0 up
    ip addr add "$guest_v6/64" dev eth0
    tries=0
    while ! ping -c 1 -W 1 "$peer_v4" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -gt 30 ]; then
            say broken what=peer-does-not-answer-ping
            break
        fi
    done
    ping6 -c 1 -W 2 "$peer_v6" >/dev/null 2>&1 || say note what=peer-does-not-answer-ping6
    say up kernel="$(uname -r)" features="$(cat /sys/class/net/eth0/device/features 2>/dev/null)" \
        mtu="$(cat /sys/class/net/eth0/mtu)" ms="$(now)"
}

# reload: the driver goes and comes back
reload() {
    ip link set eth0 down
    rmmod virtio_net || say broken what=rmmod-virtio_net
    load
    configure
}

# rebind: the driver lets go of its PCI device, and takes it again
rebind() {
    device=$(basename "$(readlink -f /sys/class/net/eth0/device)")
    driver=/sys/bus/pci/devices/$device/driver
    driver=$(readlink -f "$driver")
    echo "$device" >"$driver/unbind"
    ! ip link show dev eth0 >/dev/null 2>&1 || say broken what=unbind
    echo "$device" >"$driver/bind" || say broken what=bind
    load
    configure
}

ip link set lo up
load
configure
. /plan
say end
poweroff -f

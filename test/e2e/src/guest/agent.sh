#!/bin/bash
# Does what the test asks over the serial port; channel.rs says how it is asked.

work=/run/test-agent
mkdir -p "$work"
cd /
exec 3<>/dev/virtio-ports/test-agent
printf 'hello %s\n' "$(</proc/sys/kernel/random/boot_id)" >&3

answer() {
    printf 'done %s %s %s %s\n' "$1" "$2" "$(stat -c %s "$work/out")" "$(stat -c %s "$work/err")" >&3
    cat "$work/out" "$work/err" >&3
}

# bash reads the port a byte at a time, so what follows a line is left for others.
while read -r -u 3 verb id size rest; do
    case $verb in
    run)
        head -c "$size" <&3 >"$work/script"
        timeout --kill-after=5 "$rest" bash "$work/script" </dev/null >"$work/out" 2>"$work/err" 3>&-
        code=$?
        truncate -s '<4194304' "$work/out" "$work/err"
        answer "$id" "$code"
        ;;
    put)
        head -c "$size" <&3 >"$work/put"
        install -m "${rest%% *}" "$work/put" "${rest#* }" >"$work/out" 2>"$work/err"
        answer "$id" $?
        rm -f "$work/put"
        ;;
    esac
done

#!/bin/sh
# Installs bcd on this machine, joins it to the fleet and starts it. Running it again repairs or updates what is there.
#
#   usage: sh install-bcd.sh [--token-file FILE]
#
# The join token is read from FILE, or from standard input when that is not a terminal; never from arguments or the
# environment, where others could read it. A machine that has joined needs none.
set -eu
umask 077

BINARY=@BINARY@
URL=@URL@
SHA256=@SHA256@
ROLE=@ROLE@
SERVER=@SERVER@
PROGRAM=/usr/local/bin/bcd
CONFIG_DIR=/etc/bcd
DATA_DIR=/var/lib/bcd
UNIT=/etc/systemd/system/bcd.service

work=
changed=no

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "error: $1"
    shift
    for line in "$@"; do
        say "  $line"
    done
    exit 1
}

clean_up() {
    if [ -n "$work" ]; then
        rm -rf -- "$work"
    fi
}

need() {
    command -v "$1" >/dev/null 2>&1 || die "$1 is not installed" "try       install it with the system's package manager, then run this again"
}

check_machine() {
    [ "$(uname -s)" = Linux ] || die "bcd runs on Linux"
    [ "$(id -u)" = 0 ] || die "this must run as root" "try       sudo sh install-bcd.sh --token-file FILE"
    [ -d /run/systemd/system ] || die "systemd does not run this machine"
    for tool in install mktemp sha256sum systemctl; do
        need "$tool"
    done
}

sum_of() {
    sha256sum -- "$1" | cut -d ' ' -f 1
}

fetch() {
    if command -v curl >/dev/null 2>&1; then
        curl --fail --silent --show-error --location --proto '=https' --proto-redir '=https' --tlsv1.2 \
            --retry 3 --max-time 600 --max-filesize 536870912 --output "$2" -- "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget --quiet --https-only --tries=3 --timeout=60 --output-document="$2" -- "$1"
    else
        die "neither curl nor wget is installed" "try       install one of them, then run this again"
    fi
}

install_program() {
    if [ -n "$SHA256" ] && [ -f "$PROGRAM" ] && [ "$(sum_of "$PROGRAM")" = "$SHA256" ]; then
        say "ok    program     $PROGRAM is the wanted one already"
        return
    fi
    if [ -n "$URL" ]; then
        fetch "$URL" "$work/bcd" || die "failed to download $URL"
        source=$work/bcd
    else
        [ -f "$BINARY" ] || die "there is no $BINARY" "try       copy the bcd program there, then run this again"
        # A copy is checked and then installed, so that nobody changes it in between.
        cp -- "$BINARY" "$work/bcd"
        source=$work/bcd
    fi
    if [ -n "$SHA256" ]; then
        found=$(sum_of "$source")
        [ "$found" = "$SHA256" ] || die "the program is not the wanted one; nothing was installed" \
            "wanted    $SHA256" "found     $found"
    fi
    if [ -f "$PROGRAM" ] && cmp -s -- "$source" "$PROGRAM"; then
        say "ok    program     $PROGRAM is the wanted one already"
        return
    fi
    install -m 0755 -- "$source" "$PROGRAM.new"
    mv -f -- "$PROGRAM.new" "$PROGRAM"
    changed=yes
    say "ok    program     $PROGRAM"
}

# put MODE PATH: writes standard input there, at once and only when it differs. What differed is kept beside it.
put() {
    cat >"$work/put"
    if [ -f "$2" ] && cmp -s -- "$work/put" "$2"; then
        say "ok    unchanged   $2"
        return
    fi
    if [ -f "$2" ]; then
        cp -p -- "$2" "$2.old"
        say "note  kept        what was there is in $2.old"
    fi
    install -m "$1" -- "$work/put" "$2.new"
    mv -f -- "$2.new" "$2"
    changed=yes
    say "ok    written     $2"
}

write_config() {
    install -d -m 0755 -- "$CONFIG_DIR"
    install -d -m 0700 -- "$DATA_DIR"
    # The unit may write into it, and cannot make it.
    install -d -m 0755 -- /etc/cdi
    put 0600 "$CONFIG_DIR/config.toml" <<'END_OF_CONFIG'
@CONFIG@
END_OF_CONFIG
@JOIN_KEY@
}

write_unit() {
    put 0644 "$UNIT" <<'END_OF_UNIT'
@UNIT_FILE@
END_OF_UNIT
    if [ "$changed" = yes ]; then
        systemctl daemon-reload
    fi
}

join_fleet() {
    if [ -f "$DATA_DIR/identity.json" ]; then
        say "ok    joined      this machine has joined already"
        return
    fi
    if [ -n "$token_file" ]; then
        [ -f "$token_file" ] || die "there is no $token_file"
        cat -- "$token_file" >"$work/token"
    elif [ ! -t 0 ]; then
        head -c 4096 >"$work/token"
    fi
    [ -s "$work/token" ] || die "no join token was given" \
        "try       better-compute join-tokens create --site SITE > FILE, bring FILE here, give --token-file FILE"
    set -- join --config "$CONFIG_DIR/config.toml" --role "$ROLE" --token-file "$work/token"
    if [ -n "$SERVER" ]; then
        # Beside the configuration the pins say the same once more; bcd takes an address only together with them.
        set -- "$@" --server "$SERVER" --serving-ca-pin @SERVING_CA_PIN@ \
            --join-signing-pin @JOIN_SIGNING_PIN@ --join-encryption-pin @JOIN_ENCRYPTION_PIN@
    fi
    "$PROGRAM" "$@" </dev/null || die "the machine could not join" "see       $PROGRAM doctor"
    changed=yes
}

start() {
    systemctl enable --quiet bcd.service
    if [ "$changed" = yes ]; then
        systemctl restart bcd.service
    else
        systemctl start bcd.service
    fi
    say "ok    running     systemctl status bcd"
}

main() {
    token_file=
    while [ $# -gt 0 ]; do
        case $1 in
            --token-file)
                [ $# -ge 2 ] || die "--token-file takes a file"
                token_file=$2
                shift 2
                ;;
            *) die "this takes --token-file FILE and nothing else" ;;
        esac
    done
    check_machine
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    work=$(mktemp -d)
    install_program
    write_config
    write_unit
    join_fleet
    start
}

# Called at the end, so that a script that was cut short does nothing.
main "$@"

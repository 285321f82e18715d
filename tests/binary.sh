# What the scripts here begin with: where the tree and the program are, and tools that are not here yet. Read by
# them, not run. Sets `root` and `bin` (FLASHLANE=path/to/flashlane for another binary), and counts what is bad.

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${FLASHLANE:-${CARGO_TARGET_DIR:-$root/target}/release/flashlane}
case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
if [ ! -x "$bin" ]; then
    echo "$(basename "$0" .sh): no binary at $bin; run cargo build --release first" >&2
    exit 2
fi

have() {
    for tool in $tools; do
        command -v "$tool" >/dev/null 2>&1 || return 1
    done
}
# has_tools: true where all of $tools are here, or can be installed with $packages (root and apt).
has_tools() {
    have && return
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        get() { timeout 300 apt-get install -y --no-install-recommends $packages; }
        { get || { timeout 120 apt-get update && get; }; } >/dev/null 2>&1 </dev/null
    fi
    have
}

bad=0
# ok WHAT COMMAND...: runs it, says whether it ended well.
ok() {
    what=$1
    shift
    if "$@"; then echo "ok    $what"; else
        bad=$((bad + 1))
        echo "FAIL  $what"
    fi
}

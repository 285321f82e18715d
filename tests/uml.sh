# User-mode Linux for the scripts here: its kernel, and guests of it. Read by them behind binary.sh, not run.
# The kernel is FLASHLANE_UML (may be .xz), else one beside this repository (shared/guest). `skip` is the caller's.

# unpack: the kernel is ./linux.
unpack() {
    kernel=${FLASHLANE_UML:-$(ls "$root"/../shared/guest/linux-uml-*.xz 2>/dev/null | head -n 1)}
    [ -n "$kernel" ] && [ -r "$kernel" ] || skip uml "no kernel of user-mode Linux here (FLASHLANE_UML)"
    case $kernel in
    *.xz)
        command -v xz >/dev/null 2>&1 || skip uml "there is no xz here"
        xz -dc "$kernel" >linux && chmod +x linux
        ;;
    *) cp "$kernel" linux ;;
    esac
}

# boot INIT [MEMORY [SECONDS]]: a guest whose root is this machine's, read only, and whose disk is disk.sock.
boot() {
    # shellcheck disable=SC2086
    TMPDIR=/dev/shm timeout "${3:-120}" ./linux "mem=${2:-256M}" root=/dev/root rootfstype=hostfs rootflags=/ ro \
        init="$PWD/$1" con=null con0=fd:0,fd:1 "virtio_uml.device=$PWD/disk.sock:2" random.trust_cpu=1 \
        </dev/null >guest.log 2>&1
    if grep -q "set fp regs failed" guest.log; then
        skip uml "this kernel has no room for the registers of this machine's processor"
    fi
}

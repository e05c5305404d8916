#!/bin/sh
# torchrun starts this as the Python of each rank: the output goes into pipes of that rank. If a
# shell or torchrun has redirected it, as in `torchrun … | tee log`, it goes there as well.
copy() {
    [ -p "$1.copy" ] || mkfifo "$1.copy"
    # Not a child of Python, and it outlives Python: the last lines count most.
    (trap '' HUP INT TERM; exec tee "$1" <"$1.copy" &)
}
is_copied() {
    case " $GPUSCALE_OUTPUT " in *" $(readlink "/proc/$$/fd/$1") "*) return 1 ;; esac
    command -v tee >/dev/null && command -v mkfifo >/dev/null && command -v readlink >/dev/null
}
pipe=$GPUSCALE_PIPES/$LOCAL_RANK
if [ -p "$pipe.out" ]; then
    for stream in out err; do echo "GPUSCALE_RANK $RANK" >"$pipe.$stream"; done
    if is_copied 1; then copy "$pipe.out"; exec >"$pipe.out.copy"; else exec >"$pipe.out"; fi
    if is_copied 2; then copy "$pipe.err" >&2; exec 2>"$pipe.err.copy"; else exec 2>"$pipe.err"; fi
fi
python=${GPUSCALE_PYTHON_EXEC:-$(tr '\0' '\n' <"/proc/$PPID/cmdline" | head -n 1)}
exec "$python" "$@"

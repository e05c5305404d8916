#!/usr/bin/env bash
# One night on one machine: measure, compare with a baseline, keep everything, and end with one
# exit code. The job scripts beside this file choose the resources and call it; it knows no
# scheduler.
#
#     ci/nightly.sh NAME JOB measure PYTEST_ARGUMENT... compare BASELINE [COMPARE_OPTION...]
#
# The night is kept in $GPUSCALE_NIGHTLY_DIR/NAME/DATE_JOB (.gpuscale/nightly by default).
# pytest and gpuscale are those of $GPUSCALE_VENV (.venv by default).
#
# It ends with 0 ok or improved; 1 regressed; 2 it could not be run or judged; 3 inconclusive;
# 4 nothing was comparable; 5 no regression seen, but not all that was asked for was measured.
# 1 is kept for a regression: whatever goes wrong unforeseen ends with 2.
set -euo pipefail

exit_code=2
trap 'exit "$exit_code"' EXIT

stop() {
    echo "gpuscale night: $1" >&2
    exit 2
}

usage="use: ci/nightly.sh NAME JOB measure PYTEST_ARGUMENT... compare BASELINE [OPTION...]"
[ $# -ge 3 ] && [ "$3" = measure ] || stop "$usage"
name=$1
job=$2
shift 3
measure=()
while [ $# -gt 0 ] && [ "$1" != compare ]; do
    measure+=("$1")
    shift
done
[ $# -ge 2 ] && [ ${#measure[@]} -gt 0 ] || stop "$usage"
baseline=$2
shift 2
# What is left in "$@" are the options of `gpuscale compare`. They stay there because bash before
# 4.4, which older clusters have, takes an empty array for an unset variable.

cd "$(dirname "$0")/.."
venv=${GPUSCALE_VENV:-.venv}
bin=$(cd "$venv/bin" 2>/dev/null && pwd) ||
    stop "$venv/bin is not there; run 'make setup', or set GPUSCALE_VENV"
PATH="$bin:$PATH"
export PATH

# A wrong baseline is found here, before the GPUs have worked for an hour.
echo "gpuscale night: judged against $baseline"
gpuscale show "$baseline" ||
    stop "$baseline cannot be shown (see above); name another one, or repair $venv"

nights="${GPUSCALE_NIGHTLY_DIR:-.gpuscale/nightly}/$name"
night="$nights/$(date +%Y-%m-%d)_$job"
mkdir -p "$nights"
mkdir "$night" || stop "$night cannot be made; every night needs a job name of its own"
cp -- "$baseline" "$night/baseline.json"
results="$night/results.jsonl"
started=$(date +%Y-%m-%dT%H:%M:%S%z)

pytest_exit=0
pytest "${measure[@]}" --results "$results" --junitxml "$night/junit.xml" 2>&1 |
    tee "$night/pytest.log" || pytest_exit=${PIPESTATUS[0]}

# A night asks only for what its node has. A skipped item means that something has gone, such as a
# GPU that fell off the bus, although pytest itself ends with 0; and so does a run that was not
# steady. Only items that needed no further run ("settled after 3 runs") are rightly left out.
complete=no
if [ "$pytest_exit" -eq 0 ] && grep -q '<testsuite ' "$night/junit.xml" &&
    ! grep -o '<skipped [^>]*' "$night/junit.xml" | grep -qv 'message="settled after'; then
    complete=yes
fi

# Also after a failed item: what was measured before it is in the file, and may have regressed.
compare_exit=4
if [ -s "$results" ]; then
    compare_exit=0
    gpuscale compare "$baseline" "$results" "$@" |
        tee "$night/comparison.txt" || compare_exit=${PIPESTATUS[0]}
    # Python ends with 1 when it crashes; a regression never comes without its table.
    if [ "$compare_exit" -eq 1 ] && [ ! -s "$night/comparison.txt" ]; then
        compare_exit=2
    fi
fi

if [ "$compare_exit" -ne 1 ] && [ "$complete" = no ]; then
    exit_code=5
else
    exit_code=$compare_exit
fi
case "$exit_code" in
    0) meaning="ok" ;;
    1) meaning="regressed" ;;
    3) meaning="inconclusive" ;;
    4) meaning="nothing comparable was measured" ;;
    5) meaning="not everything was measured; see pytest.log" ;;
    *) exit_code=2 meaning="the comparison itself failed" ;;
esac

{
    echo "night: $meaning"
    echo "exit: $exit_code"
    echo "pytest exit: $pytest_exit"
    echo "compare exit: $compare_exit"
    echo "all measured: $complete"
    echo "started: $started"
    echo "finished: $(date +%Y-%m-%dT%H:%M:%S%z)"
    echo "host: $(uname -n)"
    echo "job: $job"
    echo "revision: $(git describe --always --dirty 2>/dev/null || echo unknown)"
    echo "baseline: $baseline"
} >"$night/night.txt"
echo "gpuscale night: $meaning (exit $exit_code); kept in $night"

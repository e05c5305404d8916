#!/usr/bin/env bash
# One night on one machine: measure, compare with a baseline, keep everything, and end with one
# exit code. The files for GitLab and GitHub beside this one call it.
#
#     ci/nightly.sh NAME [JOB] measure PYTEST_ARGUMENT... [compare BASELINE [COMPARE_OPTION...]]
#
# It goes to the root of the checkout, puts the environment $GPUSCALE_VENV (.venv by default)
# first, and hands over to `gpuscale night`; docs/nightly.md says what that does, keeps and ends
# with. Whatever goes wrong unforeseen ends with 2: 1 is kept for a regression.
set -euo pipefail

trap 'exit 2' EXIT

cd "$(dirname "$0")/.."
venv=${GPUSCALE_VENV:-.venv}
bin=$(cd "$venv/bin" 2>/dev/null && pwd) || {
    echo "gpuscale night: $venv/bin is not there; run 'make setup', or set GPUSCALE_VENV" >&2
    exit 2
}
PATH="$bin:$PATH"
export PATH

# A package that is broken would end with Python's 1.
gpuscale --version >/dev/null || exit

# From here on its exit code is the night's, and its signals are those that the scheduler sends.
exec gpuscale night "$@"

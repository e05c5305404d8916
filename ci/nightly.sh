#!/usr/bin/env bash
# One night on one machine: measure, compare with a baseline, keep everything, and end with one
# exit code. The files for GitLab and GitHub beside this one call it.
#
#     ci/nightly.sh NAME [JOB] measure PYTEST_ARGUMENT... [compare BASELINE [COMPARE_OPTION...]]
#
# It goes to the root of the checkout, puts the environment $GPUSCALE_VENV (.venv by default)
# first on PATH, and becomes `gpuscale night`, whose files and exit codes are in docs/nightly.md.
# An unforeseen failure exits with 2; 1 is reserved for a regression.
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

# A broken package would exit with 1, which means a regression.
gpuscale --version >/dev/null || exit

# From here on the exit code is that of the night, which also gets the scheduler's signals.
exec gpuscale night "$@"

"""`gpuscale night`: execute a nightly run (measure, compare, store); retry if a node failed."""

import argparse
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO

from gpuscale import cli
from gpuscale.base.errors import ExitCode, GpuscaleError, UsageError
from gpuscale.campaigns.night.night_job import NightJob, print_flushed
from gpuscale.cli.compare import outputs_of
from gpuscale.reports.page import write_index

_USAGE = "NAME [JOB] measure PYTEST_ARGUMENT... [compare BASELINE|--history DIR [OPTION...]]"
_EXAMPLE = "mynode measure my_cases --gpus 1,2 --runs 3 compare baselines/mynode.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"gpuscale night {_USAGE}\n\nexample:\n  gpuscale night {_EXAMPLE}"
    parser.description = (
        "Measure one night on one machine with pytest, compare with a baseline, keep everything "
        "below .gpuscale/nightly/NAME, and end with one exit code. If the infrastructure fails, "
        "measure the missing runs once more."
    )
    parser.epilog = (
        "Exit codes: as of compare, 2 also if it could not be run, 5 not everything was measured, "
        "6 infrastructure failed."
    )
    parser.add_argument("name", metavar="NAME", help="name of the machine, such as arc4")
    text = "the scheduler's job, or another word that names the folder (default: the time of day)"
    parser.add_argument("job", metavar="[JOB]", help=text)
    # The rest goes to pytest and to `gpuscale compare`.
    text = "measure PYTEST_ARGUMENT..."
    parser.add_argument("words", metavar=text, nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    words, job = arguments.words, arguments.job
    if job == "measure":
        words, job = [job, *words], None
    end = words.index("compare") if "compare" in words else len(words)
    measure, compare = words[1:end], words[end + 1 :]
    if words[:1] != ["measure"] or not measure or (end < len(words) and not compare):
        raise UsageError(f"night: expected {_USAGE}")
    if compare:
        # An option that `compare` refuses would otherwise be told after hours of measurements.
        outputs_of(cli.parser_of_commands().parse_args(["compare", *compare]).format, [])
    night = NightJob(job, measure, compare, partial(_command, set()))
    code = night.run(arguments.name)
    try:
        write_index(night.folder.parent)
    except (GpuscaleError, OSError) as problem:
        print_flushed(f"gpuscale night: the index of the nights was not written: {problem}\n")
    return code


def _command(remarks: set[str], *arguments: str) -> tuple[int, str]:
    """Run gpuscale; print its output, but no remark twice; return the exit code and the output."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = cli.main(arguments)
        except (SystemExit, OSError):
            # argparse raises SystemExit for unknown options.
            code = ExitCode.USAGE
    lines = said.getvalue().splitlines(keepends=True)
    print_flushed("".join(line for line in lines if line not in remarks))
    remarks.update(line for line in lines if line.startswith("gpuscale: "))
    return code, said.getvalue()

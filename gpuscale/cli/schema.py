"""`gpuscale schema`: print the JSON Schema of a file format, for scripts that use such files."""

import argparse
import json

from gpuscale.base.errors import ExitCode
from gpuscale.cli.inputs import say
from gpuscale.store.file_formats import BASELINE_FORMAT, RESULTS_FORMAT, schema

_SCHEMAS = {"results": RESULTS_FORMAT, "baseline": BASELINE_FORMAT}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the JSON Schema of a file format. That of results describes a line: the header "
        "(without its format and version) or a run."
    )
    parser.add_argument("kind", choices=tuple(_SCHEMAS), help="results or baseline")


def run(arguments: argparse.Namespace) -> int:
    say(json.dumps(schema(_SCHEMAS[arguments.kind]), indent=2))
    return ExitCode.OK

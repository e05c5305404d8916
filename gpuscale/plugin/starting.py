"""From the command line to a session that measures, or to the reason why there is none."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuscale.errors import GpuscaleError
from gpuscale.launch.choice import launcher_by_name
from gpuscale.night.attempt import tell_night
from gpuscale.plugin.confirming import BaselineJudge
from gpuscale.plugin.options import MeasureOptions, parse_options
from gpuscale.plugin.requests import cases_revision
from gpuscale.plugin.resuming import refuse_other_environment
from gpuscale.plugin.session import MeasuringSession
from gpuscale.records import Environment
from gpuscale.store import RESULTS_FOLDER, ResumedResults, read_baseline, refuse_unwritable


def start_session(config: pytest.Config) -> None:
    """Check the options and the machine, and register what measures.

    Raises:
        pytest.UsageError: an option or the machine does not allow what was asked for.
    """
    if config.getoption("numprocesses", default=None) or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "gpuscale measures one item at a time; leave out pytest-xdist's -n (or give -n 0)"
        )
    if not hasattr(config.option, "benchmark_columns"):
        raise pytest.UsageError("gpuscale needs pytest-benchmark; leave out -p no:benchmark")
    try:
        options = parse_options(vars(config.option))
        refuse_unwritable(_results_folder(config, options))
        launcher = launcher_by_name(
            options.launcher, device=options.device, folder=_results_folder(config, options)
        )
        environment = replace(launcher.environment, cases_revision=cases_revision(config.rootpath))
        if options.precision == "tf32" and environment.device == "cpu":
            raise GpuscaleError("--precision tf32 exists on GPUs only; choose fp32 or bf16 here")
        resumed = _resumed(options, environment)
        judge = _judge(options)
    except GpuscaleError as error:
        tell_night(error, os.environ)
        raise pytest.UsageError(str(error)) from None
    if config.option.verbose == 0:
        # A line for each item, with its step time: runs take seconds, dots say too little.
        config.option.verbose = 1
    if config.option.benchmark_columns is None:
        # All ten columns are 200 characters wide.
        config.option.benchmark_columns = ["min", "median", "max", "iqr", "rounds", "iterations"]
    session = MeasuringSession(config, options, launcher, environment, resumed, judge)
    config.pluginmanager.register(session, "gpuscale-session")


def _results_folder(config: pytest.Config, options: MeasureOptions) -> Path:
    """Where the results file lies or will lie."""
    file = options.resume or options.results
    return Path(config.invocation_params.dir) / RESULTS_FOLDER if file is None else file.parent


def _resumed(options: MeasureOptions, environment: Environment) -> ResumedResults | None:
    if options.resume is None:
        return None
    resumed = ResumedResults(options.resume)
    refuse_other_environment(resumed.path, resumed.results, environment, options.injections)
    return resumed


def _judge(options: MeasureOptions) -> BaselineJudge | None:
    if options.baseline is None or options.judging is None:
        return None
    baseline = read_baseline(options.baseline)
    return BaselineJudge(options.baseline, baseline, options.judging, gpus=options.gpus)

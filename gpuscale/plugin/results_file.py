"""The results file of a session, and checks that runs may be added to an existing file."""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from gpuscale import __version__
from gpuscale.base.errors import UsageError
from gpuscale.base.text import clean, joined
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import (
    Environment,
    EnvironmentChange,
    PointKey,
    Results,
    Run,
    RunRequest,
    environment_diff,
)
from gpuscale.records.configuration import differences
from gpuscale.store.results import ResultsFile, create_results, default_results_path
from gpuscale.workload.printed_figures import KNOWN_FIGURES

_MOST_NAMED = 8
_REMEDY = "measure into a new file, without --resume"
_Change = tuple[str, object, object]
"""A name, and its values before and now."""


class Recorder:
    """Writes a session's runs to a new results file, or to the one that is resumed."""

    def __init__(
        self,
        environment: Environment,
        options: MeasureOptions,
        *,
        folder: Path,
        resumed: ResultsFile | None = None,
    ) -> None:
        now = datetime.now(UTC)
        self.environment = environment
        self.resumed = resumed
        self.path = options.resume or options.results or default_results_path(folder, now)
        self.new_runs: list[Run] = []
        self.is_of_commands = False
        """True if all runs execute commands; the file then describes the commands' interpreter."""
        self._writer = resumed
        self._before = Results(
            created_at=now.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=environment,
            started_as=_started_as(),
            injections=options.injections,
        )
        if resumed is not None:
            self._before = resumed.results

    @property
    def measured(self) -> Results:
        """Contents of the results file, including runs of earlier sessions."""
        return replace(self._before, runs=(*self._before.runs, *self.new_runs))

    def add_scripts(self, requests: Iterable[RunRequest]) -> None:
        """Record hashes of cases and scripts; raise UsageError if they differ in a resumed file."""
        cases, files, scripts = set[Path](), dict[str, Path](), dict[str, str]()
        for request in requests:
            if (command := request.command) is None:
                cases.add(Path(request.case_file))
            else:
                files |= {word: Path(command.folder, word) for word in command.words}
        for path in cases:
            # Files that share a name are recorded with the folders that distinguish them.
            folders = [each.parent for each in cases if each.name == path.name]
            files[str(path.relative_to(os.path.commonpath(folders)))] = path
        for name, path in files.items():
            # A word may be none of a readable file, such as a pattern, or lines for `sh -c`.
            with suppress(OSError, ValueError):
                if name.endswith((".py", ".sh")):
                    scripts[name] = sha256(path.read_bytes()).hexdigest()[:12]
        self.environment = replace(self.environment, scripts=scripts)
        if self.resumed is not None:
            then = self._before.environment
            _validate_same(self.path, environment_diff.script_changes([then], [self.environment]))

    def append(self, run: Run, software: Environment | None = None) -> Run:
        """Write a run to the file; return it with the scheduler's job ID as its allocation.

        `software` describes a command's interpreter, known only after a run. Raise a UsageError if
        it differs from the software recorded in a resumed file.
        """
        run = replace(run, allocation=self.environment.job_id)
        if self.resumed is not None and _is_of_commands(self._before):
            software = software or self.environment
            faults = self._before.injections
            validate_environment(self.path, self._before, self.environment, faults, software)
        if self._writer is None:
            environment = self.environment
            if self.is_of_commands and software is not None:
                environment = environment.with_software_of(software)
            self._before = replace(self._before, environment=environment)
            self._writer = create_results(self.path, self._before)
        self._writer.append(run)
        self.new_runs.append(run)
        return run

    def close(self) -> None:
        """Close the results file, if there is one yet."""
        if self._writer is not None:
            self._writer.close()


def _started_as() -> str | None:
    """Return the command line if it is one line that runs pytest or gpuscale; otherwise None."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    line = joined((name, *sys.argv[1:]))
    return line if name in ("pytest", "gpuscale") and line == clean(line) else None


def is_recorded(request: RunRequest, runs: Iterable[Run]) -> bool:
    """True if a valid run for the request exists; failed runs do not count and are repeated."""
    return any(
        run.is_valid and run.index == request.index and PointKey.of(run) == PointKey.of(request)
        for run in runs
    )


def with_printed(request: RunRequest, runs: Iterable[Run]) -> RunRequest:
    """Return the request with the batch size and metrics that the command printed in `runs`."""
    command, asked = request.command, request.configuration
    alike = [run for run in runs if run.is_valid and run.gpus == request.gpus]
    if command is not None and command.batch_from_output:
        batches = (run.batch_per_gpu for run in alike if run.configuration == asked)
        request = replace(request, batch_per_gpu=next(batches, request.batch_per_gpu))
    if command is not None and command.figure in KNOWN_FIGURES:
        measured = (run.configuration for run in alike if run.configuration.case == asked.case)
        request = request.with_metrics(each.metric.name for each in measured if each.metric)
    return request


def validate_environment(
    path: Path,
    recorded: Results,
    environment: Environment,
    injections: tuple[str, ...],
    software: Environment | None = None,
) -> None:
    """Raise a UsageError if environment, injections or command software are not as `recorded`."""
    then = known = recorded.environment
    if _is_of_commands(recorded):
        if software is not None and software.packages and known.packages:
            known = software
        environment = environment.with_software_of(known)
    changes = (
        *environment_diff.field_differences(then, environment, environment_diff.IN_SESSION),
        *environment_diff.variable_changes([then], [environment]),
        *environment_diff.package_changes([then], [environment]),
    )
    others = (
        ("gpuscale", recorded.gpuscale_version, __version__),
        ("injections", ", ".join(recorded.injections) or "none", ", ".join(injections) or "none"),
    )
    _validate_same(path, changes, others)


def _validate_same(
    path: Path, changes: Iterable[EnvironmentChange], others: Iterable[_Change] = ()
) -> None:
    found = _changes(*others, *((each.name, each.before[0], each.after[0]) for each in changes))
    if found:
        named = environment_diff.listed(found, _MOST_NAMED, "; ")
        problem = f"{path} was measured in another environment ({named})"
        raise UsageError(f"--resume: {problem}; {_REMEDY}")


def _is_of_commands(results: Results) -> bool:
    """True if there are runs and all ran commands; the header then describes their interpreter."""
    return bool(results.runs) and all(run.configuration.command is not None for run in results.runs)


def validate_configurations(
    path: Path, runs: Sequence[Run], requests: Sequence[RunRequest]
) -> None:
    """Raise a UsageError if a case would be trained differently from its runs in the file."""
    for request, run in product(requests, runs):
        then, now = run.configuration, request.configuration
        if then.label != now.label:
            continue
        # A session may add further batch sizes to a file.
        found = _changes(*differences(replace(then, batch=now.batch), now))
        if run.gpus == request.gpus and then.batch == now.batch and run.batch_per_gpu:
            found += _changes(
                ("batch_per_gpu", run.batch_per_gpu, request.batch_per_gpu),
                ("sample_shape", run.sample_shape, request.sample_shape),
            )
        if found:
            raise UsageError(
                f"--resume: {path} has {run.label} measured in another way "
                f"({'; '.join(found)}); give the same options as then, or {_REMEDY}"
            )


def _changes(*values: _Change) -> list[str]:
    return [f"{name}: {then} → {now}" for name, then, now in values if then != now]

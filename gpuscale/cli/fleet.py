"""`gpuscale fleet`: measure each node of a cluster separately, and report the sick nodes."""

import argparse
import math
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.text import format_seconds, visible
from gpuscale.campaigns.cluster_profile import ClusterProfile, find_profile
from gpuscale.campaigns.fleet import Sweep, nodes_to_sweep
from gpuscale.campaigns.job_options import with_options
from gpuscale.campaigns.job_script import JobRequest, job_script
from gpuscale.campaigns.night.night_job import run_on_verdict
from gpuscale.cli.inputs import say
from gpuscale.cli.submit import add_job_options, is_confirmed, job_environment, job_s
from gpuscale.judge.fleet import judge
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.slurm import cluster_nodes, folded
from gpuscale.records.cause import NodeState
from gpuscale.records.record import to_json
from gpuscale.reports.campaign_text import FLEET_FORMATS, SweepView, evidence_of
from gpuscale.reports.phrases import devices_text
from gpuscale.store import campaign_folders
from gpuscale.store.campaign_folders import SWEEP_JSON, SWEEPS, SweepRecord, read_sweep
from gpuscale.store.files import file_errors, sole_use, write_report

RESULTS = "GPUSCALE_FLEET_RESULTS"
"""Environment variable with the path of the results file that a job of a sweep must write."""
_JOB_OPTIONS = ("--partition", "--account", "--time", "--modules", "--gpus-per-node", "--runs")
_SCRIPT = "visit.sbatch"
_FEWEST_RUNS = 3
_SHORTEST_LIMIT_S, _LIMIT_FACTOR = 600, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure every node of a cluster by itself, and name the sick ones."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    sweep = actions.add_parser("run", help="measure each node in a job of its own")
    sweep.description = "Measure each node in a job of its own, idle ones first, slow ones again."
    show = actions.add_parser("show", help="print which nodes are sick")
    text = "folder of a sweep (default: the newest in .gpuscale/fleet)"
    show.add_argument("folder", metavar="DIR", nargs="?", type=Path, help=text)
    text = "text (default), json, csv, or openmetrics for node_exporter"
    show.add_argument("--format", choices=tuple(FLEET_FORMATS), default="text", help=text)
    parser.epilog = sweep.epilog = show.epilog = (
        "Exit codes: 0 no node is sick, 1 some are, 2 it could not be run, 3 some are unclear, "
        "4 nothing could be judged, 5 not all nodes were measured."
    )
    add = sweep.add_argument
    text = "cluster profile, as for submit"
    add("profile", metavar="PROFILE", nargs="?", help=text)
    text = "nodes such as nid[0001-0064] (default: all)"
    add("--nodes", metavar="LIST", default="all", help=text)
    text = "file of a case, or gpt for bench_cases/test_gpt.py (default: the profile's case)"
    add("--case", metavar="CASE", help=text)
    text = "maximum number of jobs in the queue at once (default: 20)"
    add("--jobs", metavar="K", type=int, default=20, help=text)
    add("--nice", metavar="N", type=int, default=0, help="lower the priority of the jobs by N")
    text = "runs of a node on one GPU, and as many on all (default: one on each GPU, at least 3)"
    add_job_options(sweep, _JOB_OPTIONS, runs=text)
    text = "continue the sweep in DIR (default: the newest) with the nodes that it lacks"
    add("--resume", metavar="DIR", nargs="?", type=Path, const=Path(), help=text)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "show":
        view = view_of_sweep(arguments.folder or _newest())
        say(FLEET_FORMATS[arguments.format](view))
        return view.exit_code_and_word[0]
    if arguments.jobs < 1:
        raise UsageError(f"--jobs: expected 1 or more, not {arguments.jobs}")
    if arguments.resume is not None:
        _validate_resumed(arguments)
        folder = _newest() if arguments.resume == Path() else arguments.resume
        record = read_sweep(folder)
        nodes = cluster_nodes(record.partition)
        if nodes is not None and not {*record.nodes}.intersection(node.name for node in nodes):
            problem = f"{folder}: Slurm knows none of these nodes of {record.cluster}"
            raise UsageError(f"{problem}; continue it there, or name a sweep of this machine")
        return _sweep(folder, record, arguments)
    request = _request(arguments)
    script = job_script(request)
    if arguments.print:
        say(script.rstrip())
        return ExitCode.OK
    record = _plan(request, arguments)
    if not is_confirmed(_announcement(request, record, arguments.jobs), arguments.yes):
        return ExitCode.USAGE
    folder = SWEEPS / f"{record.cluster}-{datetime.now():%Y-%m-%dT%H%M%S}"
    with file_errors(folder):
        (folder / "logs").mkdir(parents=True)
    write_report(folder / _SCRIPT, script)
    write_report(folder / SWEEP_JSON, f"{to_json(record)}\n")
    return _sweep(folder, record, arguments)


def _validate_resumed(arguments: argparse.Namespace) -> None:
    given = {**vars(arguments), "PROFILE": arguments.profile, "--case": arguments.case}
    given |= {"--nodes": arguments.nodes != "all", "--nice": arguments.nice}
    names = ("PROFILE", "--nodes", "--case", "--nice", *_JOB_OPTIONS)
    if unread := [name for name in names if given[name]]:
        problem = "continues a sweep as it was begun"
        raise UsageError(f"--resume {problem}; leave out {', '.join(unread)}")


def _newest() -> Path:
    found = sorted(SWEEPS.glob(f"*/{SWEEP_JSON}"), key=lambda path: path.parent.name[-17:])
    if not found:
        raise UsageError(f"there is no sweep in {SWEEPS}; begin one with 'gpuscale fleet run'")
    return found[-1].parent


def _request(arguments: argparse.Namespace) -> JobRequest:
    profile = find_profile(arguments.profile)
    if profile.scheduler != "slurm":
        title = SCHEDULERS[profile.scheduler].title
        remedy = "use 'gpuscale doctor --nodes' inside a job"
        raise UsageError(f"a sweep needs Slurm, and {profile.name} has {title}; {remedy}")
    given = {**vars(arguments), "--cases": [_case(profile, arguments.case)]}
    profile = with_options(profile, given)
    gpus = tuple(sorted({1, profile.node.gpus or 1}))
    # Each run on one GPU takes the next GPU, so that all are measured equally often.
    runs = given["--runs"] or gpus[-1] * math.ceil(_FEWEST_RUNS / gpus[-1])
    measure = replace(profile.measure, runs=runs, gpus=gpus)
    expected_s = job_s(measure, len(gpus) * runs)
    minutes = math.ceil(max(_SHORTEST_LIMIT_S, _LIMIT_FACTOR * expected_s) / 60)
    limit = given["--time"] or f"{minutes // 60:02}:{minutes % 60:02}:00"
    job = replace(profile.job, time_limit=limit, options=(*profile.job.options, "--exclusive"))
    profile = replace(profile, measure=measure, job=job, node=replace(profile.node, whole=True))
    return JobRequest(profile=profile, results=f'"${{{RESULTS}:?set by gpuscale fleet run}}"')


def _case(profile: ClusterProfile, named: str | None) -> str:
    case = named or " ".join(profile.measure.cases)
    case = f"bench_cases/test_{case}.py" if case.isidentifier() else case
    if not Path(case.partition("::")[0]).is_file():
        remedy = "name one file of this folder, such as --case bench_cases/test_gpt.py"
        raise UsageError(f"--case: there is no file {case}; {remedy}")
    return case


def _plan(request: JobRequest, arguments: argparse.Namespace) -> SweepRecord:
    profile = request.profile
    partition, nodes = nodes_to_sweep(profile.job.partition, arguments.nodes)
    return SweepRecord(
        cluster=profile.name,
        partition=partition,
        nodes=nodes,
        case=profile.measure.cases[0],
        gpus=profile.measure.gpus,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        on_verdict=profile.judge.on_verdict,
    )


def _announcement(request: JobRequest, record: SweepRecord, jobs: int) -> str:
    nodes, measure = len(record.nodes), request.profile.measure
    seconds = job_s(measure, len(measure.gpus) * measure.runs)
    hours = seconds / 3600
    return (
        f"{request.profile.description}: {nodes} nodes of {record.partition}, each with "
        f"{record.case} on {devices_text(measure.device, *record.gpus)}, {measure.runs} "
        f"fresh starts each\n"
        f"estimate: {format_seconds(seconds)} a node, {nodes * record.gpus[-1] * hours:.3g} "
        f"GPU-hours in all (start-up is guessed), {math.ceil(nodes / jobs) * hours:.2g} h if "
        f"{jobs} nodes are always idle; slow nodes are measured again"
    )


def _sweep(folder: Path, record: SweepRecord, arguments: argparse.Namespace) -> int:
    place, environment = folder.absolute(), job_environment(None)

    def submit(job: campaign_folders.SweepJob, name: str) -> str:
        log = place / "logs" / f"{job.node}-{job.number}.log"
        options = [f"--nodelist={job.node}", f"--job-name={name}", f"--output={log}"]
        options += [f"--nice={arguments.nice}"] if arguments.nice else []
        variables = {**environment, RESULTS: str(place / job.results_name)}
        return SCHEDULERS["slurm"].submit(folder / _SCRIPT, variables, options)

    try:
        with sole_use(folder, "another process runs this sweep; wait for it"):
            Sweep(folder, record, submit, say, arguments.jobs).run()
    except KeyboardInterrupt:
        say(f"\nqueued jobs go on; 'gpuscale fleet run --resume {folder}' measures the rest")
        raise
    view, document = view_of_sweep(folder), folder / "verdict.json"
    (code, word), command = view.exit_code_and_word, record.on_verdict
    write_report(document, f"{FLEET_FORMATS['json'](view)}\n")
    say(f"\n{FLEET_FORMATS['text'](view)}")
    meaning = f"{word}: {view.summary}"
    if command and (problem := run_on_verdict(command, document, code=code, meaning=meaning)):
        say(f"on_verdict: the command {problem}: {visible(command)}")
    return code


def view_of_sweep(folder: Path) -> SweepView:
    """Judge the nodes of the sweep in a folder, also against earlier sweeps with the same plan."""
    record = read_sweep(folder)
    read = [*campaign_folders.results_of_sweep(folder, record)]
    visits = [campaign_folders.visit_of(job, results, record.partition) for job, results in read]
    nodes = judge(visits, campaign_folders.past_visits(folder, record), record.not_measured())
    errors_s = {job.node: job.clock_error_s(results) for job, results in read}
    return SweepView(
        record=record,
        nodes=nodes,
        evidence=evidence_of(nodes, [(job.node, results) for job, results in read]),
        exclude=folded(node.node for node in nodes if node.state is NodeState.SICK),
        clock_errors_s={node: error_s for node, error_s in errors_s.items() if error_s},
    )

"""A Grid Engine on this machine: a master on the login host, and nodes like ARC4's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hosts import Cluster, cluster_of, ended

NODE = "d13gpu1"
_PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qstat", "qconf", "qacct", "qdel", "qrsh")
_PACKAGES = "gridengine-master gridengine-exec gridengine-client"
# Where Debian has what belongs to no cluster yet.
_INSTALLED = Path("/var/lib/gridengine")
_DEFAULTS = Path("/usr/share/gridengine")
_TOOLS = Path("/usr/lib/gridengine")

_VARIABLES = {
    "SGE_ROOT": "{directory}/root",
    "SGE_CELL": "default",
    "SGE_QMASTER_PORT": "6444",
    "SGE_EXECD_PORT": "6445",
    "SGE_ND": "1",  # daemons stay in the foreground
}
_BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {common};{spool}
binary_path /usr/sbin
qmaster_spool_dir {spool}
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
_CONFIGURATION = {
    "execd_spool_dir": "{directory}/execd",
    # Jobs of root, of which the master hears at once.
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false "
    "sharelog=00:00:00",
}
_SCHEDULING = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    # However busy this machine is, its node takes jobs.
    "job_load_adjustments": "NONE",
    "load_adjustment_decay_time": "0:0:0",
}
_QUEUE = {"qname": "all.q", "load_thresholds": "NONE", "slots": "4"}
# Two slots on each node, whose daemon lets Open MPI start its own there.
PARALLEL_ENVIRONMENT = "two_on_each"
_PARALLEL_ENVIRONMENT = f"""\
pe_name {PARALLEL_ENVIRONMENT}
slots 8
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 2
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
# Name, shortcut, type, relation, requestable, consumable, default, urgency.
_GPUS = "coproc_v100 coproc_v100 INT <= YES YES 0 0"


@contextmanager
def sge_cluster(names: Sequence[str] = (NODE,)) -> Iterator[Cluster]:
    """A running Grid Engine, whose daemons and jobs end with the block."""
    places = cluster_of(names, programs=_PROGRAMS, packages=_PACKAGES, variables=_VARIABLES)
    with places as (cluster, stack):
        _write_spool(cluster)
        cluster.daemon(stack, cluster.login, "sge_qmaster")
        cluster.wait_until_ready(lambda: cluster.run("qconf", "-sconf").returncode == 0)
        _done(cluster, "qconf", "-as", "login")
        for node in cluster.nodes:
            _done(cluster, "qconf", "-ah", node.name)
            cluster.daemon(stack, node, "sge_execd")
        for name in names:
            cluster.wait_until_ready(partial(_is_known, cluster, name))
        _configure(cluster, names)
        # Until it has reported its load no job is put on it.
        cluster.wait_until_ready(lambda: "-NA-" not in _done(cluster, "qstat", "-f"))
        yield cluster


def _write_spool(cluster: Cluster) -> None:
    directory = cluster.directory
    root, spool = directory / "root", directory / "spool"
    common = root / "default" / "common"
    for folder in (common, spool, directory / "execd"):
        folder.mkdir(parents=True)
    for name in ("bin", "lib", "util", "utilbin"):
        (root / name).symlink_to(_INSTALLED / name)
    (common / "act_qmaster").write_text("login\n")
    (common / "bootstrap").write_text(_BOOTSTRAP.format(common=common, spool=spool))
    changes = {name: text.format(directory=directory) for name, text in _CONFIGURATION.items()}
    default = (_DEFAULTS / "default-configuration").read_text()
    configuration = _file(cluster, _changed(default, changes))
    resources = _DEFAULTS / "util" / "resources"
    _done(cluster, f"{_TOOLS}/spoolinit", "classic", "libspoolc", f"{common};{spool}", "init")
    files = {"configuration": configuration, "complexes": f"{resources}/centry"}
    for kind, value in {**files, "usersets": f"{resources}/usersets", "managers": "root"}.items():
        _done(cluster, f"{_TOOLS}/spooldefaults", kind, value)


def _is_known(cluster: Cluster, name: str) -> bool:
    return cluster.run("qconf", "-se", name).returncode == 0


def _configure(cluster: Cluster, names: Sequence[str]) -> None:
    """Configure a scheduler without delays, a resource for GPUs, and a queue that offers it."""
    scheduling = _changed(_done(cluster, "qconf", "-ssconf"), _SCHEDULING)
    _done(cluster, "qconf", "-Msconf", _file(cluster, scheduling))
    complexes = f"{_done(cluster, 'qconf', '-sc')}{_GPUS}\n"
    _done(cluster, "qconf", "-Mc", _file(cluster, complexes))
    for name in names:
        _done(cluster, "qconf", "-mattr", "exechost", "complex_values", "coproc_v100=4", name)
    _done(cluster, "qconf", "-Ap", _file(cluster, _PARALLEL_ENVIRONMENT))
    places = {"hostlist": " ".join(names), "pe_list": PARALLEL_ENVIRONMENT}
    queue = _changed(_done(cluster, "qconf", "-sq"), {**_QUEUE, **places})
    _done(cluster, "qconf", "-Aq", _file(cluster, queue))


def _changed(settings: str, changes: Mapping[str, str]) -> str:
    """Return settings, one a line, with some values changed."""
    lines = []
    for line in settings.splitlines():
        name, _, _ = line.partition(" ")
        lines.append(f"{name} {changes[name]}" if name in changes else line)
    return "\n".join(lines) + "\n"


def _file(cluster: Cluster, text: str) -> str:
    path = cluster.directory / "settings"
    path.write_text(text)
    return str(path)


def _done(cluster: Cluster, *command: str) -> str:
    answer = ended(cluster.run(*command))
    return answer.stdout

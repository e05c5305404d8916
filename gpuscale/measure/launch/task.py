"""`python -m gpuscale.measure.launch.task`: what a scheduler starts on a node, once for each rank.

The process forks: its child is the rank, and it watches beside it. It tells the rank its place
among the others, takes down how the rank ended, samples the node's GPUs if it is the node's first,
and ends with whoever started it.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from gpuscale.measure.launch import do_in_rank, process_starter
from gpuscale.measure.launch.placement import gloo_variables
from gpuscale.measure.run_directory import RunDirectory, Sampler, write_atomically
from gpuscale.records.request import RankExit

_LOOK_S = 0.5
_LOOK_AT_FOLDER_S = 2.0
_END_S = 8.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(launcher: str, job: str, folder: str, detail: str) -> int:
    """Be a task of a run in `folder` (`rank`), or look at its node (`describe`, `probe`).

    `detail` is the device to describe: `cuda`, `cpu` or `auto`.
    """
    starter = process_starter(launcher)
    directory = RunDirectory(path=Path(folder))
    # Before any fork: a signal between it and the wait would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_FORWARDED})
    if job == "describe":
        if not directory.path.is_dir():
            sys.stderr.write(f"{socket.gethostname()}: there is no folder {folder} here\n")
            return 1
        name = starter.node_name(os.environ, directory.host_names())
        path = str(directory.environment(name).path)
        parent = os.getppid()
        code = _watch(_forked(lambda: do_in_rank("describe", path, detail)), parent, directory)
    else:
        os.environ.update(
            gloo_variables(os.environ, directory.host_names())
            | starter.rank_variables(os.environ, directory)
        )
        # What watches a command needs a while to end all that it started.
        grace_s = _END_S if job == "command" else 0.0
        code = _be_rank(directory, lambda: do_in_rank(job, folder), grace_s=grace_s)
    return code if code >= 0 else 128 - code


def _be_rank(directory: RunDirectory, work: Callable[[], None], *, grace_s: float) -> int:
    rank, host = int(os.environ["RANK"]), socket.gethostname()
    write_atomically(directory.host(rank), host)
    # Everything that is printed from here on goes to the rank's file.
    with directory.output(rank).open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    parent = os.getppid()
    child = _forked(work)
    sampled = directory.sampled.read_if_left() if os.environ["LOCAL_RANK"] == "0" else None
    sampler = None
    if sampled is not None and host in sampled.uuids:
        sampler = Sampler(uuids=sampled.uuids[host], output=directory.samples(host))
    code = _watch(child, parent, directory, grace_s=grace_s)
    if sampler is not None:
        sampler.stop()
    if directory.path.exists():
        directory.exit(rank).write(RankExit(rank=rank, host=host, code=code))
    return code


def _forked(work: Callable[[], None]) -> int:
    """The process id of a child that does the work and ends."""
    child = os.fork()
    if child:
        return child
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        # As what watches a command ends, which has told all there is.
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # What the parent opened is for it to close.
        os._exit(code)


def _watch(child: int, parent: int, directory: RunDirectory, *, grace_s: float = 0.0) -> int:
    """Wait for the rank, and end it when nobody waits for it any more; its exit code.

    That is so when whoever started this process has ended. It is asked for, since the kernel's
    signal at a parent's death comes at the end of the thread that forked, and a scheduler's daemon
    forks from threads. It is also so when the run's folder is gone: the launcher has ended, and
    the daemon that should have told this node has not. It may then take so many seconds to end
    by itself.
    """
    looked_at_folder, abandoned_s = time.monotonic(), None
    waited_for = {signal.SIGCHLD, *_FORWARDED}
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        caught = signal.sigtimedwait(waited_for, _LOOK_S)
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            os.kill(child, caught.si_signo)
        is_abandoned = os.getppid() != parent
        if time.monotonic() - looked_at_folder > _LOOK_AT_FOLDER_S:
            looked_at_folder = time.monotonic()
            is_abandoned = is_abandoned or not directory.path.exists()
        if is_abandoned:
            abandoned_s = abandoned_s or time.monotonic()
            is_late = time.monotonic() - abandoned_s >= grace_s
            os.kill(child, signal.SIGKILL if is_late else signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

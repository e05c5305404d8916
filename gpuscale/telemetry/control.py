"""Starting and stopping the sampling process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import gpuscale
from gpuscale.run_directory import stderr_path

_PATIENCE_S = 2.0


class Sampler:
    """A running sampling process; it also ends by itself when this process does."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, *, uuids: Sequence[str], output: Path, interval_s: float = 0.1) -> Self:
        """Starts to sample the devices into `output` and returns without waiting for it.

        Args:
            uuids: at least one, as CUDA or NVML names them.
            output: the samples file, which is overwritten; error messages go beside it.
            interval_s: seconds between samples.
        """
        if not uuids:
            raise ValueError("no devices to sample: give at least one UUID")
        command = [sys.executable, "-P", "-m", "gpuscale.telemetry.sampler"]
        command += ["--output", str(output), "--interval-s", str(interval_s)]
        command += ["--parent-pid", str(os.getpid())]
        command += [argument for uuid in uuids for argument in ("--uuid", uuid)]
        with stderr_path(output).open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_environment(),
            )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id of the sampling process."""
        return self._process.pid

    def stop(self) -> None:
        """Ends the sampling and waits for it, a few seconds at most; does nothing if it ended.

        Samples that were taken before the call are in the file after it.
        """
        for end in (self._process.terminate, self._process.kill):
            end()
            try:
                self._process.wait(_PATIENCE_S)
                return
            except subprocess.TimeoutExpired:
                continue


def _environment() -> dict[str, str]:
    """This process's environment, in which gpuscale can be imported even if not installed."""
    package_parent = str(Path(gpuscale.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    path = f"{inherited}{os.pathsep}{package_parent}" if inherited else package_parent
    return {**os.environ, "PYTHONPATH": path}

"""`gpuscale doctor --nodes`: which node or link of a job is slow."""

import argparse
import json
import sys
from pathlib import Path

import msgspec

from gpuscale.launch import launcher_across_nodes
from gpuscale.nodes import find_slow
from gpuscale.records import NodeProbeRequest
from gpuscale.report.nodes_text import nodes_text
from gpuscale.store import RESULTS_FOLDER

_ON_GPU = NodeProbeRequest(device="cuda", message_bytes=32 * 1024**2, repeats=10, timeout_s=300.0)
_ON_CPU = NodeProbeRequest(device="cpu", message_bytes=1024**2, repeats=5, timeout_s=300.0)


def run_doctor_nodes(arguments: argparse.Namespace) -> int:
    """Look at the nodes and print what was seen; 1 where something is slow."""
    launcher = launcher_across_nodes(
        arguments.launcher, device=arguments.device, folder=Path.cwd() / RESULTS_FOLDER
    )
    request = _ON_GPU if launcher.environment.device == "cuda" else _ON_CPU
    probes = launcher.probe(request)
    findings = find_slow(probes)
    if arguments.format == "json":
        document = {
            "format": "gpuscale-doctor-nodes",
            "version": 1,
            "message_bytes": request.message_bytes,
            "nodes": [msgspec.to_builtins(probe) for probe in probes],
            "findings": [msgspec.to_builtins(finding) for finding in findings],
        }
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    else:
        text = nodes_text(probes, findings, message_bytes=request.message_bytes)
    sys.stdout.write(f"{text}\n")
    return 1 if findings else 0

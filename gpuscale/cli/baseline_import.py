"""`gpuscale baseline import`: a table that people keep by hand becomes published figures."""

import argparse
import sys
from pathlib import Path

from gpuscale.cli.baseline_record import refuse_existing
from gpuscale.errors import ExitCode
from gpuscale.recording import TableDefaults, figures_from_table
from gpuscale.recording.hand_kept_table import tables_in
from gpuscale.records import Baseline, Hardware, Source
from gpuscale.store import read_with, write_baseline


def run_baseline_import(arguments: argparse.Namespace) -> int:
    """Write the baseline file and say what is in it."""
    output = Path(arguments.output)
    refuse_existing(output)
    hardware = Hardware(
        device=arguments.device,
        gpu_name=arguments.gpu_name,
        gpus_per_node=arguments.gpus_per_node,
        cpu_model=arguments.cpu_model,
    )
    defaults = TableDefaults(
        case=arguments.case,
        strategy=arguments.strategy,
        batch_per_gpu=arguments.batch_per_gpu,
        nodes=arguments.nodes,
        timed=arguments.timed,
        discard_first=arguments.discard_first,
    )
    read = read_with(
        Path(arguments.table),
        lambda text: figures_from_table(tables_in(text), defaults, hardware),
    )
    baseline = Baseline(
        name=output.stem if arguments.name is None else arguments.name,
        cluster=arguments.cluster,
        hardware=hardware,
        published=read.figures,
        source=Source(
            title=arguments.source,
            url=arguments.url,
            published=arguments.published,
            note=arguments.note,
        ),
    )
    write_baseline(output, baseline)
    count = len(read.figures)
    sys.stdout.write(f"{output}: {count} published figure{'' if count == 1 else 's'}\n")
    if read.left_out:
        names = ", ".join(f"'{header}'" for header in read.left_out)
        sys.stdout.write(f"note: left out, since it follows from the figures: {names}\n")
    return ExitCode.OK

"""Leaves some of a Cosmic Ray session's mutants, drawn from a seed, and none that was filtered.

    python tests/mutants/drawn.py session.sqlite 0.2 1

A filter only marks mutants as skipped, and cr-rate would count those as killed. Nor are those left
that only change how many results a cache keeps, or turn the `*` of a signature into `/`: that lets
keywords be given by position, which nobody does.
"""

import random
import sqlite3
import sys
from pathlib import Path

_TABLES = ("work_results", "mutation_specs", "work_items")


def main() -> None:
    """Change the session's file."""
    session, share, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    with sqlite3.connect(session) as database:
        skipped = {job for (job,) in database.execute("SELECT job_id FROM work_results")}
        jobs = sorted(job for (job,) in database.execute("SELECT job_id FROM work_items"))
        places = database.execute(
            "SELECT job_id, module_path, start_pos_row, start_pos_col FROM mutation_specs"
        )
        skipped |= {job for job, *place in places if _changes_nothing(*place)}
        made = [job for job in jobs if job not in skipped]
        kept = {*random.Random(seed).sample(made, round(share * len(made)))}
        dropped = [(job,) for job in jobs if job not in kept]
        for table in _TABLES:
            database.executemany(f"DELETE FROM {table} WHERE job_id = ?", dropped)
    sys.stdout.write(f"{len(kept)} of {len(made)} mutants\n")


def _changes_nothing(module: str, row: int, column: int) -> bool:
    line = Path(module).read_text(encoding="utf-8").splitlines()[row - 1]
    return line.startswith("*,", column) or line.lstrip().startswith("@lru_cache")


if __name__ == "__main__":
    main()

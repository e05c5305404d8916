"""Records to text and back: the results format and the baseline format, both versioned.

Everything here works on text and raises `DecodeError`; files are the business of `store`.
`docs/format.md` describes both formats for people and for scripts that write them.
"""

from gpuscale.formats.baseline import decode_baseline, encode_baseline
from gpuscale.formats.envelope import BASELINE_FORMAT, RESULTS_FORMAT, format_of
from gpuscale.formats.results import decode_results, encode_header, encode_run

__all__ = [
    "BASELINE_FORMAT",
    "RESULTS_FORMAT",
    "decode_baseline",
    "decode_results",
    "encode_baseline",
    "encode_header",
    "encode_run",
    "format_of",
]

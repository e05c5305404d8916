"""The line that `gpuscale.report` prints, or any script in any language."""

import msgspec

from gpuscale.log_formats.log_format import LogFormat, Mark
from gpuscale.step_report import PREFIX


class Line(msgspec.Struct, frozen=True):
    """What follows `GPUSCALE` in a line."""

    step: int
    samples: int | None = None
    """Of one step, over all ranks."""
    epoch: int | None = None
    loss: float | str | None = None
    """As a text where it is no number of JSON: `"nan"`, `"inf"`."""


decoder = msgspec.json.Decoder(Line)


def read(line: str) -> Mark | None:
    """What a line of the protocol tells."""
    start = line.find(PREFIX + "{")
    if start < 0:
        return None
    try:
        told = decoder.decode(line[start + len(PREFIX) :])
        loss = None if told.loss is None else float(told.loss)
    except (msgspec.DecodeError, ValueError):
        return None
    return Mark(step=told.step, epoch=told.epoch, samples_per_step=told.samples, loss=loss)


FORMATS = (
    LogFormat(
        name="gpuscale",
        project="`gpuscale.report`, or a line of your own",
        example='GPUSCALE {"step": 10, "samples": 640}',
        read=read,
    ),
)

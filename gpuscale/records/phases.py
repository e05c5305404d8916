"""Where the time of training steps goes."""

from gpuscale.records.record import Duration, Record


class Phases(Record, frozen=True, kw_only=True):
    """Seconds by phase: of one rank's window, or of its step, as the field that holds it says.

    They follow each other without a gap, so together they are the time itself. On CUDA a phase
    is the time between events on the stream: what the device waited for the host is in the
    phase that made it wait. `backward_s` contains the exposed communication of synchronised
    steps, which no event can tell from it.
    """

    data_s: Duration
    """Waiting for the next batch."""
    h2d_s: Duration
    """Copying the batch to the device."""
    forward_s: Duration
    """The model's output and the loss."""
    backward_s: Duration
    optimizer_s: Duration
    """Clearing gradients, the optimiser's step, and the loss scaler's."""

    @property
    def total_s(self) -> float:
        """All phases together."""
        return self.data_s + self.h2d_s + self.forward_s + self.backward_s + self.optimizer_s

    def scaled(self, factor: float) -> "Phases":
        """All phases times a factor: a window's become a step's."""
        return Phases(
            data_s=self.data_s * factor,
            h2d_s=self.h2d_s * factor,
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            optimizer_s=self.optimizer_s * factor,
        )

"""How far back the rules look and how long a condition has to hold: one object, so that a test can run it fast."""

from dataclasses import dataclass

from sidecar.settings.field_types import render_duration


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds, but for ``past_samples``; ``pace`` multiplies every ``for`` and ``keep_firing_for``.

    The past of a series is its last ``past`` seconds less the newest ``past_offset``, so that a fall under way is not
    part of what it is compared with; with fewer than ``past_samples`` evaluations in it there is none.
    """

    rate: float = 300
    brief: float = 180  # a window that one event soon leaves; it holds scrapes a minute apart, one of them missed
    past: float = 86400
    past_offset: float = 3600
    past_samples: int = 60
    interval: float = 30
    past_interval: float = 120  # of the group that looks back a day; well under Prometheus' lookback of 5 minutes
    pace: float = 1

    @property
    def window(self) -> str:
        """The rate window as PromQL and rule names have it."""
        return render_duration(self.rate)

    @property
    def brief_window(self) -> str:
        """The shortest window, as PromQL has it."""
        return render_duration(self.brief)

    @property
    def long(self) -> str:
        """The length of the past, as PromQL and rule names have it."""
        return render_duration(self.past)

    def held(self, seconds: float) -> str:
        """A ``for``, at this pace; PromQL has no fractions of a unit."""
        milliseconds = round(seconds * self.pace * 1000)
        return f"{milliseconds}ms" if milliseconds % 1000 else render_duration(milliseconds / 1000)

    def over_past(self, series: str) -> str:
        """The past of a recorded series."""
        return f"{series}[{self.long}] offset {render_duration(self.past_offset)}"


SHIPPED = Timing()

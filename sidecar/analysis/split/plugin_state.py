"""The plug-in as a whole: its state in each engine, and what it has sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class PluginState(StrEnum):
    """The state of the plug-in in vLLM."""

    NOT_CONNECTED = "not_connected"
    IDLE = "idle"  # connected; vLLM has not drafted yet
    OBSERVING = "observing"
    CHECKING = "checking"  # the scheduler's class overrides what it wraps; the first step with drafts will tell
    REFUSED = "refused"  # it found something that it does not know, so it wraps nothing
    DISABLED = "disabled"  # it failed, and disabled itself
    OTHER_FORMAT = "other_format"  # its messages have another version


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEngineReport:
    """One engine that is connected. ``reason`` is empty while it observes."""

    model_name: str
    engine: str
    version: str
    vllm_version: str
    state: PluginState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """The plug-in in all engines: ``observed`` of the ``expected`` engines on the page are observed.

    ``state`` is the worst of the engines'; ``text`` explains it, and says what to do, if anything.
    """

    state: PluginState
    text: str
    problem: str  # why the sidecar cannot listen for it; empty if it can
    observed: int
    expected: int
    heard: bool  # whether any plug-in has connected since this sidecar started
    engines: tuple[PluginEngineReport, ...]
    events: int  # finished requests received
    dropped: Mapping[str, int]  # what was lost or refused, by reason, each starting at 0

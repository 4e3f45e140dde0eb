"""The plug-in as a whole: its state in each engine, and what it has sent.

Also why a model may have no split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.engine.engine_key import EngineKey


class PluginState(StrEnum):
    """The state of the plug-in in vLLM; what most needs attention comes first."""

    OTHER_FORMAT = "other_format"  # its messages are in another version of the format
    DISABLED = "disabled"  # it failed and disabled itself
    REFUSED = "refused"  # connected, but it does not know this vLLM's scheduler
    # several plug-ins are connected as the same engine of this vLLM, as far as anything tells
    SEVERAL_SENDERS = "several_senders"
    OBSERVING = "observing"
    IDLE = "idle"  # connected, but vLLM has not drafted for any request yet
    ELSEWHERE = "elsewhere"  # connected, but as another server, or engines not on vLLM's page
    NOT_CONNECTED = "not_connected"


# somebody must do something
BAD: Final = (PluginState.OTHER_FORMAT, PluginState.DISABLED, PluginState.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEngineReport:
    """One engine that is connected. ``reason`` is empty while it observes.

    ``speculates``: vLLM is configured to speculate, as the plug-in says.
    """

    model_name: str
    engine: str
    version: str
    vllm_version: str
    state: PluginState
    reason: str
    speculates: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """The plug-in in all engines.

    ``observed`` of the ``expected`` engines on the page are observed. ``state`` is the worst of the
    engines'. ``unreadable_format`` is a message format that a plug-in uses and the sidecar cannot
    read. ``problem`` says why the sidecar cannot listen for plug-ins; it is empty if it can.
    ``shared`` are the engines that several plug-ins are connected as, and ``elsewhere`` counts the
    plug-ins that are connected as another server, or as engines not on the page. ``replicas`` are
    engines on the page that one of these could be: they have the same number, which is all that a
    plug-in says. ``renamed`` are models as such a plug-in and as the page calls them, where the
    page has an engine of the plug-in's number alone under the other name.
    """

    state: PluginState
    unreadable_format: int | None
    problem: str
    observed: int
    expected: int
    heard: bool  # whether any plug-in has connected since this sidecar started
    engines: tuple[PluginEngineReport, ...]
    events: int  # finished requests received
    dropped: Mapping[str, int]  # what was lost or refused, by reason, each starting at 0
    shared: tuple[EngineKey, ...] = ()
    elsewhere: int = 0
    replicas: tuple[EngineKey, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    # whether vLLM has served requests for a while, and no plug-in has ever connected
    has_served: bool = False
    is_loaded: bool = False  # vLLM's page has the id that the plug-in puts there


def plugin_state(
    engines: Sequence[PluginEngineReport], unreadable: int | None, *, elsewhere: int
) -> PluginState:
    """The state as a whole.

    What a sender in another format, or of another vLLM, does changes nothing where a plug-in can be
    read.
    """
    if engines:
        return min((engine.state for engine in engines), key=list(PluginState).index)
    if unreadable is not None:
        return PluginState.OTHER_FORMAT
    return PluginState.ELSEWHERE if elsewhere else PluginState.NOT_CONNECTED


class NoSplitReason(StrEnum):
    """Why a model has no split by temperature."""

    # no plug-in reports the model; ``PluginReport.state`` says more
    NOT_CONNECTED = "not_connected"
    NOT_REPORTED = "not_reported"
    FIRST_REPORT = "first_report"
    NOT_COMPARED = "not_compared"
    REFUSED = "refused"
    DISABLED = "disabled"
    RESTARTED_WITHOUT = "restarted_without"
    SEVERAL_SENDERS = "several_senders"
    CONTRADICTS_ITSELF = "contradicts_itself"
    COUNTS_OTHERWISE = "counts_otherwise"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class NoSplit:
    """Why a model has no split by temperature, and because of which engine.

    ``reason`` is the plug-in's own if it refused or disabled itself; ``ratio`` is how much it has
    counted lately ÷ vLLM's number, if both differ, and ``own`` are then the methods that the
    engine's scheduler has in place of vLLM's.
    """

    code: NoSplitReason
    engine: str = ""
    reason: str = ""
    vllm_version: str = ""
    ratio: float | None = None
    own: tuple[str, ...] = ()

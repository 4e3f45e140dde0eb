"""What the plug-in's state means, in words, and what to do about it, if anything."""

from collections.abc import Collection, Sequence
from typing import Final

from sidecar.analysis.split.plugin_state import PluginReport, PluginState
from sidecar.requests.messages import VERSION

_WORST_FIRST: Final = (
    PluginState.DISABLED,
    PluginState.REFUSED,
    PluginState.CHECKING,
    PluginState.OBSERVING,
    PluginState.IDLE,
)
REFUSED: Final = "The plug-in does not observe engine {engine} of vLLM {vllm}: {reason}."
CHECKING: Final = (
    "The split by temperature begins once a step with drafts has shown that engine {engine}'s scheduler calls vLLM's "
    "own methods: {reason}."
)
DISABLED: Final = (
    "The plug-in failed on engine {engine} and disabled itself, so its model has no split by temperature: {reason}. "
    "vLLM is not affected; it loads the plug-in again when it restarts."
)
RESTARTED_WITHOUT: Final = (
    "vLLM has restarted, and since then no plug-in observes engine {engine}, so its model has no split by "
    "temperature. To find out why, run `python -m specdec_doctor` in vLLM's container."
)
CONTRADICTS_ITSELF: Final = (
    "There is no split by temperature: the plug-in of engine {engine} contradicts itself, which a restart of vLLM "
    "ends. Check what else writes to the sidecar's socket."
)
SEVERAL_CLAIM: Final = (
    "There is no split by temperature: several plug-ins claim to be engine {engine} with vLLM's own numbers. Only "
    "one vLLM, with one plug-in per engine, may use this sidecar's socket. Remove the others, then restart the "
    "sidecar."
)
NOT_COMPARED: Final = (
    "The split by temperature begins once vLLM's counters confirm what the plug-in reports of engine {engine}."
)
NOT_REPORTED: Final = (
    "The split by temperature begins once the plug-in of engine {engine} has connected, which it does with the "
    "engine's next request."
)
_HOW: Final = "`specdec-sidecar plugin DIR` writes it, and `PYTHONPATH=DIR vllm serve MODEL` loads it."
UNOBSERVED: Final = {PluginState.REFUSED: REFUSED, PluginState.CHECKING: CHECKING, PluginState.DISABLED: DISABLED}


def worst(states: Collection[PluginState], *, has_unreadable: bool) -> PluginState:
    """The state of all engines together: the one that most needs attention."""
    if has_unreadable:
        return PluginState.OTHER_FORMAT
    return next((state for state in _WORST_FIRST if state in states), PluginState.NOT_CONNECTED)


def sentence(report: PluginReport, unreadable: Sequence[int], problem: str) -> str:
    """What ``report`` means; ``unreadable`` are the plug-ins' message formats that the sidecar cannot read.

    ``problem`` says why the socket cannot be opened, empty if it is open.
    """
    state, observed, expected = report.state, report.observed, report.expected
    match state:
        case PluginState.OTHER_FORMAT:
            text = _other_format(unreadable[0])
        case PluginState.NOT_CONNECTED:
            text = _not_connected(heard=report.heard, problem=problem)
        case PluginState.REFUSED | PluginState.DISABLED | PluginState.CHECKING:
            failed = next(one for one in report.engines if one.state is state)
            text = UNOBSERVED[state].format(engine=failed.engine, vllm=failed.vllm_version, reason=failed.reason)
        case _ if not observed and expected:
            text = "The plug-in's engines are not in vLLM's metrics; each vLLM needs its own sidecar."
        case PluginState.IDLE:
            text = "The plug-in is connected; vLLM has not drafted for any request yet."
        case _ if observed < expected:
            text = f"The plug-in observes {observed} of {expected} engines: the split by temperature covers only these."
        case _:
            text = "The plug-in observes every engine." if expected > 1 else "The plug-in observes the engine."
    return text


def counts_otherwise(engine: str, ratio: float | None) -> str:
    """Explains that vLLM's counters contradict the plug-in; ``ratio`` is its number / vLLM's, if known."""
    is_near = ratio is None or abs(ratio - 1) < 0.005  # then it has been silent
    share = "other numbers than vLLM" if is_near else f"{ratio:.1%} of what vLLM counted"
    return (
        f"There is no split by temperature: on engine {engine} the plug-in counted {share} (drafts, draft tokens or "
        "accepted tokens). "
        "To find out why, run `python -m specdec_doctor` in vLLM's container."
    )


def _other_format(version: int) -> str:
    return (
        f"The plug-in uses message format {version}, but this sidecar reads format {VERSION}. Rewrite the plug-in with "
        "this sidecar (`specdec-sidecar plugin DIR`) and restart vLLM."
    )


def _not_connected(*, heard: bool, problem: str) -> str:
    if problem:
        return (
            f"The sidecar cannot listen for the plug-in ({problem}), so there is no split by temperature. Set "
            "plugin.socket (SPECDEC_PLUGIN__SOCKET) to a path that the sidecar can write and no other sidecar uses."
        )
    if heard:
        return (
            "The plug-in is no longer connected: vLLM has stopped or restarted without it, or it cannot reach the "
            "sidecar's socket."
        )
    return (
        "No plug-in has connected yet, so there is no split by temperature. If vLLM has loaded the plug-in, it will "
        "connect with the next request. If it refused this vLLM or failed, vLLM's log has a line with `specdec`. If "
        f"vLLM has not loaded it: {_HOW}"
    )

"""What is wrong with an engine, in words."""

from sidecar.analysis.engine.health import HealthReport
from sidecar.wording.numbers import counted, utc


def health_line(health: HealthReport) -> str:
    """The answer to a probe of vLLM's container: one line, which names no model.

    Only a line that begins with "unhealthy" asks for a restart; deploy/engine-probe/ looks for it.
    """
    if not health.ailing:
        return "healthy\n"

    ailments = ", ".join(
        f"engine {one.key.engine} has been {one.ailment} since {utc(one.since)}"
        for one in health.ailing
    )
    if health.is_left_alone:
        return (
            f"left alone: {ailments}, but {health.restarts} restarts within the hour have not"
            " helped\n"
        )
    return f"unhealthy: {ailments}\n"


def stalled_sentence(health: HealthReport) -> str:
    """Which engine hangs, since when, and what to do; some engine is stalled."""
    first = min(health.stalled, key=lambda one: one.since)
    others = len(health.stalled) - 1
    more = f" and {counted(others, 'other engine')}" if others else ""
    work = "The sidecar's probe waits for an answer" if first.is_probed else "Requests run"
    return (
        f"Restart vLLM: an engine that hangs answers no request any more. {work} on engine"
        f" {first.key.engine}{more}, but nothing that vLLM or the plug-in counts has changed since"
        f" {utc(first.since)}, and vLLM is not paused. docs/restarts.md says how the kubelet can"
        " restart it by itself."
    )

"""What is said of an engine that hangs."""

from sidecar.analysis.engine.health import Ailing, Ailment, HealthReport
from sidecar.engine.layout import EngineKey
from sidecar.wording.health import stalled_sentence


def test_a_stall_names_its_engine_and_time_and_where_the_kubelet_is_told_to_restart():
    ailing = (
        Ailing(EngineKey("demo", "1"), Ailment.STALLED, 1_800_000_060.0),
        Ailing(EngineKey("demo", "0"), Ailment.STALLED, 1_800_000_000.0),
    )
    said = stalled_sentence(HealthReport(ailing=ailing))

    assert said.startswith("Restart vLLM:")
    assert "Requests run on engine 0 and 1 other engine, but" in said
    assert "since 08:00:00 UTC" in said
    assert said.endswith("docs/restarts.md says how the kubelet can restart it by itself.")


def test_where_nothing_runs_it_is_the_sidecars_own_request_that_waits():
    """Someone who looks sees no request running."""
    one = Ailing(EngineKey("demo", "0"), Ailment.STALLED, 1_800_000_000.0, is_probed=True)
    said = stalled_sentence(HealthReport(ailing=(one,)))

    assert "The sidecar's probe waits for an answer on engine 0, but nothing" in said

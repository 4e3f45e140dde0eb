"""Recorded streams of ``/v1/responses`` and ``/v1/messages``, of which a real vLLM reports no acceptance: inferred."""

from collections import Counter as Tally
from pathlib import Path

import pytest

from sidecar.engine.names import Counter
from sidecar.recording.recording import read_scrapes
from sidecar.recording.replay import replay

FOLDER = Path(__file__).parents[2] / "data" / "endpoints"
TRUTH = {"0": 0.912, "0.3-0.5": 0.580, "0.7-1": 0.406}  # the same requests as chat completions


def inferred(endpoint):
    """Draft tokens and accepted ones by temperature, and the replay's result."""
    result = replay(FOLDER / endpoint, infer=True)
    drafted, accepted = Tally(), Tally()
    for request in result.requests:
        drafted[request.temperature] += request.draft_tokens or 0
        accepted[request.temperature] += request.accepted_tokens or 0
    return drafted, accepted, result


def test_responses_are_clocked_from_admission():
    drafted, accepted, result = inferred("responses")
    assert {label: accepted[label] / drafted[label] for label in drafted} == pytest.approx(TRUTH, abs=0.02)
    assert result.residual < 0.05
    assert result.coverage > 0.8


def test_messages_are_clocked_from_their_message_start():
    drafted, accepted, result = inferred("messages")
    scrapes = list(read_scrapes(FOLDER / "messages"))
    first, last = (scrapes[at].snapshot.engines[0].counters for at in (0, -1))
    truth = (last[Counter.ACCEPTED_TOKENS] - first[Counter.ACCEPTED_TOKENS]) / (
        last[Counter.DRAFT_TOKENS] - first[Counter.DRAFT_TOKENS]
    )
    assert accepted.total() / drafted.total() == pytest.approx(truth, abs=0.03)
    assert result.residual < 0.05
    assert result.coverage > 0.9

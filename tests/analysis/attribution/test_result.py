import pytest

from sidecar.analysis.attribution.result import Attribution, AttributionOutcome, attributed, attribution_outcome
from sidecar.requests.record import Outcome, RequestRecord

STREAM = {"stream": True, "first_token": 0.5, "completion_tokens": None}


def request(attribution=Attribution.NONE, **changes):
    values = {
        "id": "a",
        "path": "/v1/completions",
        "model": "m",
        "temperature": 0.0,
        "choices": 1,
        "stream": False,
        "start": 0.0,
        "first_token": None,
        "end": 1.0,
        "outcome": Outcome.COMPLETED,
        "completion_tokens": 100,
    }
    return attributed(RequestRecord(**(values | changes)), "0", attribution)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (request(Attribution.EXACT), AttributionOutcome.EXACT),
        (request(Attribution.INFERRED), AttributionOutcome.INFERRED),
        (request(**STREAM), AttributionOutcome.WITHOUT_USAGE),
        (request(**STREAM | {"outcome": Outcome.ABORTED}), AttributionOutcome.UNFINISHED),
        (request(outcome=Outcome.ERROR), AttributionOutcome.UNFINISHED),
        (request(**STREAM | {"completion_tokens": 9}), AttributionOutcome.UNKNOWN),
        (request(**STREAM | {"stream": False}), AttributionOutcome.UNKNOWN),
        (
            request(**STREAM | {"first_token": None}),
            AttributionOutcome.UNKNOWN,
        ),  # it could not be read
    ],
)
def test_attribution_outcome(found, expected):
    assert attribution_outcome(found) is expected

import pytest

from sidecar.analysis.attribution.endings import Ending, SlidingEndings, ending
from sidecar.analysis.attribution.result import Attribution, attributed
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
        (request(Attribution.EXACT), Ending.EXACT),
        (request(Attribution.INFERRED), Ending.INFERRED),
        (request(**STREAM), Ending.WITHOUT_USAGE),
        (request(**STREAM | {"outcome": Outcome.ABORTED}), Ending.UNFINISHED),
        (request(outcome=Outcome.ERROR), Ending.UNFINISHED),
        (request(**STREAM | {"completion_tokens": 9}), Ending.UNKNOWN),
        (request(**STREAM | {"stream": False}), Ending.UNKNOWN),
        (request(**STREAM | {"first_token": None}), Ending.UNKNOWN),  # it could not be read: who knows what it said
    ],
)
def test_what_became_of_a_request(found, expected):
    assert ending(found) is expected


def test_the_window_forgets():
    window = SlidingEndings(60.0)
    window.add(request(**STREAM), 100.0)
    window.add(request(Attribution.EXACT), 130.0)
    assert window.read(160.0) == dict.fromkeys(Ending, 0) | {Ending.WITHOUT_USAGE: 1, Ending.EXACT: 1}
    assert window.read(161.0)[Ending.WITHOUT_USAGE] == 0
    assert sum(window.read(191.0).values()) == 0


def test_the_window_is_bounded():
    window = SlidingEndings(60.0)
    for number in range(10_000):
        window.add(request(), number / 10)
    assert len(window._stretches) <= 62
    assert window.read(999.9)[Ending.UNKNOWN] == pytest.approx(600, abs=15)

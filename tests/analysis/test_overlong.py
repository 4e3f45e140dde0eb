"""Requests longer than the draft takes, and for how long they stopped all drafts."""

from dataclasses import replace

import pytest

from sidecar.analysis.overlong import Overlong, OverlongRequests
from sidecar.findings.long_requests import LongRequests
from sidecar.requests.messages import Configuration, Speculation
from tests.analysis.analysis_tools import Pod, finished

SHORT_DRAFT = Speculation("mtp", 3, draft_max_model_len=2503)  # 2,500 with its draft tokens
V1 = Configuration(model_runner_v2=False, max_model_len=131_072)


def request(begin, end, prompt=3000, output=100):
    return finished(0, end, first_token=begin, prompt_tokens=prompt, output_tokens=output)


def found(*requests, at=400.0, longest=2500, engine="0", engines=1):
    overlong = OverlongRequests(300.0)
    overlong.mark(0.0)
    overlong.finished(engine, longest, requests)
    overlong.mark(at)
    return overlong.found(engines)


@pytest.mark.parametrize(
    ("requests", "seconds"),
    [
        ([request(200.0, 230.0)], 30),
        ([request(200.0, 230.0), request(220.0, 250.0)], 50),  # at once
        ([request(220.0, 250.0), request(200.0, 230.0), request(300.0, 310.0)], 60),
        ([request(90.0, 130.0)], 30),  # the window begins at 100
        ([request(200.0, 240.0, prompt=2450)], 20),  # it becomes too long halfway
        ([request(50.0, 399.0)], 299),
    ],
)
def test_the_share_of_the_window_is_that_of_all_spans_together(requests, seconds):
    assert found(*requests) == Overlong(
        requests=len(requests), longest=2500, share=pytest.approx(seconds / 300)
    )


@pytest.mark.parametrize(
    "one",
    [
        request(200.0, 230.0, prompt=2400),  # 2,500 fit
        request(20.0, 90.0),  # before the window
        replace(request(200.0, 230.0), first_token=None),
        replace(request(200.0, 230.0), output_tokens=None),
        request(230.0, 230.0),
    ],
)
def test_what_was_not_too_long_or_is_not_known_is_not_counted(one):
    assert found(one) is None


def test_any_number_of_requests_takes_bounded_memory_and_the_share_is_of_all_engines():
    overlong = OverlongRequests(300.0)
    overlong.mark(-50.0)
    for number in range(5000):
        overlong.finished("0", 2500, [request(number / 20, number / 20 + 0.01)])
    overlong.mark(250.0)

    seen = overlong.found(engines=2)
    assert seen.requests == 256
    assert seen.share == pytest.approx(256 * 0.01 / 600)


@pytest.mark.parametrize("is_own", [False, True])  # whoever sent them
@pytest.mark.parametrize(
    ("speculation", "configuration", "is_found"),
    [
        (SHORT_DRAFT, V1, True),
        (SHORT_DRAFT, replace(V1, model_runner_v2=True), False),
        (SHORT_DRAFT, replace(V1, model_runner_v2=None), False),  # not known
        (SHORT_DRAFT, replace(V1, max_model_len=2500), False),  # vLLM takes no longer ones
        (replace(SHORT_DRAFT, draft_max_model_len=None), V1, False),
        (replace(SHORT_DRAFT, draft_max_model_len=131_072), V1, False),
    ],
)
def test_it_is_found_where_the_plug_in_says_that_the_batch_is_not_drafted_for(
    speculation, configuration, is_found, is_own
):
    """And comes before what would follow from it."""
    pod = Pod()
    pod.plugin.hello(speculation=speculation, configuration=configuration)
    for _ in range(60):
        pod.plugin.finish(prompt_tokens=3000, accepted_tokens=3, is_own=is_own)
        pod.serve((0, 10, 2), (100, 10, 2))

    findings = pod.model().findings
    told = [finding for finding in findings if isinstance(finding, LongRequests)]
    assert bool(told) == is_found
    if is_found:
        assert (findings[0], len(findings)) == (told[0], 1)
        assert told[0].longest == 2500
        assert told[0].share == pytest.approx(1.0, abs=0.02)

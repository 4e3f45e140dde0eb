"""How the outputs of finished requests end: counted by temperature, and as a group."""

import pytest

from sidecar.analysis.evidence import Loops
from sidecar.requests.messages import Table
from sidecar.requests.tally import Outcome
from tests.analysis.analysis_tools import Pod


@pytest.fixture
def pod():
    """One whose plug-in tells how outputs end."""
    pod = Pod()
    pod.plugin.hello(tables=frozenset(Table))
    return pod


def test_endings_are_counted_by_temperature_and_begin_at_0(pod):
    pod.plugin.finish(0, ending="loop", outcome="length")
    pod.plugin.finish(80, ending="normal")
    pod.plugin.finish(80, ending="empty")
    pod.poll(pod.plugin.counted())

    assert pod.temperature("0").endings == {"normal": 0, "loop": 1, "empty": 0}
    assert pod.temperature("0.7-1").endings == {"normal": 1, "loop": 0, "empty": 1}
    assert pod.temperature("0.3-0.5").endings == {"normal": 0, "loop": 0, "empty": 0}


def test_a_plugin_that_cannot_tell_how_outputs_end_has_no_endings():
    """Absent, not 0."""
    pod = Pod()
    pod.plugin.finish(0)
    pod.poll(pod.plugin.counted())

    assert pod.temperature("0").endings is None
    assert "ending" not in {group.by for group in pod.model().groups}


def test_the_draft_tokens_of_loops_are_known_as_a_group_of_finished_requests(pod):
    pod.plugin.finish(0, ending="loop", outcome="length", accepted_tokens=29)
    pod.plugin.finish(0, ending="normal")
    pod.poll(pod.plugin.counted())

    loops = pod.group("loop")
    assert (loops.by, loops.tally.requests, loops.tally.draft_tokens) == ("ending", 1, 30)
    assert (loops.tally.accepted_tokens, pod.group("normal").tally.accepted_tokens) == (29, 20)
    assert pod.group("empty").tally.requests == 0


def finish(pod, *endings, accepted=20, temperature=0):
    """Requests of 30 draft tokens each, of which ``accepted`` are accepted; then a poll."""
    for ending in endings:
        outcome = Outcome.LENGTH if ending == "loop" else Outcome.STOPPED
        pod.plugin.finish(temperature, ending=ending, outcome=outcome, accepted_tokens=accepted)
    pod.poll(pod.plugin.counted())


def loops(pod):
    return pod.model().judgement.evidence.loops


def test_the_evidence_has_the_acceptance_rate_with_and_without_loops(pod):
    """Loops are easy to draft, so that a pod whose output breaks looks better, not worse."""
    finish(pod, *["loop"] * 2, accepted=30)
    finish(pod, *["normal"] * 8, accepted=15)

    assert loops(pod) == Loops(rate=1.0, share=0.2, whole=0.6, without=0.5)


def test_a_pod_whose_every_request_loops_has_no_rate_without_them(pod):
    finish(pod, *["loop"] * 8, accepted=30)

    assert (loops(pod).share, loops(pod).without) == (1.0, None)


@pytest.mark.parametrize(
    "endings",
    [
        ["normal"] * 10,
        ["loop"] * 4,  # fewer requests than min_requests
        ["loop", *["normal"] * 20],  # a twentieth of the draft tokens
    ],
)
def test_loops_that_hardly_matter_are_not_in_the_evidence(pod, endings):
    finish(pod, *endings)

    assert loops(pod) is None

"""The states of the page that pictures are taken of: each is what its name says."""

import re
from datetime import timedelta
from html import unescape

import pytest

from sidecar.export.status_page import content
from tests.export.page.states import END, STATES
from tests.marks import slow

SINCE = re.compile(r"(?:Since|Verdict since|Last read at|first attempt, at) (\d\d):(\d\d) UTC")


# Those that are simulated in a second or two; the others run with the slow tests.
QUICK = {"just-started", "too-little-data", "vllm-loading"}
ALL = [state if name in QUICK else slow(state) for name, state in STATES.items()]


def test_each_state_has_an_answer_to_each_question():
    assert STATES.keys() > QUICK
    for state in STATES.values():
        assert all(state.truth.values()), state.name


@pytest.mark.parametrize("state", ALL, ids=lambda state: state.name)
def test_a_state_shows_what_it_is_about(state):
    """Since when it says so is soon after that began, where it says it."""
    shown = " ".join(unescape(re.sub(r"<[^>]+>", " ", content(state.shown()))).split())

    assert state.says in shown
    said = SINCE.search(shown)
    assert bool(said) is (state.began is not None)
    if said:
        hour, minute = map(int, said.groups())
        since = END.replace(hour=hour, minute=minute)
        assert state.began_at <= since <= state.began_at + timedelta(minutes=state.late)

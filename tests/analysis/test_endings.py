"""How the outputs of finished requests end: counted, and compared with how they used to end."""

from itertools import count, pairwise
from random import Random
from types import SimpleNamespace

import pytest

from sidecar.analysis.endings import Endings, Reference, compare
from sidecar.analysis.evidence import Loops
from sidecar.analysis.reply_kinds import ReplyKinds
from sidecar.engine.names import Counter
from sidecar.requests.messages import Speculation
from sidecar.requests.tally import Outcome
from sidecar.settings.baselines import PlainEndings
from tests.analysis.analysis_tools import PluginEnd, Pod, snap
from tests.requests.test_endings import ending as classified
from tests.requests.test_endings import json_list, table, tokens_of, tool_call

PROMPTS = count(100)  # tokens: no two requests are alike
UNDRAFTED = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "output_tokens": 1}


@pytest.fixture
def pod():
    return Pod()


def test_endings_are_counted_by_temperature_and_begin_at_0(pod):
    """Every temperature has every ending, since `rate()` needs a first value."""
    pod.plugin.finish(0, ending="loop", outcome="length")
    pod.plugin.finish(80, ending="normal")
    pod.plugin.finish(80, ending="empty")
    pod.poll(pod.plugin.counted())

    assert pod.temperature("0").endings == {"normal": 0, "loop": 1, "empty": 0}
    assert pod.temperature("0.7-1").endings == {"normal": 1, "loop": 0, "empty": 1}
    assert pod.temperature("0.3-0.5").endings == {"normal": 0, "loop": 0, "empty": 0}


def test_the_draft_tokens_of_loops_are_known_as_a_group_of_finished_requests(pod):
    """So the acceptance rate can be said without them."""
    pod.plugin.finish(0, ending="loop", outcome="length", accepted_tokens=29)
    pod.plugin.finish(0, ending="normal")
    pod.poll(pod.plugin.counted())

    loops = pod.group("loop")
    assert (loops.by, loops.tally.requests, loops.tally.draft_tokens) == ("ending", 1, 30)
    assert (loops.tally.accepted_tokens, pod.group("normal").tally.accepted_tokens) == (29, 20)
    assert pod.group("empty").tally.requests == 0


def test_empty_replies_have_no_drafts_which_is_no_hint(pod):
    """Their first token ends them, and that comes from the prompt."""
    for _ in range(30):
        pod.plugin.finish(0, ending="normal")
        pod.plugin.finish(0, ending="empty", **UNDRAFTED)
    pod.poll(pod.plugin.counted())

    assert pod.group("empty").window.requests == 30
    assert [group.group for group in pod.model().groups if group.without_drafts] == []


def finish(pod, *endings, accepted=20, temperature=0):
    """Requests of 30 draft tokens each, of which ``accepted`` are accepted; then a poll."""
    for ending in endings:
        outcome = Outcome.LENGTH if ending == "loop" else Outcome.STOPPED
        prompt = next(PROMPTS)
        changes = {"outcome": outcome, "accepted_tokens": accepted, "prompt_tokens": prompt}
        pod.plugin.finish(temperature, ending=ending, **changes)
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
    """Too few requests, or too small a share of the draft tokens."""
    finish(pod, *endings)

    assert loops(pod) is None


def test_loops_at_temperature_0_do_not_flatter_what_another_way_of_drafting_may_gain():
    """They are easy to draft, so the rate at T 0 that is promised is that of other text."""
    pod = Pod()
    greedy = Speculation("draft_model", 3, draft_sample_method="greedy")
    pod.plugin.hello(speculation=greedy)
    finish(pod, *["loop"] * 40, accepted=30)
    finish(pod, *["normal"] * 40, accepted=18)
    finish(pod, *["normal"] * 40, accepted=6, temperature=100)

    drafting = next(one for one in pod.model().findings if one.code == "greedy_drafting")

    assert drafting.cold_rate == pytest.approx(0.6)
    assert drafting.length_at_most == pytest.approx(1 + 3 * 0.6)
    assert drafting.is_bound_measured


def reply(ending, *, prompt=None):
    """A request that ended so; unless its ``prompt`` is given, it is like no other one."""
    tokens = next(PROMPTS) if prompt is None else prompt
    return SimpleNamespace(ending=ending, prompt_tokens=tokens, output_tokens=9, sampling="plain")


def minutes(pod, number, *, loops=0, empty=0, temperature=0, requests=10):
    """So many minutes of ten requests each, of which some end badly."""
    bad = ["loop"] * loops + ["empty"] * empty
    for _ in range(number):
        finish(pod, *bad, *["normal"] * (requests - len(bad)), temperature=temperature)
        pod.poll(pod.plugin.counted(), seconds=59)


def found(pod):
    """The findings on outputs, and whether each is advice rather than a fact."""
    return {
        finding.code: finding.is_advice
        for finding in pod.model().findings
        if finding.code in {"looping", "empty_replies"}
    }


@pytest.mark.parametrize(
    ("bad", "code"), [({"loops": 6}, "looping"), ({"empty": 6}, "empty_replies")]
)
def test_a_pod_whose_outputs_end_badly_since_five_minutes_is_named(pod, bad, code):
    """It is compared with its own past."""
    minutes(pod, 20)
    assert found(pod) == {}

    minutes(pod, 5, **bad)
    (finding,) = pod.model().findings[:1]

    assert found(pod) == {code: True}
    assert (finding.change.reference, finding.change.usual) == (Reference.PAST, 0.0)
    assert finding.share > 0.4


@pytest.mark.slow
def test_what_goes_on_never_becomes_usual_and_what_ends_is_no_finding(pod):
    """Two hours of loops are still compared with what was before them."""
    minutes(pod, 20)
    minutes(pod, 120, loops=6)
    assert found(pod) == {"looping": True}

    minutes(pod, 7)

    assert found(pod) == {}


def test_a_fault_does_not_become_usual_while_traffic_is_too_low_to_judge():
    """Bad replies of a quiet hour are no past, so it is still a fault when traffic returns."""
    endings = Endings(300.0, {})
    at = 0.0

    def minute(loop, normal):
        nonlocal at
        at += 60
        replies = ["loop"] * loop + ["normal"] * normal
        endings.finished(at, "0", list(map(reply, replies)))
        endings.mark(at)
        endings.judge(20)

    for _ in range(20):
        minute(0, 10)
    for _ in range(10):
        minute(6, 4)
    for _ in range(120):
        minute(2, 1)
    assert endings.report is None  # too few to tell

    for _ in range(6):
        minute(6, 4)

    assert endings.report.is_worse


def test_a_fault_of_more_than_a_day_does_not_become_usual_with_another_draft():
    """The past before it is the only right one, however old; a draft that mends it ends it."""
    endings = Endings(300.0, {})
    at = 0.0

    def hours(number, loop, normal):
        nonlocal at
        replies = ["loop"] * loop + ["normal"] * normal
        for _ in range(60 * number):
            at += 60
            endings.finished(at, "0", list(map(reply, replies)))
            endings.mark(at)
            endings.judge(20)

    hours(5, 0, 10)
    hours(25, 4, 6)
    endings = endings.begin_again()
    hours(1, 4, 6)
    assert endings.report.is_worse

    endings = endings.begin_again()
    hours(1, 0, 10)

    assert not endings.report.is_worse


def test_a_model_that_loops_at_temperature_0_by_itself_is_no_advice(pod):
    """Nor are more requests at this temperature, where the others never loop."""
    minutes(pod, 15, loops=5)
    minutes(pod, 15, temperature=80)
    assert found(pod) == {}

    minutes(pod, 5, loops=5)
    (finding,) = pod.model().findings

    assert (finding.code, finding.is_advice) == ("looping", False)
    assert finding.change.reference is Reference.PAST


@pytest.mark.parametrize(
    ("bad", "code"), [({"loops": 5}, "looping"), ({"empty": 5}, "empty_replies")]
)
def test_a_pod_that_is_broken_from_its_start_says_so_for_as_long_as_it_lasts(pod, bad, code):
    """Its own past is no excuse, since that may be wrong as well; but nothing is advised."""
    for _ in range(6):
        minutes(pod, 4, **bad)

        assert found(pod) == {code: False}

    minutes(pod, 7)

    assert found(pod) == {}


def test_a_pod_whose_every_reply_is_empty_says_so_although_it_drafts_nothing():
    """The first token comes from the prompt, and an empty reply has no other one."""
    pod = Pod()
    pod.plugin.generated = 0
    for _ in range(30):
        pod.plugin.finish(0, ending="empty", **UNDRAFTED)
    pod.poll(snap(counters={Counter.DRAFTS: 0.0, Counter.GENERATION_TOKENS: 30.0}))

    assert found(pod) == {"empty_replies": False}


OTHER_TRAFFIC = {
    "short answers": ("Yes .", "stopped"),
    "answers of one token": ("7", "length"),
    "JSON lists that are cut off": (json_list(), "length"),
    "tool calls": (tool_call(), "stopped"),
    "tables that their clients leave": (table(), "aborted"),
}


@pytest.mark.parametrize("kind", OTHER_TRAFFIC)
def test_other_traffic_than_before_is_no_finding(pod, kind):
    """Clients that ask for something else get replies that end otherwise, which is no fault."""
    minutes(pod, 20)

    text, outcome = OTHER_TRAFFIC[kind]
    tokens = tokens_of(text)
    for _ in range(8):
        for _ in range(20):
            ended = classified(tokens, outcome)
            pod.plugin.finish(0, ending=ended, outcome=outcome, output_tokens=len(tokens))
        pod.poll(pod.plugin.counted(), seconds=60)

        assert pod.model().endings.requests >= 20
        assert found(pod) == {}


def test_a_few_bad_replies_are_no_fact(pod):
    minutes(pod, 4)
    finish(pod, *["empty"] * 4)

    assert found(pod) == {}


def test_a_finding_names_the_temperatures_where_replies_have_changed(pod):
    """Most replies are at another one, so the share of all says little."""
    for loops in (0, 6):
        for _ in range(10):
            minutes(pod, 1, requests=40, temperature=80)
            minutes(pod, 1, loops=loops)
    (looping,) = pod.model().findings
    (place,) = looping.temperatures

    assert looping.is_advice
    assert place.temperature == "0"
    assert place.share == 0.6
    assert place.usual < 0.2
    assert looping.share < 0.2
    assert pod.model().endings.temperatures["loop"] == (place,)


def baseline(loops, requests=200, temperature=0.0):
    counts = PlainEndings(normal=requests - loops, loop=loops)
    return {"plain_endings": {"m": {temperature: counts}}}


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (baseline(loops=100), {}),  # the lab's model, as it is without speculation
        (baseline(loops=2), {"looping": True}),
        (baseline(loops=0, requests=4), {"looping": False}),  # too few
        (baseline(loops=0, temperature=0.7), {"looping": False}),  # another temperature
    ],
)
def test_a_baseline_says_what_is_usual_from_the_start(measured, expected):
    pod = Pod(**measured)
    minutes(pod, 5, loops=5)

    assert found(pod) == expected


def test_a_vllm_that_restarts_with_another_draft_is_compared_with_its_past():
    """That is when output breaks."""
    pod = Pod()
    minutes(pod, 20)
    pod.plugin.close()
    other = Speculation("eagle3", 5)
    pod.server = "next"
    pod.plugin = PluginEnd(pod, 2, start="again")
    pod.plugin.hello(speculation=other)
    pod.poll(snap(drafts=0))
    minutes(pod, 5, loops=8)

    (engine,) = pod.model().engines
    assert (engine.speculation, engine.vllm) == (other, "0.32.0")
    assert found(pod) == {"looping": True}


def test_a_few_loops_more_than_usual_are_chance(pod):
    minutes(pod, 20)
    minutes(pod, 4)
    finish(pod, *["loop"] * 4)

    assert found(pod) == {}


REFERENCE = {("0", "normal"): 900, ("0", "loop"): 100}


@pytest.mark.parametrize(
    ("normal", "loop", "is_more"),
    [
        (180, 20, False),  # as before
        (165, 35, False),  # more than chance, but not three times the odds
        (140, 60, True),
        (0, 200, True),
        (14, 6, False),  # of twenty requests, chance
    ],
)
def test_more_is_more_than_chance_and_three_times_the_odds(normal, loop, is_more):
    recent = {("0", "normal"): normal, ("0", "loop"): loop}
    change = compare("loop", recent, REFERENCE, Reference.PAST, least=100)

    assert (change.usual, change.is_clearly_more) == (0.1, is_more)


@pytest.mark.parametrize(
    ("loops_at_0", "loops_at_1", "is_more"),
    [
        (190, 0, False),  # as before
        (190, 60, True),
        (190, 10, False),  # 2.5 points of all
        (130, 60, False),  # as many as before
    ],
)
def test_loops_at_one_temperature_are_seen_where_another_one_always_loops(
    loops_at_0, loops_at_1, is_more
):
    """By the odds of both together, 47.5 % that became 62.5 % would not be three times as many."""
    before = {("0", "normal"): 5, ("0", "loop"): 95, ("1", "normal"): 100}
    recent = {
        ("0", "normal"): 200 - loops_at_0,
        ("0", "loop"): loops_at_0,
        ("1", "normal"): 200 - loops_at_1,
        ("1", "loop"): loops_at_1,
    }
    change = compare("loop", recent, before, Reference.PAST, least=100)

    assert (change.usual, change.is_clearly_more) == (0.475, is_more)


def at_0_and_1(loops_at_0, loops_at_1, requests_at_0, requests_at_1):
    return {
        ("0", "normal"): requests_at_0 - loops_at_0,
        ("0", "loop"): loops_at_0,
        ("1", "normal"): requests_at_1 - loops_at_1,
        ("1", "loop"): loops_at_1,
    }


def test_a_temperature_with_a_small_reference_does_not_decide_the_odds():
    """At 0 the odds are as they were; at 1 the ten of the reference say next to nothing."""
    recent = at_0_and_1(5, 25, requests_at_0=100, requests_at_1=500)
    before = at_0_and_1(50, 0, requests_at_0=1000, requests_at_1=10)
    change = compare("loop", recent, before, Reference.BASELINE, least=20)

    risen = 5 * 950 / 1100 + 25 * 10 / 510
    usual = 95 * 50 / 1100
    assert change.odds_ratio == pytest.approx(risen / usual)
    assert not change.is_clearly_more


@pytest.mark.parametrize(
    ("loops", "reference_loops", "references", "is_more"),
    [
        (7, 14, 700, False),  # on one day in three a window has so many by chance
        (13, 14, 700, True),  # 20 % more
        (18, 350, 7000, True),
        (14, 1, 20, False),  # of so few, 5 % are not known well
        (40, 1, 20, True),
    ],
)
def test_of_sixty_requests_more_is_what_chance_does_not_explain(
    loops, reference_loops, references, is_more
):
    recent = {("0", "normal"): 60 - loops, ("0", "loop"): loops}
    before = {("0", "normal"): references - reference_loops, ("0", "loop"): reference_loops}
    change = compare("loop", recent, before, Reference.PAST, least=20)

    assert change.is_clearly_more == is_more


class Traffic:
    """Requests by chance, judged each minute; some of them loop."""

    def __init__(self, requests_a_minute, seed):
        self.endings = Endings(300.0, {})
        self.at = 0.0
        self._mean = requests_a_minute
        self._random = Random(seed)

    def minute(self, share):
        """Whether replies are found to be worse after another minute of so many loops."""
        self.at += 60
        arrives = self._mean / 100
        replies = [
            reply("loop" if self._random.random() < share else "normal")
            for _ in range(100)
            if self._random.random() < arrives
        ]
        self.endings.finished(self.at, "0", replies)
        self.endings.mark(self.at)
        self.endings.judge(20)
        return self.endings.report is not None and self.endings.report.is_worse


def begun(found):
    """How often a finding begins."""
    return sum(now and not before for before, now in pairwise([False, *found]))


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_a_healthy_pod_has_no_finding_by_chance(share):
    """Sixty requests a window, a day: by three standard errors of shares it had several."""
    traffic = Traffic(12, seed=1)
    found = [traffic.minute(share) for _ in range(1440)]

    assert begun(found) == 0


def test_a_finding_does_not_come_and_go_while_its_cause_stays():
    """The share of loops is close to what it takes to begin."""
    traffic = Traffic(12, seed=1)
    for _ in range(120):
        traffic.minute(0.02)
    found = [traffic.minute(0.15) for _ in range(180)]

    assert begun(found) == 1
    assert found[-1]


def test_a_finding_ends_with_its_cause():
    traffic = Traffic(12, seed=1)
    for _ in range(120):
        traffic.minute(0.02)
    while not traffic.minute(0.3):
        assert traffic.at < 130 * 60

    found = [traffic.minute(0.02) for _ in range(60)]

    assert not any(found[6:])


def test_requests_at_temperatures_of_which_little_is_known_are_not_compared():
    recent = {("0", "normal"): 10, ("1+", "loop"): 40}

    assert compare("loop", recent, REFERENCE, Reference.PAST, least=100) is None


def worse(endings, at, replies):
    """Whether more end badly than usual, once these have finished by ``at``."""
    endings.finished(at, "0", replies)
    endings.mark(at)
    endings.judge(20)
    return endings.report is not None and endings.report.is_worse


@pytest.mark.parametrize(("are_alike", "is_worse"), [(True, False), (False, True)])
def test_replies_that_are_alike_count_once_in_a_window(are_alike, is_worse):
    """One prompt that loops and is sent again and again is one reply; as many prompts are a fault.

    How many of all replies loop is said as it is.
    """
    endings = Endings(300.0, {})
    for minute in range(30):
        assert not worse(endings, 60.0 * minute, [reply("normal") for _ in range(20)])

    prompt = 7 if are_alike else None
    found = [
        worse(endings, 60.0 * minute, [reply("loop", prompt=prompt) for _ in range(10)])
        for minute in range(30, 35)
    ]

    assert any(found) == is_worse
    assert endings.report.shares["loop"] > 0.3


def test_what_is_alike_counts_again_in_the_next_window():
    """Or a prompt that is always sent would be no part of the past."""
    kinds = ReplyKinds(300.0)
    counted = []
    for minute in range(11):
        kinds.drop(60.0 * minute)
        counted.append(kinds.is_first(60.0 * minute, "0", reply("loop", prompt=7)))

    assert counted == [True, *[False] * 4] * 2 + [True]


def test_replies_that_differ_in_anything_that_is_told_are_not_alike():
    first = reply("loop", prompt=7)
    others = [
        reply("normal", prompt=7),
        reply("loop", prompt=8),
        SimpleNamespace(**vars(first) | {"output_tokens": 10}),
        SimpleNamespace(**vars(first) | {"sampling": "filtered"}),
    ]
    kinds = ReplyKinds(300.0)

    assert all(kinds.is_first(0.0, "0", one) for one in (first, *others))
    assert kinds.is_first(0.0, "0.7-1", first)
    assert not kinds.is_first(0.0, "0", first)


def test_the_kinds_of_replies_are_bounded_and_counted_again_once_they_are_forgotten():
    kinds = ReplyKinds(300.0)
    counted = sum(kinds.is_first(0.0, "0", reply("normal", prompt=n)) for n in range(12_000))
    assert counted == 10_000

    kinds.drop(300.0)
    assert kinds.is_first(300.0, "0", reply("normal", prompt=0))


@pytest.mark.parametrize(("hours_later", "is_worse"), [(24, False), (12, True)])
def test_what_comes_each_day_at_this_time_is_worse_only_the_first_time(hours_later, is_worse):
    """A job of the night; at another time it would be another cause."""
    endings = Endings(300.0, {})
    of_the_job = {
        begin + minute for begin in (6 * 60, (6 + hours_later) * 60) for minute in range(60)
    }
    found = []
    for minute in range(36 * 60):
        loops = 6 * (minute in of_the_job)
        replies = [reply("loop") for _ in range(loops)] + [reply("normal") for _ in range(10)]
        found.append(worse(endings, 60.0 * minute, replies))

    first, second = found[: 7 * 60 + 30], found[7 * 60 + 30 :]
    assert (begun(first), any(second)) == (1, is_worse)


def test_a_fault_that_lasts_for_days_does_not_become_usual_by_yesterday():
    """It is found once, and goes on."""
    endings = Endings(300.0, {})
    for minute in range(3 * 24 * 60):
        loops = 6 * (minute >= 6 * 60)
        replies = [reply("loop") for _ in range(loops)] + [reply("normal") for _ in range(10)]
        is_worse = worse(endings, 60.0 * minute, replies)

    assert is_worse

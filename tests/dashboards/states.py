"""The dashboards' states, each with what a reader of its picture should answer.

None is written by hand: simulated pods (``tests/alerts/pods.py``) serve for six hours what a state
is about, and promtool evaluates the shipped rules on what was scraped from them.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import groupby

from sidecar.requests.messages import Speculation
from tests.alerts.notified import by_rules
from tests.alerts.pods import Pod
from tests.alerts.vllm_pages import EPOCH, after, planned
from tests.dashboards.dashboard_tools import PAGES
from tests.dashboards.reading import sample

MINUTES = 360  # as far back as the dashboards look unless someone asks for more
END = EPOCH + 60 * (MINUTES - 1)  # of the last scrape
SCRAPE = 60  # seconds
OPERATOR, FLEET = "specdec-operator", "specdec-fleet"
CHAT, CODE, DRAFT = "chat-70b", "code-7b", "summary-8b"
ALERTS = ("ALERTS", "ALERTS_FOR_STATE")


def _open_queries() -> str:
    shown = [
        each for page in PAGES.values() for each in (*page["panels"], *page["annotations"]["list"])
    ]
    return json.dumps([each for each in shown if each.get("type") != "row"])


# What the panels read that are open, and the marks: of the sidecars and of the rules.
SCRAPED = frozenset(re.findall(r"\b(?:specdec_\w+|process_start\w+)", _open_queries())) | {"up"}
RECORDED = frozenset(re.findall(r"\b[a-z_]+:specdec_\w+:\w+", _open_queries()))


# The pods.


@dataclass(frozen=True)
class Play:
    """What a pod does, as one of several that do not all do it alike.

    Prometheus has not reached its sidecar for so many ``gone`` minutes.
    """

    what: Callable[[int], Pod]
    variant: int = 0
    gone: int = 0


class Player(Pod):
    """A pod of a model that plays: it serves as any other one does that plays the same."""

    def __init__(self, play, model, name):
        super().__init__(name, model=model, minutes=MINUTES - play.gone)
        self.play, self._as = play, _played(play.what, play.variant)
        self.own |= {"cluster": "eu-1", "pod": name}
        self.plain("up", (self.minutes, 1), *([(play.gone, 0)] if play.gone else []))

    def scraped(self, seconds=SCRAPE):
        return {
            (name, tuple((key, self._renamed(key, value)) for key, value in labels)): {
                scrape: value for scrape, value in values.items() if scrape < self.minutes
            }
            for (name, labels), values in self._as.scraped(seconds).items()
        }

    def _renamed(self, key, value):
        return self.model if key == "model_name" else value


@cache
def _played(what, variant):
    return what(variant)


def _pod(what, variant):
    made = Pod(f"{what}-{variant}", minutes=MINUTES, poll=SCRAPE)
    made.cache(_wobbling(0.42 + 0.04 * variant, 0.05, variant), 0)
    return made.tpot(0.018, 0.041)


def _wobbling(value, by, phase):
    """A quantity that is never quite steady."""
    at = value if callable(value) else lambda _: value
    return lambda minute: (
        at(minute) + by * math.sin(minute / 23 + phase) * math.cos(minute / 7 + 2 * phase)
    )


def _serving(made, phase, **temperatures):
    """With a baseline: by temperature drafts a second, acceptance and speedup, maybe over time.

    ``all`` is the speedup of all requests.
    """
    made.timed(_wobbling(temperatures.pop("all"), 0.012, phase))
    for place, temperature in enumerate(temperatures.values()):
        _serving_at(("0", "0.5-0.7", "1+")[place], made, phase + place, temperature)
    return made


def _serving_at(bucket, made, phase, traffic):
    drafts, acceptance, speedup = traffic
    accepted = _wobbling(acceptance, 0.008, phase)
    pace = _wobbling(speedup, 0.012, phase)
    is_served = planned(drafts)
    made.bucket(bucket, drafts, accepted)
    made.finishing(
        lambda minute: accepted(minute) if is_served(minute) else None,
        temperature=bucket,
        # The speedup that the sidecar makes of a pace here is 0.92 of it.
        pace=lambda minute: pace(minute) / 0.92,
    )


def paying(variant):
    speedup = 1.42 + 0.02 * variant
    return _serving(
        _pod("paying", variant),
        variant,
        all=speedup,
        greedy=(12, 0.79, speedup + 0.03),
        warm=(8, 0.74, speedup - 0.04),
    )


LOST = 95  # minutes before the picture, as all that follows


def losing(variant):
    """Its drafts are accepted too seldom, at each temperature."""
    change = MINUTES - LOST
    speedup = after(change, 1.38, 0.78 + 0.01 * variant)
    return _serving(
        _pod("losing", variant),
        variant,
        all=speedup,
        greedy=(12, after(change, 0.76, 0.3), speedup),
        warm=(8, after(change, 0.74, 0.27), speedup),
    )


HOT = 80


def losing_hot(variant):
    """Traffic at T 1.2 has come, and loses."""
    change = MINUTES - HOT
    return _serving(
        _pod("losing_hot", variant),
        variant,
        all=after(change, 1.4, 1.16),
        greedy=(12, 0.79, 1.44),
        warm=(8, 0.74, 1.36),
        hot=(after(change, 0, 6), 0.17, 0.74),
    ).speculating(Speculation("eagle3", 3, draft_sample_method="greedy"))


DOWN = 25


def without_vllm(variant):
    change = MINUTES - DOWN
    made = paying(variant)
    made.own["instance"] = f"without_vllm-{variant}"
    return made.failing(lambda poll: poll >= change)


UNPLUGGED = 70


def unplugged(variant):
    made = paying(variant)
    made.own["instance"] = f"unplugged-{variant}"
    return made.unplugging(MINUTES - UNPLUGGED)


STOPPED = 50


def stopped(variant):
    """It is configured to draft, and drafts nothing any more."""
    change = MINUTES - STOPPED
    speedup = after(change, 1.42, 1.0)
    made = _pod("stopped", variant).speculating(Speculation("eagle3", 3))
    made.generating(after(change, 0, 60))
    return _serving(made, variant, all=speedup, greedy=(after(change, 20, 0), 0.78, speedup))


_SUFFIXES = "bcdfghjklmnpqrstvwxz2456789"


def _names(model):
    """As a ReplicaSet names its pods, the same ones each time."""
    seed = sum(map(ord, model))
    for number in range(1, 100):
        at = seed * 7919 + number * 104_729
        suffix = "".join(_SUFFIXES[at // 29**place % len(_SUFFIXES)] for place in range(5))
        yield f"{model}-6c8f7d9b54-{suffix}"


def model(name, *plays):
    """Its pods."""
    return [Player(play, name, called) for play, called in zip(plays, _names(name), strict=False)]


def pods(what, number, *, first=0, gone=0):
    return [Play(what, (first + each) % 5, gone) for each in range(number)]


# What Prometheus has of them.


def _scraped(pod):
    """Name, labels, value and minute."""
    for (name, labels), values in pod.scraped().items():
        if name in SCRAPED:
            for minute, value in values.items():
                yield name, pod.own | dict(labels), value, minute
    for (name, labels), (phases, _) in pod.added.items():
        values = [value for minutes, value in phases for _ in range(minutes)]
        for minute, value in enumerate(values):
            yield name, pod.own | dict(labels), value, minute


def _recorded(pods):
    """What the rules record and fire; none joins two models, but some speak of the whole fleet."""
    found = {}
    for name, group in groupby(sorted(pods, key=lambda pod: pod.model), lambda pod: pod.model):
        players = list(group)
        renamed = {"m": name}
        for place, player in enumerate(players):
            renamed |= {f"{place}:9911": player.own["instance"], str(place): player.own["pod"]}
        for metric, labels, value, minute in _recorded_of(tuple(each.play for each in players)):
            named = {
                key: renamed[text] if key in {"model_name", "instance", "pod"} else text
                for key, text in labels.items()
            }
            series = found.setdefault((metric, tuple(named.items())), {})
            series[minute] = value
    for (metric, labels), values in found.items():
        for minute, value in values.items():
            yield metric, dict(labels), value, minute


@cache
def _recorded_of(plays):
    """That of a model ``m``, whose pods are numbered."""
    players = [Player(play, "m", str(number)) for number, play in enumerate(plays)]
    selector = f'{{__name__=~"{"|".join((*ALERTS, *sorted(RECORDED)))}"}}'
    found = by_rules(players, selector, range(1, MINUTES), seconds=SCRAPE, every="1m")
    return [
        # promtool's clock begins at 0
        (name, labels, value + EPOCH * (name == "ALERTS_FOR_STATE"), minute)
        for minute, series in found.items()
        for named, value in series
        for name, labels in [_named(named)]
    ]


def _named(labels):
    """The name of a series, and its other labels."""
    return labels["__name__"], {key: labels[key] for key in labels if key != "__name__"}


# The states.


@dataclass(frozen=True, kw_only=True)
class State:
    """``play`` gives the pods, and the others are the right answers about the picture at its end.

    What the answer is about ``began`` so many minutes before the picture, and the page has noticed
    it ``late`` by at most so many; None: it did not begin within the six hours. While Prometheus is
    ``away``, a span of minutes before the picture, it neither scrapes nor evaluates rules.
    ``besides`` is what else the picture says of which a reader must not say the contrary.
    """

    name: str
    page: str
    play: Callable[[], list[Player]]
    pays: str
    loses: str
    first: str
    besides: str = ""
    began: int | None = None
    late: int = 15
    away: range = field(default=range(0))

    @property
    def truth(self) -> dict[str, str]:
        """Does it pay, where does it lose, since when, and what to do first?"""
        since = "not within the six hours that the page shows"
        if self.began is not None:
            began = datetime.fromtimestamp(END - 60 * self.began, UTC)
            since = f"{began:%H:%M} UTC, or up to {self.late} minutes later"
        answers = {"pays": self.pays, "loses": self.loses, "since": since, "first": self.first}
        return {"page": self.page, **answers, "besides": self.besides}

    def samples(self) -> Iterator[str]:
        """All that Prometheus has, as lines of OpenMetrics."""
        players = self.play()
        for player in players:
            yield from self._kept(_scraped(player))
        yield from self._kept(_recorded(players))

    def _kept(self, found):
        away = {MINUTES - minutes for minutes in self.away}
        for name, labels, value, minute in found:
            if minute not in away:
                yield sample(name, labels, value, minute)


STATES: dict[str, State] = {}


def state(page, **declared):
    """Declares the state of a page that a function plays."""

    def add(play):
        name = play.__name__.replace("_", "-")
        STATES[name] = State(name=name, page=page, play=play, **declared)
        return play

    return add


NOTHING = "nothing: it pays, no alert fires"


@state(OPERATOR, pays="yes, on 3 of 3 pods, by 1.4 times", loses="nowhere", first=NOTHING)
def pays():
    return model(CHAT, *pods(paying, 3))


@state(
    OPERATOR,
    pays="no, measured, on 3 of 3 pods: the worst is at 0.78 of plain speed",
    loses="at all temperatures, on all pods",
    began=LOST,
    first="lower num_speculative_tokens (alert SlowerThanPlain, critical)",
)
def does_not_pay():
    return model(CHAT, *pods(losing, 3))


@state(
    OPERATOR,
    pays="in part: all requests together are faster, T 1+ is slower",
    loses="at T 1+, on all pods",
    began=HOT,
    first="try draft_sample_method probabilistic",
)
def one_temperature():
    return model(CHAT, *pods(losing_hot, 3))


@state(
    OPERATOR,
    pays="unknown of 1 of 3 pods, whose vLLM is down; on the two that answer it pays",
    loses="nowhere that is known",
    began=DOWN,
    first="see why vLLM of that pod (…bbrfk) is down (alert VLLMDown)",
    besides="the two pods that answer are at 1.45 of plain speed; the page names no further step",
)
def vllm_down():
    return model(CHAT, Play(without_vllm, 0), *pods(paying, 2, first=1))


@state(
    OPERATOR,
    pays="unknown of 1 of 3 pods, whose sidecar is down; on the two that answer it pays",
    loses="nowhere that is known",
    began=DOWN,
    first="see why that pod (…bbrfk) or its sidecar is down (alert SidecarAbsent)",
    besides="the page cannot say whether vLLM of that pod serves, and names no further step",
)
def sidecar_down():
    return model(CHAT, Play(paying, 0, gone=DOWN), *pods(paying, 2, first=1))


@state(
    OPERATOR,
    pays="not measured any more: high acceptance, 77 %, by the rule of thumb; until then it paid",
    loses="nowhere that is known; by temperature nothing is known any more",
    began=UNPLUGGED,
    first="load the plug-in into vLLM again (the page says only that there is none)",
    besides="no pod is down, and no alert fires",
)
def plugin_lost():
    return model(CHAT, *pods(unplugged, 3))


@state(
    OPERATOR,
    pays="it does not speculate any more; until then it paid",
    loses="nowhere",
    began=STOPPED,
    first="find in vLLM's log why it drafts nothing, restart it",
)
def not_speculating():
    return model(CHAT, *pods(stopped, 3))


AWAY = range(13, 24)


@state(
    OPERATOR,
    pays="yes, on 3 of 3 pods, now and before the gap",
    loses="nowhere",
    began=AWAY.stop - 1,
    late=5,
    first="nothing for speculation; see why Prometheus had no samples for 11 minutes",
    besides="a gap of 11 minutes in every band and line: nothing is known of it",
    away=AWAY,
)
def prometheus_away():
    return model(CHAT, *pods(paying, 3))


def _others():
    return [*model(CHAT, *pods(paying, 4)), *model(DRAFT, *pods(paying, 2))]


@state(
    FLEET,
    pays="yes, all 3 models, 9 pods",
    loses="nowhere",
    first=NOTHING,
)
def fleet_pays():
    return [*_others(), *model(CODE, *pods(paying, 3))]


@state(
    FLEET,
    pays="no for one model of 3",
    loses=f"{CODE}, on 3 of 3 pods; 3 of 9 pods in all",
    began=LOST,
    first=f"open {CODE}: its finding (lower num_speculative_tokens) is in the table of pods below",
    besides="3 of 3 pods of it lose, at 0.78 of plain speed; the other two models pay",
)
def fleet_one_model_loses():
    return [*_others(), *model(CODE, *pods(losing, 3))]


_MANY = tuple(f"tenant-{name}-8b" for name in (
    "atlas", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "indigo", "jade",
    "karst", "lotus", "mesa", "nova", "onyx", "pine", "quartz", "ridge", "slate", "tundra",
))  # fmt: skip
_FEW = {"cedar": 1, "haven": 1, "onyx": 2}


@state(
    FLEET,
    pays="no on 4 of 200 pods, in 3 of 20 models, each of which loses in part",
    loses="in part: cedar and haven on one pod each, onyx on two",
    began=LOST,
    first="open these models: the pods that lose are in the table below, with their finding",
)
def fleet_200_pods():
    made = []
    for name in _MANY:
        few = _FEW.get(name.split("-")[1], 0)
        made += model(name, *pods(losing, few), *pods(paying, 10 - few))
    return made


@state(
    FLEET,
    pays=f"unknown for {DRAFT}, whose 2 pods have no vLLM; the other 2 models pay",
    loses="nowhere that is known",
    began=DOWN,
    first=f"see why vLLM of both pods of {DRAFT} is down (alert VLLMDown, critical)",
)
def fleet_vllm_down():
    return [
        *model(CHAT, *pods(paying, 4)),
        *model(CODE, *pods(paying, 3)),
        *model(DRAFT, *pods(without_vllm, 2)),
    ]


@state(
    FLEET,
    pays=f"unknown of 2 of {CHAT}'s 4 pods, whose sidecars are down; the rest pays",
    loses="nowhere that is known",
    began=DOWN,
    first="see why these two pods or their sidecars are down (alert SidecarAbsent, a warning)",
    besides="the page cannot say whether vLLM of those pods serves",
)
def fleet_sidecars_down():
    return [
        *model(CHAT, *pods(paying, 2, gone=DOWN), *pods(paying, 2, first=2)),
        *model(CODE, *pods(paying, 3)),
        *model(DRAFT, *pods(paying, 2)),
    ]


@state(
    FLEET,
    pays="yes, all 3 models, now and before the gap",
    loses="nowhere",
    began=AWAY.stop - 1,
    late=5,
    first="nothing for speculation; see why Prometheus had no samples for 11 minutes",
    besides="a gap of 11 minutes in every band and line: nothing is known of it",
    away=AWAY,
)
def fleet_prometheus_away():
    return fleet_pays()

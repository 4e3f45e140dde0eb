"""Scenes for the alerts that read the sidecar's verdicts.

Their values are close to each threshold, on both sides.
"""

from dataclasses import replace

from sidecar.requests.messages import Speculation
from tests.alerts.pods import DAY, POD, Pod
from tests.alerts.scene import Scene, scenes
from tests.alerts.vllm_pages import after, plan, planned

LOW, AT = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceLowAtTemperature"
COLLAPSED = "SpecDecodeAcceptanceCollapsed"
NOT_SPECULATING = "SpecDecodeNotSpeculating"
NOT_JUDGED, MIXED = "SpecDecodeNotJudged", "SpecDecodeMixedWorkload"
SLOWER, SLOWER_AT = "SpecDecodeSlowerThanPlain", "SpecDecodeSlowerThanPlainAtTemperature"
ADAPTIVE = Speculation("eagle3", 3, adaptive_verification=True, draft_sample_method="greedy")
METHODS = ("eagle3", "draft_model")
DFLASH = Speculation("dflash", 15, parallel_drafting=True, draft_sample_method="greedy")


@scenes
def not_speculating():
    draft = Speculation(method="draft_model", num_speculative_tokens=3)
    scheduled = replace(draft, per_batch_size=True, schedule=((1, 64, 0),))
    yield Scene(
        "a draft model that drafts nothing although the engine decodes",
        NOT_SPECULATING,
        at=(10, 20, 34, 60),
    ).with_pods(
        Pod("quiet").drafting(0, 0.8).generating(50).speculating(draft).fires(since=14),
        Pod("restarts")
        .drafting(0, 0.8)
        .generating(50)
        .speculating(draft)
        .restarting(9)
        .fires(since=20),
        Pod("ends")
        .drafting(after(30, 0, 5), 0.8)
        .generating(50)
        .speculating(draft)
        .fires(until=34),
        Pod("scheduled").drafting(0, 0.8).generating(50).speculating(scheduled),
        Pod("idle").drafting(0, 0.8).speculating(draft),
        Pod("drafting").drafting(5, 0.8).speculating(draft),
    )


@scenes
def acceptance_low():
    always = {"severity": "warning"}
    yield Scene(
        "each pod by its own threshold, after 10 minutes and 15 longer than its condition",
        LOW,
        at=(11, 18, 34, 48, 60),
    ).with_pods(
        Pod("low").drafting(5, 0.4).fires(0.4, **always),
        Pod("recovers")
        .drafting(5, after(30, 0.4, 1.0))
        .fires(0.4, until=18, **always)
        .fires(0.88, since=34, until=34, **always)
        .fires(1, since=48, until=48, **always),
        Pod("above").drafting(5, 0.6),
        Pod("lenient", acceptance_net_negative=0.4).drafting(5, 0.5),
        Pod("strict", acceptance_net_negative=0.6).drafting(5, 0.5).fires(0.5, **always),
        Pod("undecided").drafting(5, 0.5),
    )
    information = {"severity": "info"}
    yield Scene(
        "ten minutes below the threshold are heard, before they are certain",
        LOW,
        at=(9, 20, 30, 45),
        needs_prometheus=True,
    ).with_pods(
        Pod("below").drafting(5, 0.49).fires(0.49, since=20, **information),
        Pod("above").drafting(5, 0.505),
        Pod("nine").drafting(5, plan((11, 0.8), (9, 0.4), (0, 0.8))),
    )
    yield Scene(
        "a restart of vLLM, of the sidecar, or of both changes nothing", LOW, at=(9, *range(28, 60))
    ).with_pods(
        Pod("low").drafting(5, 0.4).restarting(30).fires(0.4, **always),
        Pod("both").drafting(5, 0.4).away(30, 32).fires(0.4, **always),
        Pod("fine").drafting(5, 0.8).restarting(30),
    )

    def failing(instance, fails, since=15):
        return (
            Pod(instance, poll=15)
            .drafting(5, 0.3, requests=12)
            .failing(fails)
            .fires(0.3, since=since, **always)
        )

    yield Scene(
        "failed polls do not start the ten minutes anew, unless there are too many",
        LOW,
        at=(11, 15, 20, 29),
        needs_prometheus=True,
    ).with_pods(  # over three minutes; the push holds a verdict for one
        failing("steady", lambda _: False),
        failing("one-in-five", lambda number: number % 5 == 4),
        failing("a-minute", lambda number: 20 <= number < 24),
        failing("three", lambda number: 20 <= number < 32),
        failing("six", lambda number: 20 <= number < 44, since=20),
    )


@scenes
def acceptance_dropped():
    """A page only where a rate falls that was not low within a day, drafted in the same manner."""
    page, always = {"severity": "critical"}, {"severity": "warning"}
    falls = after(30, 0.8, 0.4)
    one = Pod("temperature").bucket("0", 3, 0.9).bucket("1+", 2, after(30, 0.7, 0.3))

    def mix(instance):
        hotter = Pod(instance).bucket("0", after(30, 4.5, 0.6), 0.88)
        return hotter.bucket("1+", after(30, 0.6, 4.4), 0.38).fires(0.44, since=50, **always)

    # What hardly any request drafts has no rate, and no share in the fall of the others.
    part = Pod("part").bucket("0", 3, after(30, 0.68, 0.44)).bucket("1+", 7, 0.46)
    part.vllm.temperatures["1+"].requests = planned(0)

    yield Scene(
        "a drop pages; what was always low, drafts in another manner or is measured does not",
        LOW,
        at=(29, 50, 62, 100),
    ).with_pods(
        Pod("drops").drafting(5, falls).fires(0.4, since=50, **page),
        Pod("returns")
        .drafting(5, plan((30, 0.8), (20, 0.4), (0, 0.8)))
        .fires(0.4, since=50, until=50, **page)
        .fires(0.64, since=62, until=62, **page),
        Pod("both")  # more than it varies, which neither temperature's part of it is alone
        .bucket("0", 4, after(30, 0.68, 0.44))
        .bucket("1+", 4, after(30, 0.68, 0.44))
        .fires(0.44, since=50, **page),
        Pod("less")  # no more than it varies
        .bucket("0", 4, after(30, 0.6, 0.45))
        .bucket("1+", 4, after(30, 0.6, 0.45))
        .fires(0.45, since=50, **always),
        one,  # the pod as a whole gains: no page
        part.fires(0.454, since=50, **page),
        mix("mix"),
        mix("restarts").restarting(40),
        Pod("more-tokens").drafting(5, falls, k=after(30, 3, 4)).fires(0.4, since=50, **always),
        Pod("measured").drafting(5, falls).timed(1.3).fires(0.4, since=50, severity="info"),
        Pod("one-pass")
        .drafting(5, falls)
        .speculating(DFLASH)
        .fires(0.4, since=50, severity="info"),
        Pod("unnamed", acceptance_low_is_critical=False)
        .drafting(5, falls, k=9)
        .fires(0.4, since=50, **always),
        Pod("fewer").drafting(5, falls, k=8).fires(0.4, since=50, **page),
        Pod("setting", acceptance_low_is_critical=True)
        .drafting(5, falls, k=after(30, 3, 4))
        .fires(0.4, since=50, **page),
    )

    yield Scene(
        "a drop pages in its third minute, and what was always low warns in its eleventh",
        LOW,
        at=(9, 12, 13, 41, 42),
    ).with_pods(
        Pod("drops").drafting(5, falls).fires(0.4, since=42, **page),
        Pod("short").drafting(5, plan((30, 0.8), (11, 0.4), (0, 0.8))),
        Pod("low").drafting(5, 0.4).fires(0.4, since=13, **always),
    )

    swings = Pod("swings").drafting(5, plan((30, 0.32), (20, 0.7), (0, 0.55))).speculating(DFLASH)
    yield Scene(
        "low over the hour, by a method whose rate says nothing of its time",
        LOW,
        at=(9, 47, 60),
        needs_prometheus=True,
    ).with_pods(
        swings.fires(0.4413, since=47, until=47, severity="info").fires(
            0.4773, since=60, severity="info"
        )
    )

    first_low, then_drops = after(30, 8, 1.2), after(36, 0.9, 0.1)
    later = Pod("later").bucket("0", first_low, 0.88).bucket("1+", after(30, 1.2, 7.2), 0.38)
    yield Scene("no warning on a pod that is about to page", LOW, at=(30, 41, 60)).with_pods(
        later.bucket("0.5-0.7", 4, then_drops).fires(0.3381, since=60, **page)
    )
    yield Scene(
        "a collapse that is mended leaves no warning", LOW, at=(29, 75, 95), reads=(COLLAPSED,)
    ).with_pods(
        Pod("mended").drafting(5, plan((30, 0.8), (17, 0.01), (0, 0.8))),
        Pod("low")
        .drafting(5, plan((30, 0.8), (17, 0.01), (0, 0.45)))
        .fires(0.45, since=75, **page),
    )
    # The lower its rate is, the longer it takes until it is certain not to be low any more: here 21
    # to 28 minutes. So it is always told late that a rate was low before and is low still.
    yield Scene(
        "nor does one of a pod whose rate is near the threshold",
        LOW,
        at=(29, 44, 60, 69, 72),
        reads=(COLLAPSED,),
    ).with_pods(
        *(
            Pod(f"at-{rate}").drafting(5, plan((30, rate), (17, 0.01), (0, rate)))
            for rate in (0.7, 0.6, 0.55)
        )
    )
    yield Scene(
        "a rate that stays low after a collapse is told a quarter of an hour after its page",
        LOW,
        at=(29, 78, 84),
        reads=(COLLAPSED,),
    ).with_pods(
        Pod("low")
        .drafting(5, plan((30, 0.8), (17, 0.01), (0, 0.45)), k=after(30, 3, 4))
        .fires(0.45, since=84, **always)
    )
    yield Scene(
        "no warning beside the page on a pod that is collapsed from its start",
        LOW,
        at=(2, 11, 12, 20),
        reads=(COLLAPSED,),
    ).with_pods(Pod("broken").drafting(5, 0.01))
    fault = Pod("fault").drafting(5, plan((30, 0.8), (30, 0.01), (0, 0.4)))
    yield Scene(
        "no second page for a collapse that has become a low rate",
        LOW,
        at=(29, 78),
        reads=(COLLAPSED,),
    ).with_pods(fault)
    negative, by_speedup = {"verdict": "net_negative"}, {"basis": "speedup"}
    measured = Pod("measured").drafting(5, falls).without("specdec_model_verdict")
    measured.plain("specdec_model_verdict", (70, 1), (50, 0), model_name="m", **negative)
    measured.plain("specdec_model_verdict_basis", (70, 0), (50, 1), model_name="m", **by_speedup)
    yield Scene(
        "a page ends once a time says that speculation pays",
        LOW,
        at=(29, 60, 80, 110),
        needs_prometheus=True,
    ).with_pods(
        measured.fires(0.4, since=60, until=80, **page).fires(0.4, since=110, severity="info")
    )

    eagle, draft = (Speculation(method, num_speculative_tokens=3) for method in METHODS)
    yield Scene(
        "a pod that begins low where its model's other pods were not, by the method that it drafts"
        " with",
        LOW,
        at=(89, 110),
        needs_prometheus=True,
    ).with_pods(
        Pod("old", minutes=92).drafting(5, 0.8).speculating(eagle),
        Pod("one", minutes=92, model="same").drafting(5, 0.53).speculating(eagle),
        Pod("two", minutes=92, model="same").drafting(5, 0.53).speculating(eagle),
        Pod("as-those", start=90, model="same")
        .drafting(5, 0.44)
        .speculating(eagle)
        .fires(0.44, since=110, **always),
        Pod("new", start=90).drafting(5, 0.4).speculating(eagle).fires(0.4, since=110, **page),
        Pod("other", start=90).drafting(5, 0.4).speculating(draft).fires(0.4, since=110, **always),
        Pod("another", start=90, model="another")
        .drafting(5, 0.4)
        .speculating(eagle)
        .fires(0.4, since=110, **always),
    )
    daily = plan((60, 0.8), (60, 0.4), (DAY - 60, 0.8), (0, 0.4))
    yield Scene(
        "what was low for longer than an hour is compared with itself, and with its last day only",
        LOW,
        at=(9, DAY + 45, DAY + 85),
        needs_prometheus=True,
    ).with_pods(
        Pod("good", poll=60).drafting(5, 0.8),
        Pod("low", poll=60).drafting(5, 0.4).fires(0.4, **always),
        Pod("older", poll=60, model="older")
        .drafting(5, after(10, 0.8, 0.4))
        .away(10, DAY + 60)
        .fires(0.4, since=DAY + 85, **always),
        Pod("day", poll=60, model="day")
        .drafting(5, after(60, 0.8, 0.4))
        .away(60, DAY + 60)
        .fires(0.4, since=DAY + 85, **page),
        # It has hardly varied for a day: a fall of twelve points is one.
        Pod("steady", poll=60, model="steady")
        .drafting(5, after(DAY + 40, 0.57, 0.45))
        .fires(0.45, since=DAY + 85, **page),
        # As at this hour yesterday, a pod that was there and one that was not.
        Pod("daily", poll=60, model="daily")
        .drafting(5, daily)
        .fires(0.4, since=DAY + 85, **always),
        Pod("replaced", poll=60, model="daily", minutes=DAY).drafting(5, daily),
        Pod("replaces", poll=60, model="daily", start=DAY + 20)
        .drafting(5, after(40, 0.8, 0.4))
        .fires(0.4, since=DAY + 85, **always),
    )


@scenes
def remembered():
    """The past of each rate; the sidecar remembers the same (analysis/drops.py).

    It knows the mean 0.757 of the whole one, which was idle for half an hour, and the others' to
    the last digit.
    """
    idles = plan((60, 5), (30, 0), (0, 5))
    # where nothing asks, it has no fall
    asked = {"acceptance_net_negative": 0.95, "acceptance_break_even": 0.97}
    whole = Pod("whole", **asked).drafting(
        idles,
        plan((40, 0.8), (10, 0.62), (40, 0.75), (20, 0.85), (0, 0.5)),
        requests=plan((60, 10), (30, 0), (0, 10)),
    )
    split = Pod("split", **asked).bucket("0", 4, plan((30, 0.8), (15, 0.5), (0, 0.82)))
    split.bucket("1+", plan((100, 2), (0, 6)), after(100, 0.6, 0.5))

    # Prometheus has known it for two days; then its rate rises by more than it varies.
    known, before = Pod("known", start=3, **asked).drafting(5, 0.8), Pod("known", minutes=0)
    turned = Pod("turned", **asked).drafting(5, 0.8, k=after(30, 3, 4))
    gone = Pod("gone", minutes=40).drafting(5, 0.6)
    removed = Pod("removed", minutes=0)
    removed.own = {"namespace": "prod"}
    for pod, name, value in (
        (before, "pod_temperature:specdec_acceptance:minutes2d", 2879),
        (before, "pod_temperature:specdec_acceptance:mean8h", 0.5),
        (before, "pod_temperature:specdec_acceptance:variance2d", 0.0016),
        (removed, "model_temperature:specdec_acceptance:mean8h", 0.5),
    ):
        pod.plain(
            name, (1, value), model_name="m" if pod is before else "removed", draft_tokens="3"
        )

    def of(pod, value, **labels):
        return pod.own | {"model_name": "m"} | labels, value

    def part(pod, value, **labels):
        return of(pod, value, **{"draft_tokens": "3"} | labels)

    yield Scene(
        "a rate's past has its limits, and ends with its pod, or with the last one of its model",
        None,
        at=(70,),
        records={
            "pod_temperature:specdec_acceptance:minutes2d": [
                part(known, 2880),
                part(turned, 30),
                part(turned, 36, draft_tokens="4"),
            ],
            "pod_temperature:specdec_acceptance:mean8h": [
                part(known, 0.517),
                part(turned, 0.8),
                part(turned, 0.8, draft_tokens="4"),
            ],
            "pod_temperature:specdec_acceptance:variance2d": [
                part(known, 0.002),
                part(turned, 0.001),
                part(turned, 0.001, draft_tokens="4"),
            ],
            "model_temperature:specdec_acceptance:mean8h": [
                ({"namespace": "prod", "model_name": "m", "draft_tokens": "3"}, 0.659),
                ({"namespace": "prod", "model_name": "m", "draft_tokens": "4"}, 0.8),
            ],
            "pod:specdec_acceptance:spread2d": [of(known, 0.044), of(turned, 0.037)],
        },
    ).with_pods(known, before, turned, gone, removed)

    def yesterday(instance, now):
        made = Pod(instance).drafting(5, now)
        return made.plain("pod:specdec_engine_acceptance:day_before", (20, 0.8), model_name="m")

    # It varies so much that a fall by 25 points is none by that alone.
    varies, knew = Pod("varies", start=3).drafting(5, 0.4), Pod("varies", minutes=0)
    for name, value in (("minutes2d", 2879), ("mean8h", 0.65), ("variance2d", 0.0036)):
        record = f"pod_temperature:specdec_acceptance:{name}"
        knew.plain(record, (1, value), model_name="m", draft_tokens="3")
    below, above = Pod("below").drafting(5, 0.47), Pod("above").drafting(5, 0.53)
    held = Pod("held").drafting(5, plan((10, 0.3), (0, 0.52)))  # not certain that it is above
    less, alike = yesterday("less", 0.747), yesterday("alike", 0.753)
    yield Scene(
        "how far a rate fell is known where it is low, below the threshold, or below yesterday's",
        None,
        at=(18,),
        records={
            "pod:specdec_acceptance:fall": [
                of(below, 0), of(held, -0.166), of(less, 0), of(varies, 0.245),
            ],
            "pod:specdec_acceptance:dropped": [of(varies, 0.245)],
        },
    ).with_pods(below, above, held, less, alike, varies, knew)  # fmt: skip

    # Without a temperature until the first requests have told theirs.
    told = {"method": "eagle3", "adaptive_verification": "false"}
    cold, hot = told | {"temperature": "0"}, told | {"temperature": "1+"}
    yield Scene(
        "a rate's past is its mean, how much it varies, and for how many minutes it is known",
        None,
        at=(130,),
        records={
            "pod_temperature:specdec_acceptance:minutes2d": [
                part(whole, 103), part(split, 1, **told), part(split, 129, **cold),
                part(split, 128, **hot),
            ],
            "pod_temperature:specdec_acceptance:mean8h": [
                part(whole, 0.758), part(split, 0.733, **told), part(split, 0.79, **cold),
                part(split, 0.579, **hot),
            ],
            "pod:specdec_acceptance:fall": [of(whole, 0.26), of(split, 0.036)],
            "pod:specdec_acceptance:spread2d": [of(whole, 0.052), of(split, 0.043)],
        },
    ).with_pods(whole, split)  # fmt: skip


@scenes
def one_page():
    """Of the alerts that one cause can raise, one pages, whichever condition holds first."""
    slowly = plan((30, 0.8), *[(5, 0.8 - 0.08 * step) for step in range(1, 10)], (0, 0.01))

    def sinking():
        return Pod("sinks").drafting(5, slowly)

    yield Scene(
        "a rate that drops and then collapses has paged already",
        LOW,
        at=(30, 70, 120),
    ).with_pods(sinking().fires(0.16, since=70, until=70).fires(0.01, since=120))
    yield Scene("no second page for it", COLLAPSED, at=(30, 70, 120), reads=(LOW,)).with_pods(
        sinking()
    )
    yield Scene("a rate that collapses at once is a fault, not a drop", LOW, at=(29, 60)).with_pods(
        Pod("fault").drafting(5, after(30, 0.8, 0.01))
    )
    slower = Pod("slower").drafting(5, after(30, 0.8, 0.01)).timed(after(30, 1.3, 0.5))
    # At minute 44 the slowdown has held for ten minutes, and the collapse not yet.
    yield Scene("nor is it a slowdown", SLOWER, at=(29, 44, 60), reads=(COLLAPSED,)).with_pods(
        slower
    )
    # At minute 52 it has been slow for ten minutes, and has collapsed before it could page.
    sooner = Pod("sooner").drafting(5, after(40, 0.8, 0.01)).timed(after(30, 1.3, 0.7))
    yield Scene("nor a slowdown before it", SLOWER, at=(29, 52, 60), reads=(COLLAPSED,)).with_pods(
        sooner
    )
    first_slow = Pod("first-slow").drafting(5, after(40, 0.7, 0.01)).timed(0.8)
    yield Scene(
        "a slowdown has paged before it collapses", SLOWER, at=(9, 30, 65), reads=(COLLAPSED,)
    ).with_pods(first_slow.fires(0.8))
    known = Pod("known").drafting(5, after(30, 0.85, 0.4)).untimed(0.8)
    yield Scene(
        "a drop has paged before a time says that it is slower",
        SLOWER,
        at=(29, 60, 100),
        reads=(LOW,),
        needs_prometheus=True,
    ).with_pods(known, Pod("plain", start=70).generating(50))


@scenes
def by_time():
    """Where a measured speedup is known it decides; a low acceptance is then information."""
    information, warns = {"alert": LOW, "severity": "info"}, {"alert": LOW, "severity": "warning"}

    def pods():
        better = Pod("better").drafting(5, after(20, 0.39, 0.9)).timed(1.3)
        return [
            Pod("pays").drafting(5, 0.39).timed(1.3).fires(0.39, **information),
            Pod("even").drafting(5, 0.4).timed(1.0).fires(0.4, **information),
            Pod("loses").drafting(5, 0.39).timed(0.7)
            .fires(0.39, **information).fires(0.7, alert=SLOWER),
            Pod("thumb").drafting(5, 0.39).fires(0.39, **warns),
            Pod("over").drafting(5, 0.6).timed(1.0),
            Pod("slow").drafting(5, 0.7).timed(0.7).fires(0.7, alert=SLOWER),
            Pod("strict", speedup_net_negative=1.1, speedup_net_positive=1.2)
            .drafting(5, 0.7).timed(0.8).fires(0.8, alert=SLOWER),
            Pod("adaptive").drafting(5, 0.17).speculating(ADAPTIVE)
            .fires(0.17, **information).fires(alert=NOT_JUDGED, reason="no_baseline"),
            Pod("one-pass").drafting(5, 0.2).speculating(DFLASH)
            .fires(0.2, **information).fires(alert=NOT_JUDGED, reason="no_baseline"),
            Pod("one-pass-slow").drafting(5, 0.2).timed(0.7).speculating(DFLASH)
            .fires(0.2, **information).fires(0.7, alert=SLOWER),
            Pod("adaptive-idle").drafting(0.05, 0.2).speculating(ADAPTIVE),
            Pod("adaptive-slow").drafting(5, 0.7).timed(0.7).speculating(ADAPTIVE)
            .fires(0.7, alert=SLOWER),
            better.fires(0.39, until=18, **information)
            .fires(0.594, since=22, until=22, **information)
            .fires(0.9, since=25, until=25, **information),
            Pod("faster").drafting(5, 0.7).timed(after(20, 0.7, 1.3))
            .fires(0.7, alert=SLOWER, until=13).fires(0.817, alert=SLOWER, since=30, until=30),
        ]  # fmt: skip

    yield Scene(
        "a low acceptance warns unless a time is known", LOW, at=(9, 18, 22, 25, 40)
    ).with_pods(*pods())
    slower = Scene("slower than plain, whatever is accepted", SLOWER, at=(9, 13, 30, 45))
    yield slower.with_pods(*pods())
    yield Scene(
        "nothing is judged where only a baseline would tell", NOT_JUDGED, at=(14, 30)
    ).with_pods(*pods())

    gap = Pod("gap").drafting(5, 0.7).timed(0.7).away(30, 42)
    dies = Pod("dies").drafting(5, 0.7).timed(0.7).failing(lambda n: n >= 40)
    gone = Pod("gone", minutes=24).drafting(5, 0.7).timed(0.7)
    yield Scene(
        "it outlasts a gap, after which a speedup is not known at once",
        SLOWER,
        at=(9, 29, 46),
        needs_prometheus=True,
    ).with_pods(
        *[pod.fires(0.7, since=29, until=29) for pod in (dies, gone)],
        gap.fires(0.7, since=29),
    )

    # Of the other engine nothing is known.
    part = Pod("part").drafting(5, 0.7).timed(0.7).generating(5, engine="1")
    engines = (
        Pod("engines")
        .drafting(5, 0.7)
        .drafting(5, 0.7, engine="1")
        .timed(0.6)
        .timed(1.1, engine="1")
    )
    engines.vllm.engine("0").at_once = plan(*[(1, 4), (1, 16)] * 15)  # all loads count
    yield Scene(
        "an engine that alone is slower than plain counts for its part", SLOWER, at=(9, 25)
    ).with_pods(
        engines.fires(0.776),
        Pod("fine").drafting(1, 0.7).drafting(9, 0.7, engine="1").timed(0.7).timed(1.4, engine="1"),
        part.fires(0.7),
    )


@scenes
def at_temperature():
    yield Scene("each temperature by its pod's own threshold", AT, at=(2, 12, 22)).with_pods(
        Pod("mixed")
        .bucket("0", 6, 0.8)
        .bucket("1+", 4, 0.38)
        .fires(0.38, since=5, temperature="1+"),
        Pod("above").bucket("0", 6, 0.8).bucket("1+", 4, 0.6),
        Pod("lenient", acceptance_net_negative=0.3).bucket("1+", 4, 0.38),
        Pod("near")
        .bucket("0", 6, 0.8)
        .bucket("1+", 4, after(15, 0.4, 0.5))
        .fires(0.4, since=5, until=12, temperature="1+")
        .fires(0.5, since=22, temperature="1+"),
    )
    # Without an id, the temperatures are unknown for three minutes.
    yield Scene("a restart of vLLM does not begin it anew", AT, at=(2, 20)).with_pods(
        Pod("restarts")
        .bucket("0", 6, 0.8)
        .bucket("1+", 4, 0.38)
        .restarting(8)
        .fires(0.38, temperature="1+"),
    )

    mended = plan((30, 0.6), (17, 0.01), (0, 0.6))
    cold = Pod("mended").bucket("0", 3, mended).bucket("1+", 3, mended)
    stays = plan((30, 0.6), (17, 0.01), (0, 0.4))
    low = Pod("low").bucket("0", 3, stays).bucket("1+", 3, stays)
    for part in ("0", "1+"):
        cold.fires(0.011852, since=35, until=35, temperature=part)
        low.fires(0.011852, since=35, until=35, temperature=part)
        low.fires(0.4, since=86, temperature=part)
    yield Scene(
        "none while a collapse pages, nor for a quarter of an hour after it",
        AT,
        at=(29, 35, 60, 69, 86),
        reads=(COLLAPSED,),
    ).with_pods(cold, low)


@scenes
def slower_at_temperature():
    """Requests of which the plug-in tells first and last token.

    The clock of the steps gives their plain time.
    """

    def paced(instance, speedup, acceptance=0.4):
        pod = Pod(instance).bucket("0", 5, 0.8).bucket("1+", 5, acceptance).timed(1.0)
        pod.vllm.engine().requests = planned(20)
        for part in pod.vllm.temperatures.values():
            part.requests = planned(10)
        return pod.finishing(0.5, temperature="1+", pace=speedup)

    slow = paced("slow", after(20, 0.8, 1.6))
    yield Scene("the temperature's own speedup decides", SLOWER_AT, at=(9, 14, 19, 50)).with_pods(
        slow.fires(0.78, since=14, until=19, temperature="1+"),
        paced("fast", 1.4),
    )
    lasts = paced("lasts", after(20, 0.8, 1.6)).fires(0.95, since=33, until=33, temperature="1+")
    yield Scene(
        "it outlasts itself by five minutes", SLOWER_AT, at=(9, 33, 50), needs_prometheus=True
    ).with_pods(lasts)
    low = paced("slow", 0.8, acceptance=0.47).fires(0.47, temperature="1+")
    yield Scene(
        "where time says that a temperature loses, its rate must be low as well", AT, at=(2, 30)
    ).with_pods(
        low,
        paced("high", 0.8, acceptance=0.53),
        paced("fast", 1.2),
    )


@scenes
def p10_break_even_and_collapse():
    yield Scene(
        "the tenth percentile of a pod whose acceptance is judged",
        "SpecDecodeAcceptanceP10Low",
        at=(15, 25, 47),
    ).with_pods(
        Pod("low", minutes=40).drafting(5, 0.7).finishing(0.49).fires(0.49, until=25),
        Pod("above").drafting(5, 0.6).finishing(0.51),
        Pod("idle").drafting(0.05, 0.7, requests=10).finishing(0.49),
        Pod("lenient", acceptance_p10=0.4).drafting(5, 0.7).finishing(0.49),
        Pod("adaptive").drafting(5, 0.7).finishing(0.2).speculating(ADAPTIVE),
        Pod("one-pass").drafting(5, 0.7).finishing(0.2).speculating(DFLASH),
    )
    yield Scene(
        "between the two thresholds for an hour", "SpecDecodeBreakEven", at=(58, 70, 84, 89)
    ).with_pods(
        Pod("worse").drafting(5, 0.45),
        Pod("low", minutes=80).drafting(5, 0.55).fires(0.55, until=84),
        Pod("high").drafting(5, 0.6).fires(0.6),
        Pod("better").drafting(5, 0.7),
        Pod("undecided").drafting(5, 0.65),
        Pod("own", acceptance_break_even=0.55).drafting(5, 0.6),
    )
    yield Scene(
        "nothing is accepted, at any temperature and from the first position on",
        COLLAPSED,
        at=(9, 13, 48, 60),
    ).with_pods(
        Pod("fault").drafting(5, after(30, 0.01, 0.9)).fires(0.01, until=48),
        Pod("some").drafting(5, 0.06),
        Pod("hot").drafting(5, 0.04, first=0.1),
        Pod("part").bucket("0", 0.6, 0.2).bucket("1+", 5, 0.01),
        Pod("engines").drafting(5, 0.04, first=0.06).drafting(5, 0.04, first=0.06, engine="1"),
        Pod("hour").drafting(0.3, after(25, 0.3, 0.0), requests=1),
        Pod("adaptive").drafting(5, 0.01).speculating(ADAPTIVE),
    )


@scenes
def mixed():
    def engines(instance, lower, drafts=5):
        return Pod(instance).drafting(5, 0.98).drafting(drafts, lower, engine="1")

    def timed(instance, *speedups, acceptance=0.45):
        pod = Pod(instance)
        for engine, speedup in enumerate(map(float, speedups)):
            pod.drafting(5, acceptance, engine=str(engine)).timed(speedup, engine=str(engine))
        return pod

    engine = {"sign": "engines", "engine": "1"}
    apart = (
        Pod("apart", minutes=40)
        .bucket("0", 6, 0.75)
        .bucket("0-0.3", 4, 0.8)
        .bucket("0.7-1", 4, 0.3)
    )
    yield Scene(
        "temperatures on both sides of the thresholds, and an engine that alone loses",
        MIXED,
        at=(14, 30, 50, 58),
    ).with_pods(
        apart.bucket("1+", 4, 0.4).fires(2, until=30, sign="temperatures"),
        Pod("good").bucket("0", 6, 0.75).bucket("1+", 4, 0.6),
        Pod("bad").bucket("0", 6, 0.6).bucket("1+", 4, 0.4),
        engines("engine", 0.4).fires(**engine),
        engines("near", 0.6),
        engines("slow", 0.4, drafts=1.05).fires(**engine),
        engines("small", 0.4, drafts=0.95).fires(**engine),
        engines("idle", 0.12, drafts=0.05),
        timed("pays", 1.3, 1.3),
        timed("slower", 1.6, 0.7, acceptance=0.7).fires(**engine),
        timed("all-slower", 0.7, 0.7, acceptance=0.7),
        Pod("one").drafting(5, 0.3),
        Pod("both").drafting(5, 0.4).drafting(5, 0.3, engine="1"),
        Pod("turned").drafting(5, after(38, 0.9, 0.3), requests=1),
        engines("adaptive", 0.12).timed(1.3).speculating(ADAPTIVE),
    )

    def pod(instance, p50, p99, requests=4.2, **own):
        return (
            Pod(instance, **own)
            .drafting(5, 0.8, requests=requests)
            .baseline(0.03, 0.05)
            .tpot(p50, p99)
        )

    yield Scene("a median that fell and a tail that grew", MIXED, at=(14, 30)).with_pods(
        pod("widened", 0.025, 0.056).fires(1.55, sign="latency"),
        pod("less", 0.025, 0.054),
        pod("slower", 0.031, 0.063),
        pod("faster", 0.01, 0.049),
        pod("few", 0.025, 0.056, requests=3.8),
        pod("lenient", 0.025, 0.056, latency_gap_growth=2),
        pod("adaptive", 0.025, 0.056).speculating(ADAPTIVE),
    )


@scenes
def context():
    by_temperature = "Acceptance rate 45% (threshold 50%). By temperature: [0] 60% [1+] 22.5%."
    plain = "Acceptance rate 30% (threshold 50%)."
    speedup = "Speedup over decoding without speculation at this load: 0.90."
    why = "Why (docs/why.md): too_many_tokens."
    several = Pod("several").drafting(5, 0.3).without("specdec_finding")
    several.plain("specdec_finding", (40, 1), finding="adapter", model_name="m")
    # A scrape has failed since.
    several.plain("specdec_finding", (34, 1), finding="load", model_name="m")
    command = f"Details: kubectl -n prod exec {POD} -c specdec-sidecar -- specdec-sidecar report"
    yield Scene(
        "it comes with the pod's rates and speedup, and in Kubernetes with a command that shows all"
        " numbers",
        LOW,
        at=(9, 35),
    ).with_pods(
        Pod("split")
        .bucket("0", 6, 0.6)
        .bucket("1+", 4, 0.225)
        .fires(0.45, severity="warning", context=(by_temperature,)),
        Pod("timed")
        .drafting(5, 0.3)
        .timed(0.9)
        .fires(0.3, severity="info", context=(plain, speedup, why)),
        Pod("kubernetes")
        .drafting(5, 0.3)
        .in_kubernetes()
        .fires(0.3, severity="warning", context=(plain, why, command)),
        several.fires(0.3, severity="warning", context=(plain, "Why (docs/why.md): adapter load.")),
    )


ENDINGS = "specdec_request_endings_total"


def ending(pod, loops, requests, temperature="0"):
    """So many of the pod's requests a minute end in a loop; the others end as they should."""
    for how, count in (("normal", requests - loops), ("loop", loops)):
        labels = {"model_name": pod.model, "temperature": temperature, "ending": how}
        pod.plain(ENDINGS, (90, count), grows=True, **labels)
    return pod


def plain(instance, loops, **own):
    """A pod that does not speculate; ``loops`` of its twenty requests a minute end in one."""
    return ending(Pod(instance, **own).generating(50), loops, 20)


@scenes
def output_worse():
    def pod(instance, share, **own):
        return Pod(instance, **own).drafting(8, 0.7).finishing(0.7).looping(share)

    yield Scene(
        "more replies repeat themselves than on this pod before",
        "SpecDecodeOutputWorse",
        at=(40, 50, 55, 70),
    ).with_pods(
        pod("loops", after(40, 0, 0.4)).fires(0.4, since=55),
        pod("always", 0.4),  # nothing to compare with
        pod("never", 0),
        pod("hardly", after(40, 0.2, 0.4)),
        Pod("untold").drafting(8, 0.7).finishing(0.7),
        pod("restarts", after(40, 0, 0.4)).restarting(50).fires(0.4, since=55),
    )
    yield Scene(
        "it outlasts itself by a quarter of an hour",
        "SpecDecodeOutputWorse",
        at=(40, 55, 70, 80, 95),
        needs_prometheus=True,
    ).with_pods(
        pod("heals", plan((40, 0), (31, 0.4), (40, 0)))
        .fires(0.4, since=55, until=70)
        .fires(0.22, since=80, until=80),
    )
    yield Scene(
        "more replies repeat themselves than on the plain pods of the model",
        "SpecDecodeOutputWorse",
        at=(8, 45, 70),
        needs_prometheus=True,
    ).with_pods(
        plain("plain", 0),
        pod("loops", 0.4).fires(0.4, since=45),
        pod("never", 0),
        plain("plain-too", 8, model="loops-by-itself"),
        pod("as-plain", after(30, 0, 0.4), model="loops-by-itself"),
    )

    replies = "Replies that repeat themselves or are empty, by temperature: [0] 40%."
    why = "Why (docs/why.md): looping."
    yield Scene(
        "the numbers beside it are of replies, not of drafts: where, and what is usual",
        "SpecDecodeOutputWorse",
        at=(40, 60),
        needs_prometheus=True,
    ).with_pods(
        pod("loops", after(40, 0, 0.4)).fires(
            0.4,
            since=60,
            context=(
                replies,
                "At all temperatures together: at most 0% for half of the last day.",
                why,
            ),
        ),
        ending(plain("plain", 1, model="has-plain"), 0, 20, "0.7-1"),
        pod("as-plain", after(40, 0, 0.4), model="has-plain").fires(
            0.4,
            since=60,
            context=(replies, "On pods without speculative decoding: [0] 5% [0.7-1] 0%.", why),
        ),
    )

    def speculating(instance, loops, requests, **own):
        return ending(Pod(instance, **own).drafting(8, 0.7), loops, requests)

    hot_only = speculating("hot-only", 0, 3, minutes=61)
    ending(hot_only, 30, 57, "0.7-1")
    hot_only.plain("specdec_finding", (90, 1), finding="looping", model_name="m")
    few = {"model": "few"}
    yield Scene(
        "plain pods decide neither by few replies nor for temperatures that they lack",
        "SpecDecodeOutputWorse",
        at=(8, 60),
        needs_prometheus=True,
    ).with_pods(
        plain("plain", 0),
        hot_only.fires(0.5, since=60),
        ending(Pod("plain-few", **few).generating(50), 0, 0.5),
        speculating("seven-in-a-hundred", 1.4, 20, **few),
        speculating("one-in-two", 10, 20, **few).fires(0.5, since=60),
    )
    yield Scene(
        "clearly more than on plain pods: by five points, four standard errors, three times odds",
        "SpecDecodeOutputWorse",
        at=(8, 45, 70),
        needs_prometheus=True,
    ).with_pods(
        ending(plain("plain", 0), 0, 20, "0.7-1"),
        speculating("four-in-a-hundred", 4, 100),
        speculating("four-of-twenty", 0.4, 2),
        speculating("sixteen-of-a-hundred", 1.6, 10).fires(0.16, since=45),
        plain("plain-too", 8, model="loops-by-itself"),
        speculating("six-in-ten", 60, 100, model="loops-by-itself"),
        speculating("half-of-thirty", 1.5, 3).fires(0.5, since=45),
        ending(speculating("nine-in-a-hundred", 0.9, 10), 0.9, 10, "0.7-1").fires(0.09, since=45),
        ending(speculating("at-one-temperature", 0, 10), 6, 10, "0.7-1").fires(0.3, since=45),
        ending(plain("plain-at-two", 4, model="loops-at-two"), 4, 20, "0.7-1"),
        ending(speculating("at-two", 35, 100, model="loops-at-two"), 35, 100, "0.7-1"),
        # At temperature 0 this model always loops, which hides no loops at another one.
        ending(plain("plain-always", 20, model="always-at-0"), 0, 20, "0.7-1"),
        ending(speculating("as-always", 40, 40, model="always-at-0"), 1, 40, "0.7-1"),
        ending(speculating("at-the-other", 40, 40, model="always-at-0"), 12, 40, "0.7-1").fires(
            0.65, since=45
        ),
        # Plain pods are not compared with each other.
        plain("plain-good", 0, model="loops-on-one"),
        plain("plain-good-too", 0, model="loops-on-one"),
        plain("plain-worse", 8, model="loops-on-one"),
        plain("plain-mostly", 0.4, model="loops-seldom"),
        speculating("six-in-a-hundred", 30, 500, model="loops-seldom"),
        speculating("ten-of-eighty", 0.96, 8, model="loops-seldom"),
        ending(speculating("elsewhere", 0, 10, model="loops-seldom"), 6, 10, "0.7-1"),
        speculating("seven-in-ten", 70, 100, model="loops-by-itself").fires(0.7, since=45),
    )

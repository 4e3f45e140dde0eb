"""The states of the status page, each with what a reader of its picture should answer.

None is written by hand: a pod in simulated time serves what the state is about, and the product's
own analysis makes the page of it (``tests/simulated_pods.py``). ``pictures`` takes their pictures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from sidecar.settings import Settings
from sidecar.settings.baselines import PlainCache, PlainStepTimes
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.step_law import LinearLaw, StepWork
from tests.simulated_pods import Load, SimulatedPod, Traffic, simulated_time

END = datetime(2026, 3, 10, 14, 30, tzinfo=UTC)  # when each picture is taken
MINUTE = 60
POLL = 30.0  # seconds

MODEL = "chat-70b"
OTHER_MODEL = "code-7b"
# Plain steps of 80 ms with six requests: slow ones take less to simulate. Three draft tokens cost
# 38 ms with a head that drafts, and 92 ms with a draft model, by which 1.5 and 2.2 tokens per step
# break even.
HEAD = LinearLaw(
    step=0.072,
    per_request=0.001,
    per_context_token=4e-7,
    per_prefill_token=6e-5,
    per_draft_position=0.008,
    per_verified_token=0.0006,
)
DRAFT_MODEL = replace(HEAD, per_draft_position=0.026)
COLD = {0.0: 6, 0.3: 2}


@dataclass(frozen=True, kw_only=True)
class State:
    """``play`` begins so many ``seconds`` before the picture, and ends with it.

    ``says`` is a part of the page's text. What the answer is about ``began`` so many minutes before
    the picture, and the page has noticed it ``late`` by at most so many; None: it does not say
    since when.
    """

    name: str
    play: Callable[[SimulatedPod], None]
    seconds: int
    says: str
    pays: str
    loses: str
    first: str
    began: int | None = None
    late: int = 15
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def began_at(self):
        return None if self.began is None else END - timedelta(minutes=self.began)

    @property
    def truth(self):
        """The right answers: does it pay, where does it lose, since when, what to do first?"""
        since = "the page does not say"
        if self.began_at is not None:
            since = f"{self.began_at:%H:%M} UTC, or up to {self.late} minutes later"
        return {"pays": self.pays, "loses": self.loses, "since": since, "first": self.first}

    def shown(self):
        """What the page is made from."""
        begins = END.timestamp() - self.seconds
        settings = Settings(scrape_interval=POLL, **self.settings)
        with (
            TemporaryDirectory(prefix="specdec", dir="/tmp") as folder,
            simulated_time(begins) as clock,
            SimulatedPod(clock, Path(folder) / "plugin.sock", settings) as pod,
        ):
            self.play(pod)
            assert pod.at == END.timestamp(), self.name
            return pod.shown()


STATES: dict[str, State] = {}


def state(**declared):
    """Declares the state that a function plays."""

    def add(play):
        name = play.__name__.replace("_", "-")
        STATES[name] = State(name=name, play=play, **declared)
        return play

    return add


def engine(cold, hot=None, *, law=DRAFT_MODEL, **changes):
    """Accepts a draft token after an accepted one by these chances, at T 0 and from T 1 on."""
    values = {
        "model_name": MODEL,
        "cold_acceptance": cold,
        "hot_acceptance": cold if hot is None else hot,
        "hot_temperature": 1.0,
        "draft_sample_method": "probabilistic",
        "num_gpu_blocks": 512,
        "law": law,
    }
    return SimulatorOptions(**values | changes)


def traffic(mix, **changes):
    values = {"at_once": 6, "prompt": range(200, 600), "output": range(80, 200)}
    return Traffic(mix=mix, **values | changes)


def serve(pod, options, mix, **changes):
    """A vLLM starts with a sidecar beside it."""
    pod.listen()
    pod.start(Load(options=options, traffic=traffic(mix, **changes)))


def plain_steps(law=HEAD, context=500):
    """What a baseline measures by the law, without drafts."""
    loads = (1, 2, 4, 8, 16)
    works = [StepWork(decodes=load, context_tokens=load * context) for load in loads]
    return PlainStepTimes(
        running=tuple(map(float, loads)),
        seconds=tuple(map(law.seconds, works)),
        context=context,
        contexts=(50.0, 4000.0),
        context_seconds=tuple(load * law.per_context_token for load in loads),
        prefill_seconds=law.per_prefill_token,
        measured=END - timedelta(days=3),
    )


MEASURED = {"plain_steps": {MODEL: plain_steps()}}
# Within an hour a speedup is not certain enough to be between the usual thresholds.
WIDE = {"thresholds": {"speedup_net_negative": 0.94, "speedup_net_positive": 1.08}}


@state(
    seconds=40 * MINUTE,
    settings=MEASURED,
    says="Speculation pays:",
    pays="yes",
    loses="nowhere",
    began=40,
    first="nothing",
)
def pays(pod):
    serve(pod, engine(0.85, 0.75, law=HEAD), {0.0: 4, 0.7: 3, 1.0: 3})
    pod.run(40 * MINUTE)


@state(
    seconds=50 * MINUTE,
    settings=MEASURED | WIDE,
    says="Speculation pays in part:",
    pays="in part",
    loses="nowhere; T 0.7-1 breaks even",
    began=50,
    late=45,
    first="set num_speculative_tokens to 1",
)
def pays_in_part(pod):
    serve(pod, engine(0.9, 0.605), {0.0: 3, 1.0: 7})
    pod.run(50 * MINUTE)


@state(
    seconds=45 * MINUTE,
    settings=MEASURED,
    says="Speculation loses in part:",
    pays="in part",
    loses="T 0.7-1 and T 1+",
    began=25,
    first="set num_speculative_tokens to 2",
)
def loses_in_part(pod):
    """Hot traffic has come."""
    serve(pod, engine(0.93, 0.43), COLD)
    pod.run(20 * MINUTE)
    [one] = pod.engines
    one.traffic = traffic({0.0: 6, 0.8: 2, 1.2: 2})
    pod.run(25 * MINUTE)


@state(
    seconds=45 * MINUTE,
    settings=MEASURED,
    says="does not pay",
    pays="no, measured",
    loses="T 0.7-1",
    began=25,
    first="set num_speculative_tokens to 1",
)
def does_not_pay(pod):
    """Nearly all traffic is hot now."""
    serve(pod, engine(0.93, 0.43), COLD)
    pod.run(20 * MINUTE)
    [one] = pod.engines
    one.traffic = traffic({0.0: 1, 1.0: 9})
    pod.run(25 * MINUTE)


@state(
    seconds=40 * MINUTE,
    says="low acceptance, not measured",
    pays="not measured; by the rule of thumb it does not",
    loses="by the rule of thumb all temperatures",
    began=40,
    first="set num_speculative_tokens to 1, and measure a baseline before turning it off",
)
def low_acceptance(pod):
    serve(pod, engine(0.57, law=HEAD), {0.0: 4, 0.7: 3, 1.0: 3})
    pod.run(40 * MINUTE)


@state(
    seconds=50 * MINUTE,
    settings=MEASURED | WIDE,
    says="breaks even",
    pays="neither: it breaks even",
    loses="nowhere",
    began=50,
    late=45,
    first="set num_speculative_tokens to 1",
)
def breaks_even(pod):
    serve(pod, engine(0.605), {0.0: 4, 1.0: 6})
    pod.run(50 * MINUTE)


@state(
    seconds=25 * MINUTE,
    settings=MEASURED,
    says="Undecided:",
    pays="undecided",
    loses="nowhere that is certain",
    first="set num_speculative_tokens to 1, or wait: more traffic decides",
)
def undecided(pod):
    serve(pod, engine(0.61), {0.7: 1}, at_once=1)
    pod.run(25 * MINUTE)


@state(
    seconds=45 * MINUTE,
    settings=MEASURED,
    says="Not enough traffic for a verdict",
    pays="unknown: too little traffic",
    loses="unknown",
    first="wait for traffic",
)
def too_little_data(pod):
    serve(pod, engine(0.85, 0.75, law=HEAD), {0.0: 1, 1.0: 1}, every=300.0)
    pod.run(45 * MINUTE)


@state(
    seconds=4 * MINUTE,
    settings=MEASURED,
    says="Not enough traffic for a verdict",
    pays="unknown: too little so far",
    loses="unknown",
    first="wait",
)
def just_started(pod):
    """The sidecar beside a vLLM that has served for a while."""
    pod.start(Load(options=engine(0.85, law=HEAD), traffic=traffic(COLD, at_once=1)))
    pod.run(3 * MINUTE)
    pod.listen()
    pod.run(MINUTE)


@state(
    seconds=42 * MINUTE,
    settings=MEASURED,
    says="no plug-in observes",
    pays="not measured since the plug-in is gone; the acceptance rate is high",
    loses="unknown",
    began=12,
    first="run specdec_doctor in vLLM's container",
)
def plugin_lost(pod):
    """The vLLM has restarted without it."""
    options = engine(0.92, 0.85, law=HEAD)
    serve(pod, options, {0.0: 5, 1.0: 5})
    pod.run(30 * MINUTE)
    pod.start(Load(options=options, traffic=traffic({0.0: 5, 1.0: 5})), has_plugin=False)
    pod.run(12 * MINUTE)


@state(
    seconds=40 * MINUTE,
    says="No plug-in has connected",
    pays="not measured; the acceptance rate is high",
    loses="unknown: no split by temperature",
    began=40,
    first="let vLLM load the plug-in",
)
def no_plugin(pod):
    pod.listen()
    load = Load(options=engine(0.92, 0.85, law=HEAD), traffic=traffic({0.0: 5, 1.0: 5}))
    pod.start(load, has_plugin=False)
    pod.run(40 * MINUTE)


@state(
    seconds=42 * MINUTE,
    settings=MEASURED,
    says="vLLM does not answer",
    pays="unknown: vLLM is down",
    loses="unknown",
    began=12,
    first="see whether vLLM runs, and at this address",
)
def vllm_down(pod):
    serve(pod, engine(0.85, law=HEAD), COLD)
    pod.run(30 * MINUTE)
    pod.stop()
    pod.run(12 * MINUTE)


@state(
    seconds=4 * MINUTE,
    settings=MEASURED,
    says="vLLM does not answer",
    pays="unknown: vLLM has not answered yet",
    loses="unknown",
    began=4,
    first="see whether vLLM is still starting, and at this address",
)
def vllm_loading(pod):
    pod.listen()
    pod.run(4 * MINUTE)


@state(
    seconds=36 * MINUTE,
    settings=MEASURED,
    says="vLLM's engine hangs",
    pays="unknown: the engine hangs",
    loses="unknown",
    began=6,
    first="restart vLLM",
)
def vllm_hangs(pod):
    serve(pod, engine(0.85, law=HEAD), COLD)
    pod.run(30 * MINUTE)
    [one] = pod.engines
    one.hangs = True
    pod.run(6 * MINUTE)


@state(
    seconds=40 * MINUTE,
    settings=MEASURED,
    says="Almost no draft tokens are accepted",
    pays="no: almost no draft token is accepted",
    loses="everywhere",
    began=15,
    first="read a reply; if it is wrong, take the pod out of traffic; restart vLLM",
)
def collapsed(pod):
    """The target's weights were updated in place, and the draft's were not."""
    serve(pod, engine(0.85, 0.75, law=HEAD), {0.0: 5, 1.0: 5})
    pod.run(25 * MINUTE)
    [one] = pod.engines
    one.become(cold_acceptance=0.01, hot_acceptance=0.01)
    pod.run(15 * MINUTE)


@state(
    seconds=55 * MINUTE,
    settings=MEASURED,
    says="Before and after the change",
    pays="yes, since a change",
    loses="nowhere; before the change T 0.7-1",
    began=30,
    first="nothing",
)
def after_a_change(pod):
    """What the finding on greedy drafting asks for was done."""
    mix = {0.0: 5, 1.0: 5}
    serve(pod, engine(0.9, 0.43, draft_sample_method="greedy"), mix)
    pod.run(25 * MINUTE)
    pod.start(Load(options=engine(0.9, 0.8), traffic=traffic(mix), seed=2))
    pod.run(30 * MINUTE)


@state(
    seconds=40 * MINUTE,
    settings=MEASURED,
    says="of the sidecar's own commands",
    pays="yes",
    loses="nowhere",
    began=40,
    first="nothing; a command of the sidecar's own is measuring, which counts in the whole",
)
def measuring(pod):
    mix = {0.0: 5, 1.0: 5}
    serve(pod, engine(0.85, 0.75, law=HEAD), mix)
    pod.run(30 * MINUTE)
    [one] = pod.engines
    one.traffic = traffic(mix, at_once=12, own=0.5)
    pod.run(10 * MINUTE)


@state(
    seconds=30 * MINUTE,
    says="This vLLM does not speculate",
    pays="it does not speculate",
    loses="nowhere",
    first="measure whether speculation would pay: specdec-sidecar sweep",
)
def not_speculating(pod):
    serve(pod, engine(0.85, num_speculative_tokens=0), {0.0: 6, 1.0: 2})
    pod.run(30 * MINUTE)


@state(
    seconds=24 * MINUTE,
    settings=MEASURED,
    says="engine 2",
    pays="in part",
    loses="nowhere that is certain yet; engine 2 accepts far fewer",
    began=24,
    first="drain and restart this vLLM, then compare engine 2 with the others",
)
def several_engines(pod):
    """One of them has lost for some minutes, which its hour does not tell for certain yet."""
    pod.listen()
    pod.start(
        *(
            Load(options=engine(0.9, engine=number), traffic=traffic(COLD), seed=int(number))
            for number in "012"
        )
    )
    pod.run(12 * MINUTE)
    *_, last = pod.engines
    last.become(cold_acceptance=0.4, hot_acceptance=0.4)
    pod.run(12 * MINUTE)


@state(
    seconds=30 * MINUTE,
    settings={
        "plain_steps": {MODEL: plain_steps(), OTHER_MODEL: plain_steps()},
        "limits": {"models": 2},
    },
    says=f"{OTHER_MODEL}: Speculation does not pay",
    pays=f"{MODEL} yes, {OTHER_MODEL} no",
    loses=OTHER_MODEL,
    began=30,
    first=f"fewer draft tokens for {OTHER_MODEL}",
)
def several_models(pod):
    pod.listen()
    pod.start(
        Load(options=engine(0.88), traffic=traffic(COLD), seed=1),
        Load(options=engine(0.42, model_name=OTHER_MODEL), traffic=traffic(COLD), seed=2),
    )
    pod.run(30 * MINUTE)


@state(
    seconds=40 * MINUTE,
    settings=MEASURED,
    says="Speculation loses in part:",
    pays="in part",
    loses="T 0.7-1",
    began=40,
    first="nothing on the whole; fewer draft tokens would help T 0.7-1 at the expense of others",
)
def one_temperature_loses(pod):
    serve(pod, engine(0.93, 0.43), {0.0: 5, 0.3: 3, 1.0: 2})
    pod.run(40 * MINUTE)


_BLOCKS = 375  # of 16 tokens: as many as twelve requests hold


@state(
    seconds=30 * MINUTE,
    settings=MEASURED
    | {"plain_cache": {MODEL: PlainCache(capacity_tokens=int(16 * _BLOCKS * 1.25))}},
    says="KV cache",
    pays="yes, but requests wait for room in the KV cache",
    loses="nowhere",
    began=30,
    first="make room in the KV cache: more GPU memory, a smaller draft, or pods",
)
def kv_cache_full(pod):
    options = engine(0.85, 0.75, law=HEAD, num_gpu_blocks=_BLOCKS, max_num_seqs=12)
    serve(pod, options, {0.0: 5, 1.0: 5}, at_once=30)
    pod.run(30 * MINUTE)


@state(
    seconds=40 * MINUTE,
    settings=MEASURED,
    says='"draft_sample_method": "probabilistic"',
    pays="in part",
    loses="T 0.7-1",
    began=40,
    first='try "draft_sample_method": "probabilistic" on one pod, by what the button copies',
)
def remedy_to_paste(pod):
    serve(pod, engine(0.9, 0.45, draft_sample_method="greedy"), {0.0: 6, 1.0: 4})
    pod.run(40 * MINUTE)

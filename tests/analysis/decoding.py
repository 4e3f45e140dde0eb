"""An engine that decodes at a given load and speed, as its page and its plug-in show it."""

from sidecar.analysis.speed.plain import PlainTime
from sidecar.analysis.speed.steps import Steps, counter_growth, reported_steps
from sidecar.analysis.split.life import NO_STEPS, LifeSteps
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.requests.messages import StepTally

KEY = EngineKey("m", "0")
COUNTED = {  # the field of Steps by which each counter grows
    Counter.FIRST_TOKENS: "first_tokens",
    Counter.TTFT_SECONDS: "first_token_seconds",
    Counter.PROMPT_TOKENS: "prompt_tokens",
}
DRAFTED = {Counter.DRAFTS: "drafts", Counter.DRAFT_TOKENS: "draft_tokens"}


def period(
    running,
    step_seconds,
    *,
    length=1.0,
    engine_steps=100.0,
    prompt_share=0.0,
    drafted=0.0,
    context=100.0,
):
    """``engine_steps`` steps with ``running`` requests in each, which hold ``context`` tokens.

    There are ``drafted`` draft tokens per decode step, and ``prompt_share`` prompt tokens per
    token. A ``context`` of None is unknown.
    """
    decode = running * engine_steps
    return Steps(
        seconds=decode * step_seconds,
        decode_steps=decode,
        engine_steps=engine_steps,
        tokens=decode * length,
        prompt_tokens=prompt_share * decode * length,
        drafts=decode if drafted else 0.0,
        draft_tokens=decode * drafted,
        engine_seconds=engine_steps * step_seconds,
        context_tokens=(context or 0.0) * decode,
        context_steps=decode if context else 0.0,
    )


def plain(seconds, error=0.0):
    """So many plain seconds, with one standard error."""
    return PlainTime(seconds=seconds, deviations=(error,))


def told(steps):
    """Steps as the plug-in counts them."""
    return LifeSteps(
        StepTally(
            steps=steps.engine_steps,
            seconds=steps.engine_seconds,
            decodes=steps.decode_steps,
            request_seconds=steps.seconds,
            tokens=steps.tokens,
            context_tokens=steps.context_tokens,
            drafts=steps.drafts,
        )
    )


class Engine:
    """Counters, poll by poll, and what a plug-in tells; ``run`` ends with a poll."""

    def __init__(self, *, speculating=True, at=1000.0):
        self.at = at
        self.counters = dict.fromkeys((*COUNTED, Counter.GENERATION_TOKENS), 0.0)
        if speculating:
            self.counters |= dict.fromkeys((*DRAFTED, Counter.ACCEPTED_TOKENS), 0.0)
        self.polls = []
        self.told = NO_STEPS  # since the last poll but one
        self._poll()

    def run(self, running, step_seconds, **options):
        """Decodes for a second, as ``period`` has it."""
        self.told = NO_STEPS
        self.add(period(running, step_seconds, engine_steps=1 / step_seconds, **options))
        self.at += 1
        self._poll()

    def add(self, steps):
        """Counts a period of decoding."""
        grown = {counter: getattr(steps, name) for counter, name in (COUNTED | DRAFTED).items()}
        grown[Counter.GENERATION_TOKENS] = steps.tokens + steps.first_tokens
        self.told += told(steps)
        for counter in self.counters:
            self.counters[counter] += grown.get(counter, 0.0)

    def _poll(self):
        self.polls.append(EngineSnapshot(KEY, dict(self.counters), (), {}, {}, None))

    @property
    def steps(self):
        """What was decoded between the last two polls."""
        grown = counter_growth(*(poll.counters for poll in self.polls[-2:]), has_restarted=False)
        return reported_steps(self.told, grown)

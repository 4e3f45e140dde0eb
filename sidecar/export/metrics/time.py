"""Metrics of the time saved and lost against plain decoding; ``running`` is the number of requests in a step."""

from sidecar.analysis.report import ModelReport
from sidecar.export.declaration import Values
from sidecar.export.levels import BASELINE, ENGINE, LOAD, MODEL, TEMPERATURE


def _plain_steps(model: ModelReport) -> Values:
    return {(load.running, "baseline"): load.plain_seconds for load in model.loads}


DECODE_SECONDS = LOAD.counter(
    "decode_seconds", "Time between a request's engine steps, summed over requests.", lambda load: load.seconds
)
DECODE_STEPS = LOAD.counter(
    "decode_steps", "Engine steps, counted once for each request that decoded in them.", lambda load: load.steps
)
DECODE_TOKENS = LOAD.counter(
    "decode_tokens",
    "Tokens generated in these steps, so without each request's first token.",
    lambda load: load.tokens,
)
PLAIN_STEP = MODEL.gauge(
    "plain_step_seconds",
    "Time of an engine step without speculation at this load, by source; absent where it is unknown.",
    _plain_steps,
    "running",
    "reference",
)
BASELINE_TIMESTAMP = BASELINE.gauge(
    "baseline_timestamp_seconds",
    "When the plain step times were measured.",
    lambda baseline: baseline[1].measured.timestamp() if baseline[1] and baseline[1].measured else None,
)
SPEEDUP = TEMPERATURE.gauge(
    "speedup_ratio",
    "Plain time per token / actual over latency_window; above 1, speculation is faster. Absent without a reference.",
    lambda one: one.speedup.ratio if one.speedup else None,
)
ENGINE_SPEEDUP = ENGINE.gauge(
    "engine_speedup_ratio",
    "Plain time per token / actual of all requests over latency_window. Absent without a reference.",
    lambda engine: engine.speed.speedup.ratio if engine.speed and engine.speed.speedup else None,
)
ENGINE_SPEEDUP_ERROR = ENGINE.gauge(
    "engine_speedup_standard_error_ratio",
    "Standard error of specdec_engine_speedup_ratio.",
    lambda engine: engine.speed.speedup.error if engine.speed and engine.speed.speedup else None,
)
BREAK_EVEN_ACCEPTANCE = ENGINE.gauge(
    "break_even_acceptance_ratio",
    "Acceptance rate at which this load is as fast as plain decoding; above 1: no rate is. Absent without a reference.",
    lambda engine: engine.speed.break_even_acceptance if engine.speed else None,
)
TIME_SAVED = TEMPERATURE.counter(
    "time_saved_seconds", "Request-seconds saved against plain decoding.", lambda one: one.saved_seconds
)
TIME_LOST = TEMPERATURE.counter(
    "time_lost_seconds", "Request-seconds lost against plain decoding.", lambda one: one.lost_seconds
)

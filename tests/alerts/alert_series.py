"""Series as a sidecar exports them, written for promtool: one sample a minute."""

from sidecar.settings.groups import Thresholds

JOB = "vllm"
DAY = 1440  # minutes
RUNBOOKS = "https://runbooks.example"
DASHBOARDS = "https://grafana.example"
DRAFT_TOKENS = 3  # a draft


def number(value):
    return f"{value:.12g}"


def counter(*phases, start=0):
    """A counter from phases of (minutes, growth per minute); None as growth: no samples. It falls to 0 at "reset"."""
    parts, value = [f"_x{start}"] if start else [], 0.0
    for phase in phases:
        if phase == "reset":
            value = 0.0
            continue
        minutes, growth = phase
        if growth is None:
            parts.append(f"_x{minutes}")
            continue
        parts.append(f"{number(value)}+{number(growth)}x{minutes - 1}")
        value += growth * minutes
    return " ".join(parts)


def gauge(*phases, start=0):
    """A gauge from phases of (minutes, value); None: no samples."""
    parts = [f"_x{start}"] if start else []
    parts += [f"_x{minutes}" if value is None else f"{number(value)}x{minutes - 1}" for minutes, value in phases]
    return " ".join(parts)


def named(metric, /, **labels):
    pairs = [f'{key}="{value}"' for key, value in labels.items() if value is not None]
    return f"{metric}{{{','.join(pairs)}}}"


class Pod:
    """One sidecar's series; each method adds some and returns the pod, so that a scene reads like a list."""

    def __init__(self, instance, *, model="m", namespace="prod", target=None, minutes=300, start=0, **thresholds):
        self.minutes, self.start = minutes, start
        self.own = {"namespace": namespace, "job": JOB, "instance": f"{instance}:9911"}
        self.target = {"target": target} if target else {}
        self.model = model
        values = Thresholds().model_dump() | thresholds
        self.series = {}
        for name, value in values.items():
            self.add("specdec_threshold", gauge((minutes, value), start=start), name=name)
        self.add("specdec_links_info", gauge((minutes, 1), start=start), runbooks=RUNBOOKS, dashboards=DASHBOARDS)

    def add(self, metric, values, /, **labels):
        self.series[named(metric, **self.own, **labels)] = values
        return self

    def of_model(self, metric, values, /, **labels):
        return self.add(metric, values, **self.target, model_name=self.model, **labels)

    def drafting(
        self, drafts, acceptance, *, engine="0", then=None, minutes=None, requests=10, running=0, k=DRAFT_TOKENS
    ):
        """``drafts`` per second; ``then`` is (acceptance, drafts per second or None) after ``minutes``.

        ``requests`` begin per minute, ``running`` run at any time; ``k`` draft tokens a draft, or two: then the second.
        """
        phases = [(minutes or self.minutes, drafts, acceptance)]
        if then is not None:
            phases.append((self.minutes, then[1], then[0]))
        return self.drafting_in(phases, k, engine, requests, running)

    def days_apart(self, past, now, *, k=DRAFT_TOKENS, minutes=150, drafts=5, requests=10):
        """Drafts for some ``minutes`` at each of two acceptances, a day apart; None: nothing at that time."""
        gap = DAY - minutes
        phases = [(minutes, drafts if past else None, past), (gap, None, None), (150, drafts if now else None, now)]
        return self.drafting_in(phases, (k[0], 0, k[1]) if isinstance(k, tuple) else k, "0", requests, 0)

    def drafting_in(self, phases, k, engine, requests, running):
        """Phases of (minutes, drafts per second, acceptance)."""
        ks = k if isinstance(k, tuple) else [k] * len(phases)
        self._count("specdec_engine_drafts_total", [(m, d) for m, d, _ in phases], engine)
        drafted = [(m, _times(d, k)) for (m, d, _), k in zip(phases, ks, strict=False)]
        self._count("specdec_engine_draft_tokens_total", drafted, engine)
        accepted = [(m, _times(d, k * (a or 0))) for (m, d, a), k in zip(phases, ks, strict=False)]
        self._count("specdec_engine_accepted_tokens_total", accepted, engine)
        minutes = sum(m for m, _, _ in phases)
        self._count("specdec_engine_requests_total", [(minutes, requests / 60)], engine)
        self.of_model("specdec_requests_running", gauge((minutes, running), start=self.start), engine=engine)
        return self

    def generating(self, tokens, *, then=None, minutes=None, engine="0"):
        phases = [(minutes or self.minutes, tokens)] + ([(self.minutes, then)] if then is not None else [])
        self._count("specdec_generation_tokens_total", phases, engine)
        return self

    def bucket(self, temperature, drafts, acceptance, requests=10, *, verdict="net_positive", reset_at=None, then=None):
        """One temperature's work: ``drafts`` per second, ``requests`` per minute; half of it exact, half inferred.

        ``then`` is (minutes, acceptance, drafts per second): what follows after so many minutes.
        """
        for attribution in ("exact", "inferred"):
            labels = {"temperature": temperature, "attribution": attribution}
            minutes, later, more = then or (self.minutes, 0, 0)
            for metric, per_second, after in (
                ("specdec_drafts_total", drafts, more),
                ("specdec_draft_tokens_total", drafts * DRAFT_TOKENS, more * DRAFT_TOKENS),
                ("specdec_accepted_tokens_total", drafts * DRAFT_TOKENS * acceptance, more * DRAFT_TOKENS * later),
            ):
                values = self._growing(per_second / 2, reset_at)
                if then is not None:
                    values = counter((minutes, per_second * 30), (self.minutes - minutes, after * 30))
                self.of_model(metric, values, **labels)
            self.of_model("specdec_request_acceptance_ratio_count", self._growing(requests / 120, reset_at), **labels)
        for one in ("net_positive", "insufficient_data"):
            values = gauge((self.minutes, one == verdict), start=self.start)
            self.of_model("specdec_verdict", values, temperature=temperature, verdict=one)
        return self

    def p10(self, value, minutes=None):
        return self.gauge("specdec_request_acceptance_p10_ratio", (minutes or self.minutes, value))

    def tpot(self, p50, p99, *, then=None, minutes=None, phase="tpot", engine="0"):
        for index, quantile in enumerate(("0.5", "0.99")):
            phases = [(minutes or self.minutes, (p50, p99)[index])] + ([(self.minutes, then[index])] if then else [])
            values = gauge(*phases, start=self.start)
            self.of_model("specdec_engine_latency_seconds", values, engine=engine, phase=phase, quantile=quantile)
        return self

    def baseline(self, p50, p99):
        for quantile, value in (("0.5", p50), ("0.99", p99)):
            labels = {"model_name": self.model, "phase": "tpot", "quantile": quantile}
            self.add("specdec_latency_baseline_seconds", gauge((self.minutes, value), start=self.start), **labels)
        return self

    def gauge(self, metric, *phases, **labels):
        return self.of_model(metric, gauge(*phases, start=self.start), **labels)

    def plain(self, metric, values, **labels):
        """A series of the sidecar itself, without a model."""
        return self.add(metric, values, **self.target, **labels)

    def _growing(self, per_second, reset_at=None):
        if reset_at is None:
            return counter((self.minutes, per_second * 60), start=self.start)
        return counter((reset_at, per_second * 60), "reset", (self.minutes, per_second * 60), start=self.start)

    def _count(self, metric, phases, engine):
        found = [(minutes, None if rate is None else rate * 60) for minutes, rate in phases]
        self.of_model(metric, counter(*found, start=self.start), engine=engine)


def _times(value, factor):
    return None if value is None else value * factor

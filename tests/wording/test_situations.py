"""What page, report and alert say first in two dozen situations, and why that is right.

Each row is judged and searched for findings as the sidecar does it; only the numbers are made up.
The last column is the reason, and says where it was measured.
"""

import re
from dataclasses import dataclass, field, replace
from html import unescape

import pytest

from sidecar.alerting.context import context
from sidecar.analysis.alerts import model_alerts
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.evidence import Evidence, sum_windows
from sidecar.analysis.speed.steps import StepCosts
from sidecar.analysis.values import ModelValues
from sidecar.analysis.verdict import Judge
from sidecar.export.status import status
from sidecar.export.status_page import content
from sidecar.requests.messages import Configuration, Speculation
from sidecar.settings.groups import Thresholds
from specdec_tools.commands.sidecar_status import status_lines
from tests.analysis.staged_findings import found, sums
from tests.export.reports import (
    difference,
    engine,
    group,
    model,
    report,
    shown,
    speed,
    speedup,
    temperature,
    window,
)

HOT = "0.7-1"
DRAFT = Speculation(
    "draft_model",
    3,
    rejection_sample_method="standard",
    draft_sample_method="greedy",
    options='{"method": "draft_model", "model": "/draft", "num_speculative_tokens": 3}',
)
SAMPLED = replace(DRAFT, draft_sample_method="probabilistic")
EAGLE = replace(SAMPLED, method="eagle", keeps_last_block=False)
DFLASH = replace(DRAFT, method="dflash", num_speculative_tokens=15)
STRUCTURED = ("output", "structured")
PROBABILISTIC = '"draft_sample_method": "probabilistic"'
ROUTE = "do not speculate"
FEWER = "Speculate fewer tokens"
ON_V2 = Configuration(model_runner_v2=True, block_size=16)
SHARED_PROMPTS = CacheWindow(40, 40 * 160, 4000, 40 * 160, 0.6 * 40 * 160, 0)


@dataclass(frozen=True)
class Pod:
    """What a pod does: its drafter, and its acceptance rates by temperature.

    ``faster`` is its speedup, None without a baseline; ``lower`` the rates of a group and of the
    others.
    """

    rates: dict = field(default_factory=dict)
    how: Speculation | None = SAMPLED
    positions: tuple = ()  # acceptance rates by position, instead of ``rates``
    tokens: int = 3
    faster: float | None = None
    lower: tuple = ()
    way: str = "plain"
    configuration: Configuration = ON_V2
    changes: dict = field(default_factory=dict)  # of the engine
    costs: StepCosts | None = None
    by_load: dict = field(default_factory=dict)


def _window(pod, rate, share):
    if not pod.positions:
        return _of_many(window(rate, share=share, tokens=pod.tokens))
    accepted = tuple(1000 * rate for rate in pod.positions)
    tokens = len(pod.positions)
    return replace(
        _of_many(window(sum(pod.positions) / tokens, share=share, tokens=tokens)),
        accepted_per_position=accepted,
    )


def _of_many(acceptance):
    """So that the verdict is certain."""
    return replace(acceptance, requests=1000.0)


def judged_model(pod):
    """The model's report, with the verdicts, the advice and the findings on it."""
    rates = pod.rates or {"0": 0.7}
    windows = {label: _window(pod, rate, 1 / len(rates)) for label, rate in rates.items()}
    measured = speedup(10 * pod.faster, 10) if pod.faster else None
    whole = Evidence(
        window=sum_windows(list(windows.values())),
        speedup=measured,
        costs=pod.costs,
        costs_by_load=pod.by_load,
        speculation=pod.how,
        runs_v2=pod.configuration.model_runner_v2,
    )
    values = ModelValues(
        name="demo",
        at=0.0,
        engines=(),
        no_split=None,
        whole=whole,
        temperatures={
            label: Evidence(window=one, speculation=pod.how, speedup=measured)
            for label, one in windows.items()
        },
    )
    judge = Judge(Thresholds(), 300.0)
    judge.judge([values], 0.0)
    judged = judge.judged["demo"]

    groups = ()
    if pod.lower:
        (by, name), rate, others = pod.lower
        lower = difference(rate, others, share=0.5)
        groups = (group(by, name, rate, difference=lower),)

    pods_engine = engine(
        speculation=pod.how,
        configuration=pod.configuration,
        acceptance=whole.window,
        **pod.changes,
    )
    known = speed(10 * pod.faster, 10) if pod.faster else speed()
    tree = model(
        *(
            temperature(label, rate=rates[label], window=one, judgement=judged.temperatures[label])
            for label, one in windows.items()
        ),
        engines=(pods_engine,),
        groups=groups,
        judgement=judged.whole,
        advice=judged.advice,
        speed=known if pod.faster else replace(known, speedup=None, break_even_acceptance=None),
    )
    ways = {label: "greedy" if label == "0" else pod.way for label in rates}
    sampling = {(label, ways[label]): sums(rate) for label, rate in rates.items()}
    return replace(tree, findings=found(tree, sampling))


def said(pod):
    """What the page, the report and a pushed alert say; the alert's is empty if none is due."""
    tree = report(judged_model(pod))
    page = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", content(shown(tree)))))
    printed = " ".join(status_lines(status(shown(tree)), "URL")).replace("`", "")
    pushed = model_alerts(tree.models[0], Thresholds(), has_dropped=False)
    contexts = [context(tree, one).replace("`", "") for one in pushed]
    return page, printed, contexts[0] if contexts else ""


SITUATIONS = [
    ("hot only", Pod({HOT: 0.39}, DRAFT), "greedy_drafting", PROBABILISTIC, ROUTE,
     "sampled drafts: 0.393 became 0.762 and 36.6 ms a token 26.6; to route it away gains nothing"),
    ("hot only, EAGLE-3", Pod({HOT: 0.4}, replace(DRAFT, method="eagle3")),
     "greedy_drafting", PROBABILISTIC, ROUTE, "0.400 became 0.715 on the lab"),
    ("hot only, MTP", Pod({HOT: 0.4}, replace(DRAFT, method="deepseek_mtp")),
     "greedy_drafting", PROBABILISTIC, ROUTE, "vLLM honours the option for MTP"),
    ("mixed", Pod({"0": 0.86, HOT: 0.4}, DRAFT), "greedy_drafting", "3.60 at temperature 0", ROUTE,
     "what requests at temperature 0 accept bounds the gain"),
    ("hot with top-k 20", Pod({HOT: 0.44}, DRAFT, way="filtered"),
     "greedy_drafting", "44% became 67%", ROUTE, "it shrinks the gain: 0.444 became 0.669"),
    ("hot, drafts are sampled", Pod({HOT: 0.45}, SAMPLED), None, FEWER, PROBABILISTIC,
     "the option is set, so the draft is weak"),
    ("hot, block verification", Pod({HOT: 0.45}, replace(DRAFT, rejection_sample_method="block")),
     None, FEWER, PROBABILISTIC, "V1 takes the option with the standard sampler alone"),
    ("DFlash v1", Pod({HOT: 0.12}, DFLASH, tokens=15), None, "Measure a baseline", PROBABILISTIC,
     "it pays at 12 %; sampling took it from 2.96 to 1.16 tokens a step (z-lab/dflash 169)"),
    ("DFlash2", Pod({HOT: 0.3}, replace(DFLASH, draft_architectures=("DFlash2Model",)), tokens=15),
     "greedy_drafting", PROBABILISTIC, ROUTE, "its positions know each other, so sampling gains"),
    ("DFlash without a plug-in", Pod({HOT: 0.12}, None, tokens=15), None,
     "does not tell whether speculation pays", "fewer", "nobody drafts 15 tokens one by one"),
    ("0.32, EAGLE, prefix cache", Pod(how=EAGLE, changes={"cache": SHARED_PROMPTS},
     configuration=Configuration(drops_cache_block=True)),
     "prefix_cache", "disable_eagle_block_drop", ROUTE, "0.520 became 0.780 hits on the lab"),
    ("0.33, EAGLE, prefix cache", Pod(how=EAGLE, changes={"cache": SHARED_PROMPTS},
     configuration=Configuration(drops_cache_block=False, lookahead_hash_tokens=1)),
     None, "pays", "prefix_cache", "it drops nothing: 0.607 with and without the option"),
    ("structured output above break-even",
     Pod({"0": 0.7}, faster=1.59, lower=(STRUCTURED, 0.66, 0.81)),
     None, "Nothing to change: these requests still gain", ROUTE, "66 % where 31 % breaks even"),
    ("structured output below break-even",
     Pod({"0": 0.45}, faster=0.9, lower=(STRUCTURED, 0.2, 0.6)),
     "structured_output", ROUTE, "Nothing to change", "20 % where 31 % breaks even"),
    ("adapter that gains", Pod({"0": 0.7}, faster=1.4, lower=(("adapter", "legal"), 0.55, 0.9)),
     "adapter", "Train a draft for this adapter.", ROUTE, "routed away, it would lose its gain"),
    ("K = 1", Pod({"0": 0.35}, replace(SAMPLED, num_speculative_tokens=1), tokens=1),
     "too_many_tokens", "Remove --speculative-config", 'num_speculative_tokens": 0',
     "there are no fewer tokens than one"),
    ("K = 7", Pod(how=replace(SAMPLED, num_speculative_tokens=7),
     positions=(0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02)),
     "too_many_tokens", '"num_speculative_tokens": 2', ROUTE, "the third is accepted 35 %"),
    ("everything is accepted", Pod({"0": 0.9}), "too_few_tokens", "Raise num_spec", ROUTE,
     "there is more to accept"),
    ("healthy", Pod({"0": 0.75}), None, "pays", "To verify", "nothing to change"),
    ("n-gram", Pod({"0": 0.3}, replace(SAMPLED, method="ngram")), None, "Measure a baseline",
     "fewer", "it drafts for nothing, so a low rate may pay"),
    ("suffix", Pod({"0": 0.3}, replace(SAMPLED, method="suffix")), None, "Measure a baseline",
     "fewer", "likewise"),
    ("adaptive", Pod({HOT: 0.17}, replace(DRAFT, adaptive_verification=True)), None,
     "only a measured speedup decides", PROBABILISTIC,
     "vLLM counts tokens that it did not verify (52992)"),
    ("weak draft", Pod({"0": 0.45}, DRAFT), None, FEWER, PROBABILISTIC,
     "at temperature 0, sampling is the same"),
    ("collapsed", Pod({"0": 0.01, HOT: 0.01}, DRAFT), "mismatch", "replies may be wrong",
     PROBABILISTIC, "empty and garbled replies came with it (spark-vllm-docker 358)"),
    ("it does not speculate", Pod(changes={"undrafted_tokens": 5000.0}), "not_speculating",
     "Look in vLLM's log", ROUTE, "nothing else can be said before it drafts"),
    ("decode pod", Pod({"0": 0.55}, configuration=Configuration(kv_connector_role="kv_consumer")),
     None, "placeholder draft tokens", "To verify", "vLLM 0.32 counts K of them for each request"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "code", "says", "refuted"),
    [pytest.param(*row[1:5], id=row[0]) for row in SITUATIONS],
)
def test_page_report_and_alert_say_first_what_is_right(pod, code, says, refuted):
    """``code`` is the first finding with something to change; nothing shown says ``refuted``."""
    tree = judged_model(pod)
    advised = [finding.code for finding in tree.findings if finding.is_advice]
    page, printed, pushed = said(pod)

    assert advised[:1] == ([code] if code else [])
    assert says in page
    assert says in printed
    for text in filter(None, (page, printed, pushed)):
        assert refuted not in text
    if pushed and code:
        assert f"Why: {_first(tree)}" in pushed


def _first(tree):
    """The beginning of the first finding in the report."""
    (line,) = [
        line
        for line in status_lines(status(shown(report(tree))), "URL")
        if line.startswith(f"  {tree.findings[0].code}: ")
    ]
    return line.partition(": ")[2].replace("`", "")[:60]


def test_each_situation_has_a_reason():
    assert len(SITUATIONS) >= 24
    assert all(row[5] for row in SITUATIONS)

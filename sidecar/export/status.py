"""The report tree as JSON, for users' scripts: ``/api/v1/status``."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

from sidecar import __version__
from sidecar.analysis.engine.latency import Latency
from sidecar.analysis.evidence import Acceptance, Evidence
from sidecar.analysis.judgement import Judgement
from sidecar.analysis.pod_alert import PodAlert
from sidecar.analysis.report import EngineReport, ModelReport, Report, TemperatureReport
from sidecar.analysis.speed.speedup import EngineSpeed
from sidecar.errors import ScrapeError
from sidecar.export.declaration import ReportView
from sidecar.findings.catalog import explanations
from sidecar.findings.ending import endings_sentence
from sidecar.findings.finding import advised
from sidecar.wording.answer import Answer, answer, tone_of
from sidecar.wording.change import change_sentence
from sidecar.wording.checklist import checklist_text
from sidecar.wording.notes import fitting_note, hints, judgement_note, model_notes
from sidecar.wording.plugin import no_split_sentence, plugin_sentence
from sidecar.wording.pressure import tiles
from sidecar.wording.speed import baseline_sentence
from sidecar.wording.tables import tables
from sidecar.wording.verdicts import verdict_words

# What the JSON has elsewhere, so that no number is there twice: windows and speedup are beside the
# judgement, how it speculates is in the engines, and an alert's value is in what it is about. What
# is known of the past, and of requests for findings alone, is too long.
_LEFT_OUT: Final[Mapping[type, frozenset[str]]] = {
    Answer: frozenset({"about"}),
    EngineReport: frozenset({"acceptance"}),
    EngineSpeed: frozenset({"in_force"}),
    Latency: frozenset({"edges"}),
    Evidence: frozenset({"window", "hour", "past", "speedup", "costs", "speculation"}),
    Judgement: frozenset({"acceptance"}),
    ModelReport: frozenset({"sampling", "spreads", "structured_undrafted"}),
    PodAlert: frozenset({"value", "keeps_page", "labels"}),
}


def status(shown: ReportView) -> dict[str, Any]:
    """The tree, with the version of the sidecar, the thresholds in force and the page's sentences.

    Values, including computed ones, have the same names as in the tree
    (``sidecar/analysis/report.py`` explains all). Unknown values are null, never 0.
    """
    report = shown.report
    return {
        "version": __version__,
        "thresholds": shown.settings.thresholds.model_dump(),
        "answer": as_json(answer(report)),
        **as_json(replace(report, models=())),
        "plugin": {
            **as_json(report.plugin),
            "text": plugin_sentence(report.plugin, is_up=report.scrape.up),
        },
        "models": [_model(model, report) for model in report.models],
    }


def _model(model: ModelReport, report: Report) -> dict[str, Any]:
    """A model with the sentences on it and on its temperatures."""
    no_split = [] if model.no_split is None else [no_split_sentence(model.no_split, report.plugin)]
    made = [] if model.plain_steps is None else [baseline_sentence(model.plain_steps, report.at)]

    temperatures = [
        {
            **_judged(item, item.window),
            "note": judgement_note(
                item.judgement, model.judgement, is_explained=bool(advised(model.findings))
            ),
        }
        for item in model.temperatures
    ]

    says = None if model.checklist is None else checklist_text(model.checklist)
    facts = [fitting_note(model), endings_sentence(model)]

    return {
        **_judged(model, model.judgement.evidence.window),
        "engines": [_judged(one, one.judgement.evidence.window) for one in model.engines],
        "pressure": [[one.name, one.number, one.beside] for one in tiles(model)],
        "checklist_text": as_json(says),
        "notes": [*model_notes(model), *no_split],
        "details": [*filter(None, facts), *hints(model), *made],
        "change_text": change_sentence(model),
        "explanations": as_json(tuple(explanations(model))),
        "tables": tables(model),
        "temperatures": temperatures,
    }


def _judged(
    item: ModelReport | EngineReport | TemperatureReport, window: Acceptance
) -> dict[str, Any]:
    """What was judged, with its two windows, and which of these ``judged`` is.

    The verdict is also in the page's words, with its colour: good, likely, even, bad or mute.
    """
    judgement = item.judgement
    evidence = judgement.evidence
    windows = {"window": evidence.window, "hour": evidence.hour}
    judged = next((name for name, one in windows.items() if one is judgement.judged), None)

    return {
        **as_json(item),
        "window": as_json(window),
        "hour": as_json(evidence.hour),
        "judgement": {**as_json(judgement), "judged": judged},
        "words": verdict_words(judgement),
        "tone": tone_of(judgement),
    }


def as_json(value: Any) -> Any:
    """Converts a value of the tree to JSON's types."""
    match value:
        case None | bool() | int():
            converted: Any = value
        case str():
            converted = str(value)  # of an enumeration: its plain string
        case datetime():
            converted = value.timestamp()
        case float():
            converted = value if math.isfinite(value) else None
        case Mapping():
            converted = {_key(key): as_json(item) for key, item in value.items()}
        case ScrapeError():
            converted = {"reason": value.reason, "message": str(value), "remedy": value.remedy}
        case frozenset():
            converted = [as_json(item) for item in sorted(value)]
        case tuple() if not hasattr(value, "_fields"):
            converted = [as_json(item) for item in value]
        case _:
            kind: type = type(value)
            converted = {name: as_json(getattr(value, name)) for name in _names(kind)}

    return converted


def _key(key: Any) -> str:
    return " ".join(key) if isinstance(key, tuple) else str(key)


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass or a named tuple, then its properties."""
    left_out = _LEFT_OUT.get(kind, frozenset())
    own = [one.name for one in fields(kind)] if is_dataclass(kind) else vars(kind)["_fields"]
    properties = (name for name, item in vars(kind).items() if isinstance(item, property))
    return tuple(name for name in (*own, *properties) if name not in left_out)

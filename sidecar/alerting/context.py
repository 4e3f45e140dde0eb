"""The annotation ``context`` of an alert: what the status page says about its model."""

from dataclasses import replace

from sidecar.analysis.pod_alert import Alert, PodAlert
from sidecar.analysis.report import ModelReport, Report
from sidecar.findings.catalog import explanations
from sidecar.findings.ending import EndsBadly
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import advised
from sidecar.wording.answer import answer
from sidecar.wording.notes import model_notes


def context(report: Report, alert: PodAlert) -> str:
    """The status page's answer about the alert's model, the reason, and the model's notes.

    For an alert about vLLM as a whole it is the page's answer alone; for one about replies, it is
    how they end.
    """
    model = report.model(alert.model_name)
    if model is None or alert.alert is Alert.DOWN:
        return _status_answer(report)
    if alert.alert is Alert.OUTPUT_WORSE:
        return _on_replies(model)
    return _on_model(report, model)


def _on_model(report: Report, model: ModelReport) -> str:
    """The answer and the reason, then a line for each note that the answer does not contain."""
    answered = _status_answer(replace(report, models=(model,)))
    why = [_why(finding) for finding in explanations(model)[:1] if finding.remedy]
    notes = [note for note in model_notes(model) if note not in answered]
    return "\n".join((answered, *why, *notes))


def _on_replies(model: ModelReport) -> str:
    """How replies end and what is usual; nothing about drafts, since loops raise acceptance."""
    codes = {finding.code for finding in advised(model.findings) if isinstance(finding, EndsBadly)}
    return "\n".join(one.what for one in explanations(model) if one.code in codes)


def _why(finding: Explanation) -> str:
    """The finding and its remedy, with what to paste."""
    text = f"Why: {finding.what} {finding.remedy}"
    return f"{text}\n{finding.option}" if finding.option else text


def _status_answer(report: Report) -> str:
    shown = answer(report)
    return f"{shown.text} {shown.why}".strip()

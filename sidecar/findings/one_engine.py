"""``one_engine``: one of several engines accepts less than the others."""

from collections.abc import Iterator
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.lower_acceptance import (
    LowerAcceptance,
    both_rates,
    lower_acceptance,
)
from sidecar.settings.groups import Thresholds

_CODE: Final = "one_engine"


def one_engine(model: ModelReport, thresholds: Thresholds) -> Iterator[LowerAcceptance]:
    """The finding, if it is exactly one engine that accepts less.

    Its requests are compared with others that are otherwise alike.
    """
    lower = [
        (engine.key.engine, engine.difference)
        for engine in model.engines
        if engine.difference is not None and engine.difference.is_clearly_lower
    ]
    if len(lower) != 1:
        return

    name, difference = lower[0]
    yield lower_acceptance(_CODE, name, difference, model, thresholds)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _one_engine(finding: LowerAcceptance, _model: ModelReport) -> Explanation:
    return Explanation(
        code=finding.code,
        what=(
            f"Requests on engine {finding.group} accept {both_rates(finding)} on the other engines"
            " that are otherwise alike."
        ),
        remedy=(
            "Drain and restart this vLLM with all its engines. If that does not help, compare the"
            " configuration and GPU of the engine with those of the others."
        ),
        expect="The engines of one vLLM load the same draft, so a difference points to a fault.",
        verify=(
            "`specdec-sidecar report` five minutes after the restart: the finding on engine"
            f" {finding.group} is gone."
        ),
    )


ONE_ENGINE: Final = FindingKind(
    code=_CODE,
    gate=one_engine,
    place=Place.PART,
    explain=_one_engine,
    why="one engine accepts less than the others",
    remedy="drain and restart this vLLM",
    runbook="SpecDecodeMixedWorkload",
)

"""A plan: all that follows from a deployment and the requests it is to serve."""

from dataclasses import dataclass

from specdec_tools.planning.alternatives import Alternative, alternatives
from specdec_tools.planning.memory import Deployment, Room, room
from specdec_tools.planning.rules import (
    PlanVerdict,
    RuleOfThumb,
    checked_rules,
    plan_verdict,
    remarks,
)
from specdec_tools.planning.serving import Serving, command_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``plain_room`` is the room without speculation, None if speculation takes none of it.

    ``command`` is the line for vLLM, None where vLLM would not start. If only memory is short,
    ``alternatives`` are what would fit instead.
    """

    deployment: Deployment
    method: str | None
    context: int
    room: Room
    plain_room: Room | None
    rules: tuple[RuleOfThumb, ...]
    notes: tuple[str, ...]
    command: str | None
    alternatives: tuple[Alternative, ...]
    verdict: PlanVerdict


def make_plan(deployment: Deployment, serving: Serving) -> Plan:
    """The plan for a deployment that serves so."""
    known = room(deployment, serving.context)
    plain = None
    if deployment.takes_room:
        plain = room(deployment.without_draft(), serving.context)

    rules = tuple(checked_rules(deployment, serving, known, plain))
    verdict = plan_verdict(rules)
    starts = verdict != "impossible"
    is_only_short_of_memory = not known.fits and sum(rule.is_refusal for rule in rules) == 1
    return Plan(
        deployment=deployment,
        method=serving.method,
        context=serving.context,
        room=known,
        plain_room=plain,
        rules=rules,
        notes=tuple(remarks(deployment, serving)),
        command=command_line(deployment, serving) if starts else None,
        alternatives=tuple(alternatives(deployment, serving)) if is_only_short_of_memory else (),
        verdict=verdict,
    )

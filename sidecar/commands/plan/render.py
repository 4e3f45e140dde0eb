"""A plan as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sidecar.commands.plan.advice import HEAD_ESTIMATE, Plan, draft_cost
from sidecar.commands.tables import aligned


def as_json(found: Plan, context: int | None) -> dict[str, Any]:
    """The plan as plain JSON values."""
    memory = {name: _rounded(value) for name, value in asdict(found.budget).items()}
    return {
        "deployment": asdict(found.deployment),
        "memory": memory | {"requests_at_context": _requests(found.budget.kv_tokens, context)},
        "checks": [asdict(check) | {"value": _rounded(check.value)} for check in found.checks],
        "verdict": found.fit,
        "reasons": found.reasons,
        "remarks": list(found.remarks),
        "break_even_acceptance": _rounded(draft_cost(found.deployment)),
        "methods": [asdict(method) for method in found.methods],
        "head_estimate": HEAD_ESTIMATE if found.methods else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)  # the rest is noise of binary fractions


def _requests(tokens: float | None, context: int | None) -> int | None:
    return None if tokens is None or context is None else int(tokens // context)


def text(found: Plan, context: int | None) -> Iterator[str]:
    """The memory, the rules, the verdict, and the limits of the rules."""
    yield from (f"{name:<19}{value:>12}  {note}".rstrip() for name, value, note in _memory(found, context))
    yield ""
    checks = [(check.name, check.shown, check.rule, "yes" if check.passed else "NO") for check in found.checks]
    yield from aligned(("rule of thumb", "found", "wanted", "met"), checks)
    if found.remarks:
        yield ""
        yield from (f"note: {remark}" for remark in found.remarks)
    if found.methods:
        yield ""
        yield from _methods(found)
    yield ""
    yield f"verdict: {found.fit}"
    yield from (f"  {reason}" for reason in found.reasons)


def _memory(found: Plan, context: int | None) -> Iterator[tuple[str, str, str]]:
    deployment, memory = found.deployment, found.budget
    target, draft = deployment.target, deployment.draft
    yield ("memory", _gb(memory.memory_gb), f"{deployment.gpus} x {deployment.gpu_gb:g} GB")
    yield ("target", _gb(memory.target_gb), f"{target.billions:.4g}B {target.precision}")
    if draft:
        yield ("draft", _gb(memory.draft_gb), f"{draft.billions:.4g}B {draft.precision}")
    yield ("weights", _gb(memory.weights_gb), "")
    yield ("left", _gb(memory.left_gb), "all memory minus the weights")
    yield ("KV budget", _gb(memory.kv_gb), f"at a utilization of {deployment.utilization:g}")
    if draft:
        yield ("without the draft", _gb(memory.kv_gb_without_draft), "")
    own = "the draft's own KV " + ("included" if draft and draft.kv_bytes else "not known") if draft else ""
    yield ("KV tokens", _count(memory.kv_tokens), own if memory.kv_tokens is not None else "give --kv")
    if draft:
        yield ("without the draft", _count(memory.kv_tokens_without_draft), "")
        yield ("lost to the draft", _count(memory.kv_tokens_lost), "")
    if context is not None:
        yield ("requests at once", _count(_requests(memory.kv_tokens, context)), f"of {context:,} tokens each")
        if draft:
            yield ("without the draft", _count(_requests(memory.kv_tokens_without_draft, context)), "")


def _methods(found: Plan) -> Iterator[str]:
    rows = [
        (
            method.name,
            "in the target" if method.memory_gb is None else _gb(method.memory_gb),
            "yes" if found.budget.kv_gb_without_draft > (method.memory_gb or 0.0) else "NO",
            method.needs,
            method.purpose,
        )
        for method in found.methods
    ]
    yield "methods without a draft model:"
    yield from (f"  {line}" for line in aligned(("method", "memory", "fits", "needs", "suits"), rows, left=range(5)))
    yield f"note: eagle3's memory is {HEAD_ESTIMATE}"


def _gb(value: float) -> str:
    return f"{value:,.1f} GB"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"

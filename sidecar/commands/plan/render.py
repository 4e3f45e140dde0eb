"""A plan as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from sidecar.commands.plan.advice import Plan, draft_cost
from sidecar.commands.plan.methods import HEAD_ESTIMATE, Method
from sidecar.commands.tables import aligned

_NAMES: Final = {
    "kv_budget_gb": "room for a KV cache",
    "size_ratio": "draft to target",
    "draft_share": "draft's share of memory",
    "target_share": "target's share of memory",
    "family": "family",
    "vocab_size": "size of the vocabulary",
    "tokenizer": "tokenizer",
}
_UNITS: Final = {
    "kv_budget_gb": "{:,.1f} GB",
    "size_ratio": "1:{:.1f}",
    "draft_share": "{:.1%}",
    "target_share": "{:.1%}",
}


def as_json(found: Plan, methods: tuple[Method, ...], context: int | None) -> dict[str, Any]:
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
        "methods": [asdict(method) for method in methods],
        "head_estimate": HEAD_ESTIMATE if methods else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)  # the rest is noise of binary fractions


def _requests(tokens: float | None, context: int | None) -> int | None:
    return None if tokens is None or context is None else int(tokens // context)


def text(found: Plan, methods: tuple[Method, ...], context: int | None) -> Iterator[str]:
    """The memory, the rules, the verdict, and the limits of the rules."""
    yield from (f"{name:<19}{value:>12}  {note}".rstrip() for name, value, note in _memory(found, context))
    yield ""
    checks = [
        (_NAMES[check.name], _found(check.name, check.value), check.rule, "yes" if check.passed else "NO")
        for check in found.checks
    ]
    yield from aligned(("rule of thumb", "found", "wanted", "met"), checks)
    if found.remarks:
        yield ""
        yield from (f"note: {remark}" for remark in found.remarks)
    if methods:
        yield ""
        yield from _methods(found, methods)
    yield ""
    yield f"verdict: {found.fit}"
    yield from (f"  {reason}" for reason in found.reasons)


def _found(name: str, value: float) -> str:
    return _UNITS[name].format(value) if name in _UNITS else "the same" if value else "another"


def _memory(found: Plan, context: int | None) -> Iterator[tuple[str, str, str]]:
    deployment, memory = found.deployment, found.budget
    target, draft = deployment.target, deployment.draft
    yield ("memory", f"{memory.memory_gb:,.1f} GB", f"{deployment.gpus} x {deployment.gpu_gb:g} GB")
    yield ("target", f"{memory.target_gb:,.1f} GB", f"{target.billions:.4g}B {target.precision}")
    if draft.billions:
        yield ("draft", f"{memory.draft_gb:,.1f} GB", f"{draft.billions:.4g}B {draft.precision}")
    yield ("weights", f"{memory.weights_gb:,.1f} GB", "")
    yield ("left", f"{memory.left_gb:,.1f} GB", "all memory minus the weights")
    yield ("KV budget", f"{memory.kv_gb:,.1f} GB", f"at a utilization of {deployment.utilization:g}")
    if draft.billions:
        yield ("without the draft", f"{memory.kv_gb_without_draft:,.1f} GB", "")
    own = "the draft's own KV included" if draft.kv_bytes else "the draft's own KV not known" if draft.billions else ""
    yield ("KV tokens", _tokens(memory.kv_tokens), own if memory.kv_tokens is not None else "give --kv")
    if draft.billions:
        yield ("without the draft", _tokens(memory.kv_tokens_without_draft), "")
        yield ("lost to the draft", _tokens(memory.kv_tokens_lost), "")
    if context is not None:
        yield ("requests at once", _tokens(_requests(memory.kv_tokens, context)), f"of {context:,} tokens each")
        if draft.billions:
            yield ("without the draft", _tokens(_requests(memory.kv_tokens_without_draft, context)), "")


def _methods(found: Plan, methods: tuple[Method, ...]) -> Iterator[str]:
    rows = [
        (
            method.name,
            "in the target" if method.memory_gb is None else f"{method.memory_gb:,.1f} GB",
            "yes" if found.budget.kv_gb_without_draft > (method.memory_gb or 0.0) else "NO",
            method.needs,
            method.purpose,
        )
        for method in methods
    ]
    yield "methods without a draft model:"
    yield from (f"  {line}" for line in aligned(("method", "memory", "fits", "needs", "suits"), rows, left=range(5)))
    yield f"note: eagle3's memory is {HEAD_ESTIMATE}"


def _tokens(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"

"""A plan as text and as JSON."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from sidecar.commands.plan.advice import Plan
from sidecar.commands.plan.memory import Budget
from sidecar.commands.tables import aligned, count


def as_json(found: Plan) -> dict[str, Any]:
    """The plan as plain JSON values."""
    return asdict(found) | {"reasons": found.reasons}


def text(found: Plan) -> Iterator[str]:
    """The memory, the rules, the methods, the verdict, and the limits of the rules."""
    yield from _weights(found)
    yield ""
    yield from aligned(*_cache(found))
    yield ""
    checks = [(check.name, check.shown, check.rule, "yes" if check.passed else "NO") for check in found.checks]
    yield from aligned(("rule of thumb", "found", "wanted", "met"), checks)
    if found.methods:
        yield ""
        yield from _methods(found)
    yield ""
    yield from (f"note: {remark}" for remark in found.remarks)
    yield ""
    yield f"verdict: {found.verdict}"
    yield from (f"  {reason}" for reason in found.reasons)


def _weights(found: Plan) -> list[str]:
    deployment, memory = found.deployment, found.memory
    rows = [("memory", memory.memory_gb, f"{deployment.gpus} x {deployment.gpu_gb:g} GB")]
    for name, model in (("target", deployment.target), ("draft", deployment.draft)):
        if model is not None:
            rows.append((name, model.weights_gb, f"{model.billions:.4g}B {model.precision}"))
    rows += [("weights", memory.weights_gb, ""), ("left", memory.left_gb, "all memory minus the weights")]
    return [f"{name:<8}{_gb(size):>12}  {note}".rstrip() for name, size, note in rows]


def _cache(found: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is left for the KV cache: a header and rows; with a draft, also without it, and the difference."""
    context, with_draft, without = found.deployment.context, found.memory, found.memory_without_draft
    columns = ("with the draft", "without it", "lost") if without else ("",)

    def row(name: str, read: Callable[[Budget], float | None], show: Callable[[float], str]) -> list[tuple[str, ...]]:
        found = [read(one) for one in (with_draft, without) if one is not None]
        known = [one for one in found if one is not None]
        lost = [known[1] - known[0]] if len(known) == 2 else []
        return [(name, *map(show, (*known, *lost)))] if known else []

    return (f"at a utilization of {found.deployment.utilization:g}", *columns), [
        *row("KV cache", lambda one: one.kv_gb, _gb),
        *row("KV tokens", lambda one: one.kv_tokens, count),
        *row(f"requests of {context or 0:,} tokens", lambda one: one.requests_at_context, count),
    ]


def _methods(found: Plan) -> Iterator[str]:
    rows = [
        (
            method.name,
            "in the target" if method.memory_gb is None else _gb(method.memory_gb),
            "yes" if found.memory.kv_gb > (method.memory_gb or 0.0) else "NO",
            method.needs,
            method.purpose,
        )
        for method in found.methods
    ]
    yield "methods without a draft model:"
    yield from (f"  {line}" for line in aligned(("method", "memory", "fits", "needs", "suits"), rows, left=range(5)))


def _gb(value: float) -> str:
    return f"{value:,.1f} GB"

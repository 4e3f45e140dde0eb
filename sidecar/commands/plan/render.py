"""A plan as text."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from sidecar.commands.plan.advice import METHODS, checks, remarks, verdict
from sidecar.commands.plan.memory import Budget, Deployment, budget
from sidecar.commands.tables import aligned, count


def text(deployment: Deployment, context: int | None) -> Iterator[str]:
    """The memory, the cache, the rules, the methods, the caveats, and the verdict.

    ``context`` is the length of the requests to count, if any.
    """
    found = budget(deployment)
    rules = list(checks(deployment, found))
    yield from _weights(deployment, found)
    yield ""
    yield from aligned(*_cache(deployment, found, context))
    yield ""
    rows = [(rule.name, rule.found, rule.rule, "yes" if rule.passed else "NO") for rule in rules]
    yield from aligned(("rule of thumb", "found", "wanted", "met"), rows)
    if deployment.draft is None:
        yield ""
        yield "methods without a draft model:"
        yield from (f"  {line}" for line in aligned(("method", "needs", "suits"), METHODS, left=range(3)))
    notes = [f"note: {remark}" for remark in remarks(deployment.target, deployment.draft)]
    yield from ("", *notes) if notes else ()
    yield ""
    yield f"verdict: {verdict(found, rules)}"
    yield from (f"  {rule.remedy}" for rule in rules if not rule.passed)


def _weights(deployment: Deployment, found: Budget) -> list[str]:
    rows = [("memory", found.memory_gb, f"{deployment.gpus} x {deployment.gpu_gb:g} GB")]
    for name, model in (("target", deployment.target), ("draft", deployment.draft)):
        if model is not None:
            rows.append((name, model.weights_gb, f"{model.billions:.4g}B {model.precision}"))
    rows += [("weights", found.weights_gb, ""), ("left", found.left_gb, "all memory minus the weights")]
    return [f"{name:<8}{_gb(size):>12}  {note}".rstrip() for name, size, note in rows]


def _cache(deployment: Deployment, found: Budget, context: int | None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is left for the KV cache, as a header and rows; with a draft, also without it, and the difference."""
    budgets = [found]
    columns: tuple[str, ...] = ("",)
    if deployment.draft is not None:
        budgets.append(budget(replace(deployment, draft=None)))
        columns = ("with the draft", "without it", "lost")

    def row(name: str, read: Callable[[Budget], float], show: Callable[[float], str]) -> tuple[str, ...]:
        values = [read(one) for one in budgets]
        lost = [values[1] - values[0]] if len(values) == 2 else []
        return (name, *map(show, (*values, *lost)))

    rows = [row("KV cache", lambda one: one.kv_gb, _gb)]
    if found.kv_tokens is not None:
        rows.append(row("KV tokens", lambda one: one.kv_tokens or 0.0, count))
        if context is not None:
            rows.append(row(f"requests of {context:,} tokens", lambda one: (one.kv_tokens or 0.0) // context, count))
    return (f"at a utilization of {deployment.utilization:g}", *columns), rows


def _gb(value: float) -> str:
    return f"{value:,.1f} GB"

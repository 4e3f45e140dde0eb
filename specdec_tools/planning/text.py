"""A plan as text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sidecar.wording.numbers import aligned, count
from specdec_tools.planning.alternatives import MOST_GPUS, Alternative
from specdec_tools.planning.memory import Deployment, Room
from specdec_tools.planning.plan import Plan
from specdec_tools.planning.shape import ModelShape

# Those without a draft model: name, what they need, and what they suit. The head's sizes are those
# of SpecForge's layout at the dimensions of Llama 3.1.
_METHODS: Final = (
    (
        "eagle3",
        "a head trained for this target: 0.4B for 8B, 1.4B for 70B",
        "chat and code at low to medium load",
    ),
    ("mtp", "a target with MTP layers of its own", "DeepSeek, GLM, MiMo, Qwen3-Next and similar"),
    ("ngram", "nothing", "output that repeats its prompt: code edits, extraction, summaries"),
    (
        "suffix",
        "a Python package, and host memory",
        "output that repeats earlier ones: agents, templates",
    ),
)


def plan_text(plan: Plan) -> Iterator[str]:
    """The memory, the cache, the rules, the caveats, the line for vLLM and the verdict.

    Where vLLM would not start, what would fit takes the place of the line.
    """
    yield from _weights(plan.deployment)
    yield ""
    yield from _cache(plan)
    yield ""
    rows = [
        (rule.name, rule.found, rule.wanted, "yes" if rule.met else "NO", rule.source)
        for rule in plan.rules
    ]
    yield from aligned(("rule of thumb", "found", "wanted", "met", "source"), rows, left=(0, 4))

    if plan.method is None:
        yield ""
        yield "methods without a draft model:"
        methods = aligned(("method", "needs", "suits"), _METHODS, left=range(3))
        yield from (f"  {line}" for line in methods)

    if plan.notes:
        yield ""
        yield from (f"note: {note}" for note in plan.notes)

    yield ""
    yield from _alternatives(plan) if plan.command is None else (plan.command,)
    yield ""
    yield f"verdict: {plan.verdict}"
    yield from (f"  {rule.remedy}" for rule in plan.rules if not rule.met)


def _weights(deployment: Deployment) -> Iterator[str]:
    target = deployment.target
    draft = deployment.draft
    gpu = deployment.gpu
    gpus = f"{deployment.gpus} x {gpu.nominal_gb:g} GB"
    if gpu.nominal_gb != gpu.pytorch_gb:
        gpus += f", nominal ({gpu.pytorch_gb:.1f} GB each for PyTorch)"
    rows = [("memory", deployment.memory_gb, gpus)]
    rows.append(("target", target.weights_gb, _about(target)))

    if draft is not None:
        copies = deployment.gpus // deployment.draft_parallel
        note = _about(draft)
        rows.append(
            ("draft", deployment.draft_gb, f"{note}, {copies} copies" if copies > 1 else note)
        )

    rows.append(("weights", deployment.weights_gb, ""))
    rows.append(("left", deployment.left_gb, "all memory minus the weights"))
    if deployment.draft_logits:
        rows.append(("logits", deployment.logits_gb, "of a draft that samples, on each GPU"))

    yield from (f"{name:<8}{_gb(size):>12}  {note}".rstrip() for name, size, note in rows)


def _about(model: ModelShape) -> str:
    if model.parameters is None:
        return f"on disk, {model.precision}"

    size = f"{model.parameters / 1e9:.4g}B"
    if model.parameters < 1e9:
        size = f"{model.parameters / 1e6:.4g}M"
    about = f"{size} {model.precision}"
    if not model.is_moe or model.active_billions is None:
        return about
    return f"{about}, {model.active_billions:.3g}B active"


def _cache(plan: Plan) -> list[str]:
    """What is left for the KV cache; with speculation, also without it, and the difference."""
    deployment = plan.deployment
    columns: tuple[str, ...] = ("",)
    if plan.plain_room is not None:
        columns = ("with speculation", "without it", "lost")

    def row(name: str, read: Callable[[Room], float | None], show: Callable[[float], str]) -> None:
        with_draft = read(plan.room)
        if with_draft is None:
            return
        if plan.plain_room is None:
            rows.append((name, show(with_draft)))
            return

        without = read(plan.plain_room)
        if without is not None:
            rows.append((name, show(with_draft), show(without), show(without - with_draft)))

    rows: list[Sequence[str]] = []
    row("KV cache", lambda one: one.gb, _gb)
    row("KV tokens", lambda one: one.tokens, count)
    row(f"requests of {plan.context:,} tokens", lambda one: one.requests, count)
    if plan.room.bytes_per_sequence:
        plain = () if plan.plain_room is None else (_states(plan, plan.plain_room), "")
        rows.append(("states of a request", _states(plan, plan.room), *plain))

    found = _gb(deployment.pytorch_gb)
    source = f"at a utilization of {deployment.utilization:g} of {found}"
    if deployment.available_gib is not None:
        source = "by vLLM's own log"

    return aligned((source, *columns), rows)


def _states(plan: Plan, room: Room) -> str:
    """What the states of one request take on all GPUs."""
    return _gb(plan.deployment.gpus * (room.bytes_per_sequence or 0.0) / 1e9)


def _alternatives(plan: Plan) -> Iterator[str]:
    """What would fit, each with the option of ``plan`` that prints its line for vLLM."""
    refusals = [rule for rule in plan.rules if rule.is_refusal]
    if plan.room.fits or len(refusals) > 1:
        yield "vLLM would not start: first change what the verdict names"
        return

    if not plan.alternatives:
        yield (
            "vLLM would not start, and none of the changes that plan tries is enough alone "
            f"(context, KV precision, quantization, no draft, up to {MOST_GPUS} GPUs): "
            "combine two, or use a smaller target"
        )
        return

    deployment = plan.deployment
    counts_activations = deployment.overhead_gb > 0 or deployment.available_gib is not None
    condition = "Each of these changes would fit"
    if not counts_activations:
        condition = "Not counting activations (set --overhead), each of these changes would fit"

    yield "vLLM would not start."
    yield f"{condition}; run `plan` again with one of them for vLLM's line:"
    rows = [(one.change, one.option, _gb(one.room.gb), _requests(one)) for one in plan.alternatives]
    header = ("change", "option", "KV cache", "requests")
    table = aligned(header, rows, left=(0, 1))
    yield from (f"  {line}" for line in table)


def _requests(alternative: Alternative) -> str:
    """How many requests of its whole context fit at once."""
    requests = alternative.room.requests
    return "-" if requests is None else f"{requests:,} of {alternative.context:,} tokens"


def _gb(value: float) -> str:
    return f"{value:,.1f} GB" if abs(value) >= 1 else f"{value:.3f} GB"

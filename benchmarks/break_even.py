"""How often the break-even range by the sizes of the models holds what was measured.

    python -m benchmarks.break_even

The pairs are those of the lab, by their clients' speedups in docs/measurements/speedup.md, and
published ones, of vLLM's issues. With L tokens a step and a speedup of s, L / s tokens a step break
even, so the acceptance rate (L / s - 1) / K. The range is the one that the sidecar shows while
nothing is measured, unless it is too wide ("shown"). Prints the table of
docs/measurements/break-even.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from sidecar.analysis.speed.estimate import Unsized, estimate, range_by_sizes
from sidecar.analysis.speed.steps import Steps
from sidecar.requests.messages import Configuration, Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was measured at one load.

    ``length`` is L, tokens a step and request; ``drafted`` the tokens drafted for each of them.
    ``plain`` is the milliseconds of a plain step, ``context`` what a request holds, in tokens.
    """

    requests: float
    drafted: float
    length: float
    speedup: float
    plain: float
    context: float = 100.0

    @property
    def break_even(self) -> float:
        """The acceptance rate that breaks even."""
        return (self.length / self.speedup - 1) / self.drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target and what drafts for it, if a model does."""

    name: str
    method: str
    target: Mapping[str, int]
    cells: Sequence[Cell]
    draft: Mapping[str, int] = field(default_factory=dict)
    device: str = "cuda"

    def range(self, cell: Cell) -> tuple[float, float]:
        """The range by the sizes, however wide."""
        found = range_by_sizes(*self._told(), self._steps(cell))
        if isinstance(found, Unsized):
            raise TypeError(self.name)
        return found.low, found.high

    def is_shown(self, cell: Cell) -> bool:
        """Whether the range is narrow enough to be told."""
        found = estimate(*self._told(), self._steps(cell))
        return found is not None and found.unsized is None

    def _told(self) -> tuple[Speculation, Configuration]:
        how = Speculation(self.method, 3, draft_sizes={**self.draft})
        return how, Configuration(device=self.device, sizes={**self.target})

    def _steps(self, cell: Cell) -> Steps:
        return Steps(
            seconds=1.0,
            decode_steps=cell.requests,
            engine_steps=1.0,
            tokens=cell.requests * cell.length,
            drafts=cell.requests * min(cell.drafted, 1.0),
            draft_tokens=cell.requests * cell.drafted,
            engine_seconds=cell.plain / 1000 * cell.length / cell.speedup,
            context_tokens=cell.requests * cell.context,
            context_steps=cell.requests,
        )

    def is_held(self, cell: Cell) -> bool:
        """Whether the range has what was measured."""
        low, high = self.range(cell)
        return low <= cell.break_even <= high


# The dimensions in the models' configurations; the lab's are those that lab/models.py makes.
_LAB: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 326,
}
_LAB_DRAFT: Final = _LAB | {"intermediate_size": 256, "num_hidden_layers": 1}
_LAB_WIDE: Final = _LAB_DRAFT | {"num_key_value_heads": 16}
_LAB_MTP: Final = _LAB | {
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
}
LLAMA_8B: Final = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
_LLAMA_HEAD: Final = LLAMA_8B | {"num_hidden_layers": 1}
_MINICPM3_4B: Final = {
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "vocab_size": 73448,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
_MINICPM3_HEAD: Final = {
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 1,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "head_dim": 64,
    "vocab_size": 73448,
}
# Milliseconds of target-large's plain steps on the lab by the requests running: those of "Mixed
# traffic by temperature". target-mtp has three layers; its steps, and those in 32 bits on one core
# of "Cell by cell", are assumed.
_PLAIN: Final = {1: 12.4, 4: 18.0, 8: 25.7, 16: 44.6}
_PLAIN_MTP: Final = {1: 6.0, 4: 9.0}
_PLAIN_ONE_CORE: Final = {1: 50.0, 4: 60.0, 8: 75.0, 16: 110.0}
# Acceptance by K at T 0.2, 0.6 and 1.2, where a table has only speedups: that of the same
# models and temperatures in the table of methods.
_RATES: Final = (0.68, 0.54, 0.33)


_ONE_CORE: Final = {
    (1, 1): ((0.88, 0.70, 0.57, 0.67), (1.49, 1.67, 1.36, 1.53)),
    (1, 4): ((0.85, 0.76, 0.59, 0.71), (1.37, 1.29, 1.15, 1.29)),
    (1, 8): ((0.86, 0.74, 0.57, 0.70), (1.20, 1.21, 1.17, 1.24)),
    (1, 16): ((0.84, 0.71, 0.57, 0.72), (1.10, 0.98, 1.10, 1.03)),
    (3, 1): ((0.74, 0.52, 0.33, 0.52), (2.53, 2.18, 1.60, 2.09)),
    (3, 4): ((0.68, 0.55, 0.33, 0.51), (1.63, 1.46, 1.16, 1.47)),
    (3, 8): ((0.68, 0.56, 0.32, 0.50), (1.41, 1.30, 1.00, 1.23)),
    (3, 16): ((0.70, 0.55, 0.33, 0.50), (1.18, 1.10, 0.95, 0.97)),
    (5, 1): ((0.59, 0.43, 0.22, 0.35), (2.73, 2.54, 1.52, 2.04)),
    (5, 4): ((0.58, 0.39, 0.23, 0.41), (1.74, 1.40, 1.03, 1.43)),
    (5, 8): ((0.58, 0.44, 0.23, 0.37), (1.41, 1.25, 0.95, 1.17)),
    (5, 16): ((0.57, 0.43, 0.23, 0.40), (1.14, 0.98, 0.81, 0.94)),
}
_MIXED: Final = {
    1: (2.04, 1.71, 1.36),
    4: (1.49, 1.28, 0.97),
    8: (1.23, 1.04, 0.81),
    16: (1.28, 1.08, 0.83),
}


def _by_rate(
    requests: int, drafted: int, rates: Sequence[float], speedups: Sequence[float], plain: float
) -> Iterator[Cell]:
    """Cells by acceptance rate, whose steps all have a draft."""
    for rate, speedup in zip(rates, speedups, strict=True):
        length = 1 + drafted * rate
        yield Cell(requests=requests, drafted=drafted, length=length, speedup=speedup, plain=plain)


def _by_method(
    tokens: int,
    rates: Sequence[float],
    one: Sequence[float],
    four: Sequence[float],
    plain: Mapping[int, float] = _PLAIN,
) -> list[Cell]:
    """A row of the lab's table of methods: by temperature, one request and four."""
    return [
        *_by_rate(1, tokens, rates, one, plain[1]),
        *_by_rate(4, tokens, rates, four, plain[4]),
    ]


def _at_context(length: float, found: Mapping[tuple[int, int], tuple[float, float]]) -> list[Cell]:
    """By requests and prompt: speedup, and milliseconds a token without speculation."""
    return [
        Cell(
            requests=requests,
            drafted=3,
            length=length,
            speedup=speedup,
            plain=plain,
            context=prompt + 60,
        )
        for (requests, prompt), (speedup, plain) in found.items()
    ]


def _of_20780(lengths: Sequence[float], tpots: Sequence[float]) -> list[Cell]:
    """One request, K from 2 on, 7.07 ms a token without speculation."""
    return [
        Cell(
            requests=1,
            drafted=tokens,
            length=length,
            speedup=7.07 / tpot,
            plain=7.07,
            context=500,
        )
        for tokens, (length, tpot) in enumerate(zip(lengths, tpots, strict=True), start=2)
    ]


def _lab(
    what: str,
    method: str,
    cells: Sequence[Cell],
    draft: Mapping[str, int] | None = None,
    target: Mapping[str, int] = _LAB,
) -> Pair:
    return Pair(
        name=f"lab, {method}{what}",
        method=method,
        target=target,
        draft=draft or {},
        device="cpu",
        cells=cells,
    )


LAB: Final = (
    _lab(
        "",
        "draft_model",
        _by_method(3, _RATES, (2.36, 1.84, 1.42), (1.44, 1.27, 0.94)),
        _LAB_DRAFT,
    ),
    _lab(
        ", other runs, 1 to 16 requests",
        "draft_model",
        [
            cell
            for requests, found in _MIXED.items()
            for cell in _by_rate(requests, 3, _RATES, found, _PLAIN[requests])
        ],
        _LAB_DRAFT,
    ),
    _lab(
        ", K = 1, 3 and 5, 1 to 16 requests, 32 bits on one core",
        "draft_model",
        [
            cell
            for (tokens, requests), (rates, speedups) in _ONE_CORE.items()
            for cell in _by_rate(requests, tokens, rates, speedups, _PLAIN_ONE_CORE[requests])
        ],
        _LAB_DRAFT,
    ),
    _lab(
        ", prompts of 20 and 1,900 tokens, 4 and 8 requests",
        "draft_model",
        [
            *_at_context(
                2.62,
                {
                    (4, 20): (1.125, 34.5),
                    (8, 20): (0.969, 49.1),
                    (4, 1900): (1.114, 52.2),
                    (8, 1900): (0.972, 76.9),
                },
            ),
            *_at_context(
                2.62, {(4, 20): (1.27, 21.0), (4, 1900): (0.91, 36.0), (8, 1900): (0.70, 47.0)}
            ),
        ],
        _LAB_DRAFT,
    ),
    _lab(
        "",
        "eagle",
        _by_method(3, (0.68, 0.54, 0.34), (2.22, 1.89, 1.49), (1.47, 1.26, 0.95)),
        _LAB_DRAFT,
    ),
    _lab(
        "",
        "eagle3",
        _by_method(3, (0.67, 0.53, 0.31), (2.20, 1.76, 1.32), (1.23, 1.10, 0.79)),
        _LAB_WIDE,
    ),
    _lab(
        ", prompts of 20 and 1,900 tokens, 4 requests",
        "eagle3",
        _at_context(2.59, {(4, 20): (1.015, 34.4), (4, 1900): (0.834, 52.4)}),
        _LAB_WIDE,
    ),
    _lab(
        "",
        "mtp",
        _by_method(3, (0.58, 0.51, 0.33), (1.16, 1.03, 0.78), (0.85, 0.79, 0.61), _PLAIN_MTP),
        target=_LAB_MTP,
    ),
)
PUBLISHED: Final = (
    Pair(
        name="Llama 3.1 8B, EAGLE, K = 2 to 7 (vLLM issue 20780)",
        method="eagle",
        target=LLAMA_8B,
        draft=_LLAMA_HEAD,
        cells=_of_20780((2.1, 2.29, 2.39, 2.43, 2.45, 2.47), (4.37, 4.29, 4.48, 4.71, 4.94, 5.2)),
    ),
    Pair(
        name="Llama 3.1 8B, EAGLE-3, K = 2 to 7 (the same)",
        method="eagle3",
        target=LLAMA_8B,
        draft=_LLAMA_HEAD | {"draft_vocab_size": 32000},
        cells=_of_20780((2.36, 2.79, 3.08, 3.32, 3.46, 3.54), (4.32, 4.09, 4.05, 4.13, 4.20, 4.29)),
    ),
    Pair(
        name="Llama 3 8B, EAGLE, K = 2 and 4 (vLLM pull request 16035)",
        method="eagle",
        target=LLAMA_8B,
        draft=_LLAMA_HEAD,
        cells=[
            Cell(requests=1, drafted=2, length=1.89, speedup=1.364, plain=7.77, context=300),
            Cell(requests=1, drafted=4, length=2.08, speedup=1.288, plain=7.77, context=300),
        ],
    ),
    Pair(
        name="MiniCPM3 4B, EAGLE-3, K = 6, 1 and 10 requests, RTX 4090 (vLLM pull request 24243)",
        method="eagle3",
        target=_MINICPM3_4B,
        draft=_MINICPM3_HEAD,
        cells=[
            Cell(requests=1, drafted=6, length=2.44, speedup=1.705, plain=17.6, context=500),
            Cell(requests=10, drafted=6, length=2.47, speedup=1.62, plain=20.2, context=500),
        ],
    ),
)


def lines() -> Iterator[str]:
    """The table, a row a pair."""
    yield "| pair | held | shown | range by the sizes: lows, highs | measured | median width |"
    yield "|---|---|---|---|---|---|"
    for pair in (*LAB, *PUBLISHED):
        found = [pair.range(cell) for cell in pair.cells]
        held = sum(map(pair.is_held, pair.cells))
        shown = sum(map(pair.is_shown, pair.cells))
        low = _span([low for low, _ in found])
        high = _span([high for _, high in found])
        measured = _span([cell.break_even for cell in pair.cells])
        width = median(high - low for low, high in found)
        yield (
            f"| {pair.name} | {held} of {len(pair.cells)} | {shown} | {low}, {high} | {measured} |"
            f" {100 * width:.0f} points |"
        )


def _span(rates: Sequence[float]) -> str:
    low, high = (f"{100 * rate:.0f}" for rate in (min(rates), max(rates)))
    return f"{low} %" if low == high else f"{low} to {high} %"


if __name__ == "__main__":
    print("\n".join(lines()))

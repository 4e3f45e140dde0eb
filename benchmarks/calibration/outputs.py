"""Pairs of servers for ``fidelity``: their outputs, and what the command's arithmetic says of them.

Each server adds numerics of its own to the logits, the reference other ones where it is asked with
another number in flight. So the tested server differs from the reference as the control does.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from benchmarks.calibration.models import Fault, Model
from specdec_tools.outputs.greedy import compare_greedy, control_of
from specdec_tools.outputs.replies import GreedyReply
from specdec_tools.outputs.result import Asked, Fidelity, Required, Server
from specdec_tools.outputs.sampled import compare_sampled

SAMPLED_TOKENS: Final = 5  # the command's default: three draft tokens and two more
# Nat, the mean of the gap between the two likeliest tokens. With numerics of 0.047 nat, 0.9 % of
# the tokens part, as on the lab (docs/measurements/fidelity.md).
_GAP: Final = 4.0
_CHOICES: Final = 6  # tokens that matter to a greedy output


@dataclass(frozen=True)
class Pair:
    """A tested server and its reference.

    ``numerics`` is the standard deviation of what each adds to a logit, in nat; ``under_load`` what
    the reference and the tested server do wrong alike at the full number in flight.
    """

    numerics: float = 0.0
    fault: Fault | None = None
    under_load: Fault | None = None
    prompts: int = 20
    samples: int = 1000

    def sampled(self, seed: int) -> Fidelity:
        """Samples of both and of the control, compared."""
        servers = (
            Model(seed, "tested", self.numerics, self.fault or self.under_load),
            Model(seed, "reference", self.numerics, self.under_load),
            Model(seed, "control", self.numerics),
        )
        outputs = []
        for server in servers:
            random = Random(f"{seed} {server.server} draws")
            outputs.append(
                [
                    server.samples(random, prompt, self.samples, SAMPLED_TOKENS)
                    for prompt in range(self.prompts)
                ]
            )
        return _fidelity(sampled=compare_sampled(*outputs))

    def without_control(self, seed: int) -> bool:
        """Whether the tests alone, without a control, call them different."""
        servers = (
            Model(seed, "tested", self.numerics, self.fault),
            Model(seed, "reference", self.numerics),
        )
        outputs = []
        for server in servers:
            random = Random(f"{seed} {server.server} draws")
            outputs.append(
                [
                    server.samples(random, prompt, self.samples, SAMPLED_TOKENS)
                    for prompt in range(self.prompts)
                ]
            )
        return compare_sampled(*outputs).differs


@dataclass(frozen=True)
class GreedyPair:
    """Greedy outputs of a tested server, the reference and its control.

    ``wrong`` is the share of tokens at which the tested server puts out the second one.
    """

    numerics: float = 0.0
    wrong: float = 0.0
    prompts: int = 20
    tokens: int = 128

    def compared(self, seed: int) -> Fidelity:
        """What the command says of them."""
        replies = {
            server: [self._reply(seed, server, prompt) for prompt in range(self.prompts)]
            for server in ("tested", "reference", "control")
        }
        reference = replies["reference"]
        return _fidelity(
            greedy=compare_greedy(replies["tested"], reference),
            control=control_of(replies["control"], reference),
        )

    def _reply(self, seed: int, server: str, prompt: int) -> GreedyReply:
        tokens: list[int] = []
        likely = []
        faults = Random(f"{seed} {prompt} faults")
        for _ in range(self.tokens):
            exact = _greedy_logits(seed, prompt, tuple(tokens[-8:]), len(tokens))
            moved = Random(f"{server} {seed} {prompt} {tokens[-8:]} {len(tokens)}")
            logits = [logit + moved.gauss(0, self.numerics) for logit in exact]
            whole = math.log(sum(map(math.exp, logits)))
            order = sorted(range(_CHOICES), key=logits.__getitem__, reverse=True)
            is_wrong = faults.random() < self.wrong and server == "tested"
            tokens.append(order[1] if is_wrong else order[0])
            likely.append({token: logits[token] - whole for token in order})
        return GreedyReply(tuple(tokens), tuple(likely))


@lru_cache(maxsize=100_000)
def _greedy_logits(seed: int, prompt: int, beginning: tuple[int, ...], place: int) -> list[float]:
    """The gap between the two likeliest is exponential, so that some are near ties."""
    random = Random(f"{seed} {prompt} {beginning} {place}")
    first = random.expovariate(1 / _GAP)
    logits = [first, 0.0, *(-random.expovariate(0.5) for _ in range(_CHOICES - 2))]
    random.shuffle(logits)
    return logits


def _fidelity(**compared: object) -> Fidelity:
    server = Server("http://one", "m")
    asked = Asked(
        prompts=20,
        contexts=None,
        max_tokens=128,
        sampled_tokens=SAMPLED_TOKENS,
        temperature=1.0,
        extra_body={},
    )
    parts = {"greedy": None, "control": None, "sampled": None} | compared
    return Fidelity(tested=server, reference=server, asked=asked, **parts)  # type: ignore[arg-type]


DEFAULTS: Final = Required(0.05)
"""What the command requires unless told otherwise."""

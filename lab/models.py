"""Makes the lab's models: ``python -m lab.models FOLDER``, by the Python that has vLLM.

The target is a small Llama whose attention and MLPs put out zeros, so that the next token depends
on the last one alone: a Markov chain. At a low temperature, sampling follows its likeliest path,
which the draft model knows; at a higher one it leaves that path more often. So the acceptance rate
falls with the temperature, as it does for real models, while engine, scheduler, rejection sampler
and metrics are vLLM's own.

| folder | what it is |
|---|---|
| target | the chain, with 3 layers |
| target-large | the same chain with 8 larger layers: a step costs about four times as much, so that
drafting can pay | | target-mtp | the same chain as a MiMo model, with a layer for multi-token
prediction | | draft | the chain with noise on its output weights, in one small layer |
| eagle, eagle3, dflash | heads for target and target-large (``lab/heads.py``) |
| lora | an adapter for target that no head fits |
"""

import sys
from pathlib import Path
from typing import Final

import torch
from transformers.utils import logging

from lab import heads
from lab.chain import DRAFT_NOISE, SPECIAL, chain, copy_of, tokenizer

# Standard deviation of the output weights: how peaked the next token's distribution is.
_SPREAD: Final = 0.2


def main(folder: Path) -> None:
    """Writes all models; the seeds make them the same each time."""
    logging.disable_progress_bar()
    tokens = tokenizer()

    with torch.no_grad():
        torch.manual_seed(1)
        target = chain(len(tokens), layers=3, mlp=2048)
        target.model.embed_tokens.weight.normal_(0, 1)
        target.lm_head.weight.normal_(0, _SPREAD)
        large = copy_of(target, layers=8, mlp=4096)
        draft = copy_of(target, layers=1, mlp=256)
        draft.lm_head.weight += torch.randn_like(target.lm_head.weight) * _SPREAD * DRAFT_NOISE
        for name, model in {"target": target, "target-large": large, "draft": draft}.items():
            model.lm_head.weight[: len(SPECIAL)] = 0  # they stay unlikely
            model.to(torch.bfloat16).save_pretrained(folder / name)
            tokens.save_pretrained(folder / name)
        heads.write_all(folder, target.float(), tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

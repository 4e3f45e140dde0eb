"""Why there is no speedup."""

from enum import StrEnum


class Withheld(StrEnum):
    """Why there is no speedup; what each means and asks for is in ``wording``."""

    NO_STEPS = "no_steps"  # no plug-in counts the engine's steps
    NO_REFERENCE = "no_reference"  # the time of a plain step is unknown
    OTHER_MODEL = "other_model"  # the baseline is of other models
    OTHER_ACCELERATOR = "other_accelerator"  # the baseline is of another one
    LOAD = "load"  # the baseline does not cover the number of running requests
    CONTEXT = "context"  # nor how many tokens they hold, or what their prefill costs
    TOO_LITTLE = "too_little"  # too few tokens so far

"""What a finding says: what is seen, what to change, and what to expect of it."""

from dataclasses import dataclass
from shlex import quote

from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.requests.messages import Speculation


def as_option(config: str) -> str:
    """A whole --speculative-config as an option of vLLM's command line."""
    return f"--speculative-config {quote(config)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A finding in words.

    ``what`` is seen, with numbers; ``remedy`` is the change, ``expect`` its likely effect,
    ``verify`` a command. ``config`` is the engine's whole --speculative-config with that change
    made; empty if that is not the change, or if the plug-in does not tell the rest. A fact has
    neither remedy nor command: ``expect`` says why.
    """

    code: str
    what: str
    remedy: str
    expect: str
    verify: str
    config: str = ""

    @classmethod
    def fact(cls, code: str, what: str, why: str) -> "Explanation":
        """One without a remedy; ``why`` says why nothing is to be changed."""
        return cls(code=code, what=what, remedy="", expect=why, verify="")

    @property
    def option(self) -> str:
        """``config`` as an option of vLLM's command line."""
        return as_option(self.config) if self.config else ""


def speculating_engine(model: ModelReport) -> EngineReport:
    """An engine that speculates; all of a model's engines are configured alike."""
    speculating = (engine for engine in model.engines if engine.speculation is not None)
    return next(speculating, model.engines[0])


def speculation_of(model: ModelReport) -> Speculation:
    """How the model's engines draft; without a method if that is unknown."""
    return speculating_engine(model).speculation or Speculation(None, 0)

"""What a finding means, what to change, what to expect of it, and how to verify it.

``docs/why.md`` says more.
"""

from collections.abc import Mapping
from typing import Final

from sidecar.analysis.findings.catalog import CODES
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.report import ModelReport
from sidecar.wording.findings.explanation import AnyWords, Explanation
from sidecar.wording.findings.registry import WORDS

BY_CODE: Final[Mapping[str, AnyWords]] = {
    code: words for code in CODES for words in WORDS if words.kind.code == code
}
"""By the finding's code, what to do first first; kinds with one code have the same words."""
_BY_KIND: Final[Mapping[type[Finding], AnyWords]] = {words.kind: words for words in WORDS}


def explanations(model: ModelReport) -> list[Explanation]:
    """The model's findings in words, what to do first first."""
    return [_BY_KIND[type(finding)].explain(finding, model) for finding in model.findings]

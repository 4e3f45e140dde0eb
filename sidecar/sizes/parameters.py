"""How many parameters a model's parts have: its layers, its embeddings and its drafting heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.sizes.fields import ModelFields
from sidecar.sizes.kinds import KINDS, KindName, attention_kind, attention_parameters, expert
from sidecar.sizes.layers import Layer


@dataclass(frozen=True, slots=True)
class PassSize:
    """The parameters that one pass of a model, or of a head or a layer of it, may read.

    ``output`` are those of the output matrix, ``always`` all others that each token passes, without
    the embedding, of which a pass looks up only a row. ``experts`` are those of which a token
    passes the share ``chosen``, from 0 to 1.
    """

    always: float
    output: float
    experts: float = 0.0
    chosen: float = 1.0

    def read(self, tokens: float) -> float:
        """Those that are read for so many tokens, if each chooses its experts independently."""
        share = 1 - math.pow(1 - self.chosen, tokens)
        return self.always + self.output + share * self.experts

    @property
    def active(self) -> float:
        """Those that one token passes."""
        return self.read(1.0)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a model's parts."""

    fields: ModelFields
    layers: Sequence[Layer]

    def whole(self) -> float:
        """All of the model, without layers for multi-token prediction."""
        return self.embeddings() + sum(self._layer(layer) for layer in self.layers)

    def active(self) -> float | None:
        """Those that one token passes, with only the chosen ones of a layer's experts.

        None if no field says how many are chosen.
        """
        with_experts = sum("experts" in layer for layer in self.layers)
        if not with_experts:
            return self.whole()

        idle = self.fields.idle_experts
        return None if idle is None else self.whole() - with_experts * idle * expert(self.fields)

    def pass_size(self) -> PassSize | None:
        """What a pass of the whole model reads; None if the experts of a token are not known."""
        with_experts = sum("experts" in layer for layer in self.layers)
        return self._pass_size(self.whole() - self.embeddings(), with_experts)

    def head_pass_size(self, method: str | None) -> PassSize:
        """The same for a head, which computes with the target's output matrix if it has none."""
        own = self.head_output(method)
        return PassSize(self.head(method) - own, own or self._matrix())

    def mtp_pass_size(self) -> PassSize | None:
        """The same for a layer for multi-token prediction, with the target's output matrix."""
        return self._pass_size(self.mtp_layer(), 1 if self.fields.experts else 0)

    def _pass_size(self, parameters: float, with_experts: int) -> PassSize | None:
        """The pass size of so many parameters beside the output matrix.

        ``with_experts`` of the layers have experts. None as in ``pass_size``.
        """
        fields = self.fields
        if not with_experts:
            return PassSize(parameters, self._matrix())
        if fields.idle_experts is None or not fields.experts:
            return None

        experts = with_experts * fields.experts * expert(self.fields)
        chosen = 1 - fields.idle_experts / fields.experts
        return PassSize(parameters - experts, self._matrix(), experts, chosen)

    def _matrix(self) -> float:
        """The embedding or the output matrix."""
        return float(self.fields.vocab_size * self.fields.hidden_size)

    def embeddings(self) -> float:
        """The embedding and the output matrix, which may be one."""
        matrices = 1 if self.fields.tie_word_embeddings else 2
        return matrices * self._matrix()

    def active_mtp_layer(self) -> float | None:
        """As ``active``, for a layer for multi-token prediction."""
        if not self.fields.experts:
            return self.mtp_layer()

        idle = self.fields.idle_experts
        return None if idle is None else self.mtp_layer() - idle * expert(self.fields)

    def mtp_layer(self) -> float:
        """A layer of the target, and the matrix that joins its two inputs."""
        block: KindName = "experts" if self.fields.experts else "MLP"
        layer = self._layer((attention_kind(self.fields), block))
        return layer + 2 * self.fields.hidden_size**2

    def head(self, method: str | None) -> float:
        """A head such as EAGLE's or SpecForge's; it uses the target's embedding."""
        fields = self.fields
        inputs = 2 if method == "eagle3" else 1
        layers = fields.layers * (attention_parameters(fields, inputs) + self._layer(("MLP",)))
        features = 3 if method == "eagle3" else 2
        source = fields.target_hidden_size or fields.hidden_size
        joined = features * source * fields.hidden_size
        return layers + joined + self.head_output(method)

    def head_output(self, method: str | None) -> float:
        """EAGLE-3's own output matrix; other heads use the target's."""
        if method != "eagle3":
            return 0.0
        vocabulary = self.fields.draft_vocab_size or self.fields.vocab_size
        return float(vocabulary * self.fields.hidden_size)

    def _layer(self, layer: Layer) -> float:
        return sum(KINDS[kind].parameters(self.fields) for kind in layer)

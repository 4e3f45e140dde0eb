"""How many parameters the parts of a model have, by its ``config.json``.

They are those of the usual decoder: attention (grouped, or MLA as in DeepSeek), a gated MLP of
three matrices or experts of them, embeddings, and the layers with a state whose kind is known.
Biases, norms and the like are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.sizes.fields import ModelFields
from sidecar.sizes.layers import Layer
from sidecar.sizes.states import state_layer


@dataclass(frozen=True, slots=True)
class PassSize:
    """The parameters that one pass of a model reads, which may be a head or a layer of it.

    ``output`` are those of the output matrix, ``always`` all others that each token passes, of
    which the embedding is none: a pass looks up a row of it. ``experts`` are those of which a
    token passes the share ``chosen``, 0 to 1.
    """

    always: float
    output: float
    experts: float = 0.0
    chosen: float = 1.0

    def read(self, tokens: float) -> float:
        """Those that are read for so many tokens, if each chooses its experts by itself."""
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
        """Those that one token passes: of a layer's experts, the ones that are chosen for it.

        None if no field says how many these are.
        """
        with_experts = sum(layer.feed_forward == "experts" for layer in self.layers)
        if not with_experts:
            return self.whole()

        idle = self.fields.idle_experts
        return None if idle is None else self.whole() - with_experts * idle * self._expert()

    def pass_size(self) -> PassSize | None:
        """What a pass of the whole model reads; None if the experts of a token are not known."""
        with_experts = sum(layer.feed_forward == "experts" for layer in self.layers)
        return self._pass_size(self.whole() - self.embeddings(), with_experts)

    def head_pass_size(self, method: str | None) -> PassSize:
        """The same of a head, which computes with the target's output matrix if it has none."""
        own = self.head_output(method)
        return PassSize(self.head(method) - own, own or self._matrix())

    def mtp_pass_size(self) -> PassSize | None:
        """The same of a layer for multi-token prediction, and of the target's output matrix."""
        return self._pass_size(self.mtp_layer(), 1 if self.fields.experts else 0)

    def _pass_size(self, parameters: float, with_experts: int) -> PassSize | None:
        """That of so many parameters, beside the output matrix, in layers with experts or none."""
        fields = self.fields
        if not with_experts:
            return PassSize(parameters, self._matrix())
        if fields.idle_experts is None or not fields.experts:
            return None

        experts = with_experts * fields.experts * self._expert()
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
        """As ``active``, of a layer for multi-token prediction."""
        if not self.fields.experts:
            return self.mtp_layer()

        idle = self.fields.idle_experts
        return None if idle is None else self.mtp_layer() - idle * self._expert()

    def mtp_layer(self) -> float:
        """A layer of the target, and the matrix that joins its two inputs."""
        block = self._experts() if self.fields.experts else self._mlp()
        return self._attention() + block + 2 * self.fields.hidden_size**2

    def head(self, method: str | None) -> float:
        """A head as EAGLE's or SpecForge's; its embedding is the target's."""
        fields = self.fields
        inputs = 2 if method == "eagle3" else 1
        layers = fields.layers * (self._attention(inputs) + self._mlp())
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
        parameters = 0.0
        if layer.has_attention:
            parameters += self._attention()
        if layer.has_state:
            parameters += self._state()
        if layer.feed_forward == "dense":
            parameters += self._mlp()
        elif layer.feed_forward == "experts":
            parameters += self._experts()
        return parameters

    def _attention(self, inputs: int = 1) -> float:
        """Of one layer, whose input is ``inputs`` times the hidden size wide."""
        fields = self.fields
        if fields.kv_lora_rank:
            return self._latent_attention(fields.kv_lora_rank)

        width = inputs * fields.hidden_size
        values = fields.heads * fields.size_of_head
        keys = (fields.kv_heads or fields.heads) * fields.size_of_head
        queries = 2 * values if fields.gates_attention else values
        return float(width * (queries + 2 * keys) + values * fields.hidden_size)

    def _latent_attention(self, rank: int) -> float:
        """MLA's five projections, as DeepSeek's."""
        fields = self.fields
        key = fields.qk_nope_head_dim + fields.qk_rope_head_dim
        value = fields.v_head_dim or fields.qk_nope_head_dim
        query = fields.hidden_size * fields.heads * key
        if fields.q_lora_rank:
            query = fields.q_lora_rank * (fields.hidden_size + fields.heads * key)

        down = fields.hidden_size * (rank + fields.qk_rope_head_dim)
        up = rank * fields.heads * (fields.qk_nope_head_dim + value)
        return float(query + down + up + fields.heads * value * fields.hidden_size)

    def _state(self) -> float:
        """A layer with a state; one of a kind that is not known counts as attention does."""
        state = state_layer(self.fields)
        return self._attention() if state is None else state.parameters

    def _mlp(self) -> float:
        width = self.fields.dense_width or self.fields.intermediate_size
        return float(self._matrices() * self.fields.hidden_size * width)

    def _experts(self) -> float:
        """The experts of one layer, those that all tokens share, and the router."""
        fields = self.fields
        width = fields.moe_intermediate_size or fields.intermediate_size
        shared = fields.number_of_shared_experts * (fields.shared_expert_width or width)
        number = fields.experts or 0
        router = number * fields.hidden_size
        always = self._matrices() * shared * fields.hidden_size
        return number * self._expert() + always + router

    def _expert(self) -> float:
        """One of the experts among which the router chooses."""
        fields = self.fields
        width = fields.moe_intermediate_size or fields.intermediate_size
        input_width = fields.moe_latent_size or fields.hidden_size
        return float(self._matrices() * width * input_width)

    def _matrices(self) -> int:
        """Those of a feed-forward network: a squared ReLU has no gate."""
        return 2 if self.fields.activation == "relu2" else 3

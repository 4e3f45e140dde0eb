"""A KV connector of vLLM's that moves nothing: requests wait for it until a test says so."""

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.outputs import KVConnectorOutput

from tests.scheduler.engine import call


class Connector(KVConnectorBase_V1):
    """``loads`` so many tokens of each prompt; ``delays`` the freeing of those that have ended."""

    def __init__(self, engine, *, loads=0, delays=False):
        self._kv_cache_config = engine.scheduler.kv_cache_config
        engine.scheduler.connector = self
        self.engine = engine
        self.loads = loads
        self.delays = delays
        self.loading = {}
        self.sending = []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if not self.loads or request.request_id in self.loading:
            return 0, False
        self.loading[request.request_id] = request
        return self.loads, True

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        self.sending.append(request.request_id)
        return self.delays, None

    def deliver(self):
        """What all requests wait for has come, with the next round."""
        self.engine.connector_output = call(
            KVConnectorOutput,
            finished_recving=set(self.loading),
            finished_sending=set(self.sending),
        )
        self.sending = []

    def start_load_kv(self, forward_context, **kwargs):
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        raise NotImplementedError

    def wait_for_save(self):
        raise NotImplementedError

"""What ``plan`` calculates: memory of weights and KV caches, and rules of thumb for a pair."""

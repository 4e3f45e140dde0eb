"""How large a model is, by its configuration, and what its steps cost relative to one another."""

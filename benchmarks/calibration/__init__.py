"""Error rates that the product claims, simulated with generators that are not the product's."""

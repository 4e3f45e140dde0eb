"""How often chance is called a fault of the replies, and how soon a fault is named."""

"""Would speculation suit a model that does not speculate? Judged by its requests and its load."""

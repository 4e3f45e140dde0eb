"""Does routing by temperature pay? Servers that follow a step law, in simulated time."""

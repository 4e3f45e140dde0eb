"""How far attribution is off, on recorded traffic of a real vLLM."""

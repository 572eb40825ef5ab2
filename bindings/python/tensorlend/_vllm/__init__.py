"""The parts of the connector of vLLM that do not need vLLM."""

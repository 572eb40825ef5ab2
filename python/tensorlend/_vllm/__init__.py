"""Parts of the connector of vLLM that need no vLLM."""

"""Where scores come from. `BACKENDS` names what the command line offers."""

BACKENDS = {
    "transformers": "any Hugging Face causal language model",
    "toy": "a tiny language model without weights, for tests and docs",
}

"""Where scores come from. `BACKENDS` names what the command line offers."""

BACKENDS: dict[str, str] = {
    "transformers": "Hugging Face models on CPU or CUDA",
    "toy": "a tiny deterministic language model in NumPy, for tests and docs",
}

"""The engine: a drafter guesses, a backend scores, `accept` decides, the engine commits. NumPy only."""

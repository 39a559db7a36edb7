"""Measurements: suites of prompts, the interleaved run, its results, and what a forward costs."""

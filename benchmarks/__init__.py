"""Benchmarks: speed compared with other frameworks, growth with scale, and the products around a run."""

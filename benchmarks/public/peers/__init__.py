"""One file per framework: how it runs a case."""

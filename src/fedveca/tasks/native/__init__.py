"""Operations in C, for the CPU: what PyTorch has no quick operation for.

A C file is compiled on the machine where it runs, once, for that processor. It is never required: without a compiler,
on other systems than Linux, and with FEDVECA_KERNELS=off, PyTorch's operations compute the same up to rounding.
"""

"""The equation fused, for NVIDIA GPUs: Triton is imported only when it is chosen."""

"""Tensor operations of the model: their signatures, the plain-torch reference and the batch-invariant linear."""

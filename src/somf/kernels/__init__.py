"""Array maths in Numba: arrays and scalars in, no objects, checks or randomness."""

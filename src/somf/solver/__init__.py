"""Online matrix factorization as stochastic majorization-minimization."""

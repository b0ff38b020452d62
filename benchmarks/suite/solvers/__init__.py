"""Solvers: ours in many settings, and other packages at their best."""

from benchmarks.suite.solvers.brain import NilearnDictLearning
from benchmarks.suite.solvers.omf_gemv import MatrixVectorOMF
from benchmarks.suite.solvers.scikit import (
    DictionaryLearning,
    MiniBatchNMFSolver,
    SparsePCA,
)
from benchmarks.suite.solvers.sgd import SGD
from benchmarks.suite.solvers.somf_solver import Ours
from benchmarks.suite.solvers.spams_solver import Spams, SpamsWhole

__all__ = [
    "SGD",
    "DictionaryLearning",
    "MatrixVectorOMF",
    "MiniBatchNMFSolver",
    "NilearnDictLearning",
    "Ours",
    "Spams",
    "SpamsWhole",
    "SparsePCA",
]

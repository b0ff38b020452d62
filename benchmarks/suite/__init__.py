"""Benchmarks of `somf` against other packages, and the paper's experiments.

    python -m benchmarks.suite list
    python -m benchmarks.suite run peers --dataset photos --seeds 5
    python -m benchmarks.suite report peers

An `Objective` judges dictionaries, a `Dataset` gives samples and the problem, and a
`Solver` wraps a package: the shape of benchopt, the tool of the field. benchopt itself
does not fit for two reasons. It runs one solver after the other, so that a machine
whose speed drifts favours some of them; here all solvers of a race advance by turns.
And it times a solver by running it anew for every point of its curve, or by a callback
inside of it; here the clocks of all solvers but one stand still, and all of them while
a dictionary is judged.
"""

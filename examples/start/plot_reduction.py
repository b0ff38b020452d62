"""
What the reduction does
=======================

An iteration that looks at one feature in r computes codes in a fraction of the time.
Codes become less exact, but there are more iterations: how far does each r get?
"""

# %%
# Data with many features
# -----------------------
# Patches of a photograph, 64 by 64 pixels in three colours. Those of its lower part
# are held out, to judge.
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from somf import SOMF, alpha_max
from somf.sources import PatchSource

photo = load_sample_image("flower.jpg").astype(np.float32) / 255
upper, lower = (
    PatchSource(photo, (64, 64), center=True, scale=True, step=8, rows=rows)
    for rows in ((0, 260), (324, 364))
)
X = upper.read(np.arange(upper.shape[0]))
held_out = lower.read(np.arange(0, lower.shape[0], 2))
print(f"{X.shape[0]} training patches, {X.shape[1]} features")

# %%
# The same budget for each
# ------------------------
# ``partial_fit`` learns from one batch. Time is that of the iterations alone, as
# ``trace_`` has it; judging is off the clock. The first iteration compiles the kernels,
# so one is made beforehand. One thread makes the figure depend less on the machine.
SECONDS, ATOMS, BATCH = 1.0, 100, 600
alpha = 0.05 * alpha_max(X[:200])


def learn(reduction, seconds):
    """Return the seconds and the held-out objectives of a run."""
    rng = np.random.default_rng(0)
    model = SOMF.dictionary_learning(
        ATOMS, alpha=alpha, reduction=reduction, n_threads=1, random_state=0
    )
    times, objectives = [], []
    look = 0.0
    while True:
        model.partial_fit(X[rng.choice(len(X), BATCH, replace=False)])
        spent = model.trace_["time"][-1]
        if spent >= look:
            times.append(spent)
            objectives.append(-model.score(held_out))
            look = 1.3 * spent
        if spent > seconds:
            return times, objectives


start = time.perf_counter()
learn(2, 0)
curves = {reduction: learn(reduction, SECONDS) for reduction in (1, 4, 12, 48)}
print(f"{time.perf_counter() - start:.0f} s in all")

# %%
# A curve further to the left is faster. Fewer features make an iteration cheaper, up to
# a point: the pass over the dictionary is left, whose cost does not depend on r. So the
# step from 1 to 4 is large and the one from 12 to 48 is not. Fewer features make codes
# noisier, too; a second is too short to tell where that ends.
#
# How much there is to gain depends on the data and the batch. Here batches of 600 were
# chosen, for which codes are most of an iteration. With batches of 200 and all threads
# of a busy machine, the four curves could not be told apart. The default,
# ``reduction="auto"``, takes 12, or less where that would leave fewer than 1000
# features in view.
figure, ax = plt.subplots(figsize=(7, 4))
for (reduction, (times, objectives)), colour in zip(
    curves.items(), ("0.5", "C0", "C1", "C3"), strict=True
):
    label = "every feature" if reduction == 1 else f"1 feature in {reduction}"
    ax.plot(times, objectives, "o-", ms=3, color=colour, label=label)
ax.set_xscale("log")
ax.set_xlabel("seconds of training")
ax.set_ylabel("objective on held-out patches")
ax.legend()
figure.tight_layout()
plt.show()

"""Kill a fit at random moments, resume it each time, and compare the last bits.

`python killed.py FOLDER N_KILLS SEED SETTINGS` prints how often it killed and resumed.
Children are forked from a process that has compiled everything, so that a kill takes
milliseconds; each is a real process that dies of SIGKILL.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from somf import SOMF
from somf.checkpoints import find

warnings.filterwarnings("ignore", "This process .* is multi-threaded")


def learn(folder, X, settings):
    """Begin or continue the fit in `folder`; returns the model at its end."""
    if folder.exists() and find(folder):
        return SOMF.resume(folder, X)
    return SOMF(**settings, checkpoint=folder, checkpoint_steps=1).fit(X)


def bits(model):
    state = model.state_
    return [state.D.tobytes(), state.B.tobytes(), state.C.tobytes(), model.n_steps_]


def main():
    folder, n_kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    settings = json.loads(sys.argv[4])
    np.save(folder / "X.npy", np.random.default_rng(0).standard_normal((200, 300)))
    X = np.load(folder / "X.npy", mmap_mode="r")
    start = time.perf_counter()
    expected = bits(learn(folder / "whole", X, settings))
    whole = time.perf_counter() - start
    rng = random.Random(seed)
    n_killed = n_finished = 0
    while n_killed < n_kills or n_finished == 0:
        run = folder / f"run{n_finished}"
        child = os.fork()
        if child == 0:
            same = bits(learn(run, X, settings)) == expected
            os._exit(0 if same else 1)
        if n_killed < n_kills:
            time.sleep(rng.uniform(0, whole / 4))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            n_killed += 1
            continue
        n_finished += 1
        if os.WEXITSTATUS(status) != 0:
            sys.exit(f"the bits differ in {run} after {n_killed} kills")
    left = sorted(path.name for path in (folder / "run0").iterdir())
    print(json.dumps({"killed": n_killed, "finished": n_finished, "left": left}))


if __name__ == "__main__":
    main()

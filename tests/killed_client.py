"""Fit on the workers of another process, to be killed while it does.

`python killed_client.py SCHEDULER SETTINGS` writes a checkpoint after every hand-over.
"""

import json
import sys

import dask.array as da
from distributed import Client

from somf import SOMF


def main():
    X = da.random.RandomState(0).normal(size=(240, 90), chunks=(60, 90))
    settings = json.loads(sys.argv[2])
    with Client(sys.argv[1], set_as_default=False) as client:
        SOMF(**settings, checkpoint_steps=1).fit(X, client=client)


if __name__ == "__main__":
    main()

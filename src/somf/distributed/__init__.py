"""SOMF on several machines: workers compute codes, the client updates the dictionary.

Needs the extra `dask`. `SOMF.fit` runs here when a Dask client is active and X is a
Dask array, a list of sources, or something that every worker can open.
"""

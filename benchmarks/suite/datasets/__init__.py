"""Data sets: real hyperspectral and brain images, a simulator, photographs."""

from benchmarks.suite.datasets.fmri import RealFMRI, SimulatedFMRI
from benchmarks.suite.datasets.hyperspectral import (
    Hyperspectral,
    Hyperspectral256,
    HyperspectralNMF,
    HyperspectralNMF256,
)
from benchmarks.suite.datasets.photos import Photos

DATASETS = {
    kind.name: kind
    for kind in (
        Hyperspectral,
        Hyperspectral256,
        HyperspectralNMF,
        HyperspectralNMF256,
        SimulatedFMRI,
        RealFMRI,
        Photos,
    )
}

"""How atoms are shown: as profiles and a heat map, or as patches with spectra."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.image import imsave
from numpy.typing import ArrayLike, NDArray

from somf.report.charts import sparkline

Array = NDArray[Any]

N_SHOWN = 60  # atoms that are shown one by one
WIDTH = 960  # columns of a heat map
SIDE_BY_SIDE = (
    "On the left the sample, on the right its reconstruction; values that are missing "
    "are black."
)


class Atoms(Protocol):
    """What a report asks of an object that shows atoms."""

    caption: str  # what a reader sees of all atoms, in words
    atom_caption: str  # of one
    sample_caption: str  # of a sample

    def html(self, order: Array) -> Markup:
        """Return the atoms, in this order, as part of a page."""
        ...

    def atom(self, number: int) -> Markup:
        """Return a picture of one atom."""
        ...

    def sample(self, sample: Array, reconstruction: Array) -> Markup | None:
        """Return a picture of a sample and its reconstruction, if there can be one."""
        ...


class HeatMaps:
    """Atoms over features in a row, or as images of one channel.

    Parameters
    ----------
    components : array of shape (n_components, n_features)
    shape : (height, width), default=None
        If features are the pixels of an image, its shape.

    Examples
    --------
    >>> import numpy as np
    >>> from somf.report import HeatMaps
    >>> HeatMaps(np.eye(2), shape=(1, 2)).atom(0)
    Markup('<img class="pixels" alt="Atom 0" src="data:image/png;base64,...">')
    """

    def __init__(
        self, components: ArrayLike, shape: tuple[int, int] | None = None
    ) -> None:
        self.components = np.asarray(components)
        self.shape = shape
        _check_shape(self.components, shape)
        if shape is not None:
            self.caption = "Atoms as images; red is positive, blue is negative."
            self.atom_caption = self.caption
            self.sample_caption = SIDE_BY_SIDE
            return
        self.atom_caption = (
            "Atoms as profiles over the features, from the least to the greatest value "
            "of neighbours; the thin line is zero."
        )
        self.caption = (
            "Above, all atoms as rows of a heat map, features from left to right: red "
            f"is positive, blue is negative. Below: {self.atom_caption}"
        )
        self.sample_caption = (
            "In blue the sample, with gaps where values are missing; in orange its "
            "reconstruction."
        )

    def html(self, order: Array) -> Markup:
        """Return the atoms, in this order."""
        tiles = _tiles(self, order)
        return tiles if self.shape is not None else self._map(order) + tiles

    def atom(self, number: int) -> Markup:
        """Return a profile, or an image."""
        return self._picture([self.components[number]], f"Atom {number}")

    def sample(self, sample: Array, reconstruction: Array) -> Markup:
        """Return both profiles in one, or two images."""
        return self._picture([sample, reconstruction], "Sample and reconstruction")

    def _picture(self, vectors: Sequence[Array], alt: str) -> Markup:
        if self.shape is None:
            return sparkline(vectors, alt)
        images = [vector.reshape(self.shape) for vector in vectors]
        limit = _limit(images[0])
        return Markup("").join(image_tag(diverging(i, limit), alt) for i in images)

    def _map(self, order: Array) -> Markup:
        rows = _columns(self.components[order])
        colours = diverging(rows, _limit(rows))
        return image_tag(colours, "All atoms as rows of a heat map", "heatmap")


class PatchGrid:
    """Atoms as patches of an image, with the mean spectrum of each.

    Parameters
    ----------
    atoms : array of shape (n_components, height, width, bands)
    bands : three numbers, default=None
        The bands that are shown as red, green and blue. None takes bands at 5/6, 1/2
        and 1/6 of the spectrum; images of up to 3 bands are shown as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from somf.report import PatchGrid
    >>> grid = PatchGrid(np.zeros((5, 8, 8, 200)), bands=(50, 27, 17))
    >>> grid.atom(0)
    Markup('<img class="pixels" alt="Atom 0" src="data:image/png;base64,...</svg>')
    """

    def __init__(self, atoms: ArrayLike, bands: Sequence[int] | None = None) -> None:
        self.atoms = np.asarray(atoms)
        if self.atoms.ndim != 4:
            raise ValueError(
                f"atoms has shape {self.atoms.shape}; it must be (n_components, "
                "height, width, bands)."
            )
        n_bands = self.atoms.shape[3]
        self.bands = _three_bands(n_bands) if bands is None else tuple(bands)
        if len(self.bands) not in (1, 3) or not all(
            0 <= band < n_bands for band in self.bands
        ):
            raise ValueError(
                f"bands={bands!r} must be three numbers of bands, from 0 to "
                f"{n_bands - 1}: those to show as red, green and blue."
            )
        self.caption = "Atoms as patches, each scaled by itself; grey is zero."
        self.sample_caption = SIDE_BY_SIDE
        if n_bands > 3:
            words = ", ".join(str(band) for band in self.bands)
            self.caption += (
                f" Red, green and blue are the bands {words}. Under each, the mean "
                f"spectrum of its pixels over all {n_bands} bands; the thin line is "
                "zero."
            )
            self.sample_caption += " Of their spectra, that of the sample is blue."
        self.atom_caption = self.caption

    @property
    def components(self) -> Array:
        """The atoms as rows, (n_components, n_features)."""
        return self.atoms.reshape(len(self.atoms), -1)

    def html(self, order: Array) -> Markup:
        """Return the atoms, in this order."""
        return _tiles(self, order)

    def atom(self, number: int) -> Markup:
        """Return a patch and its spectrum."""
        atom = self.atoms[number]
        return self._patch(atom, _limit(atom), f"Atom {number}") + self._spectra([atom])

    def sample(self, sample: Array, reconstruction: Array) -> Markup:
        """Return both patches and both spectra."""
        shape = self.atoms.shape[1:]
        patches = [sample.reshape(shape), reconstruction.reshape(shape)]
        limit = _limit(patches[0])
        names = ("Sample", "Reconstruction")
        images = [self._patch(p, limit, n) for p, n in zip(patches, names, strict=True)]
        return Markup("").join(images) + self._spectra(patches)

    def _patch(self, patch: Array, limit: float, alt: str) -> Markup:
        colours = np.repeat(patch[..., self.bands], 4 - len(self.bands), axis=2)[
            ..., :3
        ]
        shown = np.clip(0.5 + 0.5 * colours / limit, 0, 1)
        shown[np.isnan(shown).any(axis=2)] = 0  # black: it is not known
        return image_tag(shown, alt)

    def _spectra(self, patches: Sequence[Array]) -> Markup:
        if self.atoms.shape[3] <= 3:
            return Markup("")
        return sparkline([_spectrum(patch) for patch in patches], "Mean spectrum")


def _spectrum(patch: Array) -> Array:
    """Return the mean of each band over its known pixels; NaN if there are none."""
    n_known = np.isfinite(patch).sum(axis=(0, 1))
    total = np.nansum(patch, axis=(0, 1))
    return np.where(n_known > 0, total / np.maximum(n_known, 1), np.nan)


def _three_bands(n_bands: int) -> tuple[int, ...]:
    if n_bands < 3:
        return (0,)
    if n_bands == 3:
        return (0, 1, 2)
    return tuple(n_bands * part // 6 for part in (5, 3, 1))


def _check_shape(components: Array, shape: tuple[int, int] | None) -> None:
    n_features = components.shape[1]
    if shape is not None and int(np.prod(shape)) != n_features:
        raise ValueError(
            f"shape={shape} has {int(np.prod(shape))} pixels, but atoms have "
            f"{n_features} features; both must be the same."
        )


# -- parts of a page -----------------------------------------------------------------


def _tiles(atoms: Atoms, order: Array, shown: int = N_SHOWN) -> Markup:
    """Return figures of the first atoms in a grid."""
    figure = Markup('<figure class="tile">{}<figcaption>{}</figcaption></figure>')
    tiles = [figure.format(atoms.atom(int(i)), int(i)) for i in order[:shown]]
    grid = Markup('<div class="tiles">{}</div>').format(Markup("").join(tiles))
    if len(order) > shown:
        text = "The {} most used of {} atoms are shown, the most used first."
        grid += Markup(f'<p class="quiet">{text}</p>').format(shown, len(order))
    return grid


def image_tag(colours: Array, alt: str, kind: str = "pixels") -> Markup:
    """Return an image, (height, width, 3) in [0, 1], as an element of a page."""
    file = io.BytesIO()
    imsave(file, np.ascontiguousarray(colours), format="png")
    return png_tag(file.getvalue(), alt, kind)


def png_tag(png: bytes, alt: str, kind: str) -> Markup:
    """Return a PNG as an element of a page."""
    text = base64.b64encode(png).decode()
    tag = '<img class="{}" alt="{}" src="data:image/png;base64,{}">'
    return Markup(tag).format(kind, alt, text)


def diverging(values: Array, limit: float) -> Array:
    """Return colours from blue for -limit over white for 0 to red for limit."""
    colours = colormaps["RdBu_r"](np.clip(0.5 + 0.5 * values / limit, 0, 1))
    return np.asarray(colours[..., :3])


def _limit(values: Array) -> float:
    """Return the value that gets the full colour: rarely exceeded, never zero."""
    finite = np.abs(values[np.isfinite(values)])
    limit = float(np.quantile(finite, 0.99)) if finite.size else 0.0
    return limit or float(finite.max(initial=0.0)) or 1.0


def _columns(rows: Array) -> Array:
    """Return at most `WIDTH` columns: of neighbours, the value farthest from zero."""
    starts = np.unique(
        np.linspace(0, rows.shape[1], WIDTH, endpoint=False).astype(np.intp)
    )
    high = np.maximum.reduceat(rows, starts, axis=1)
    low = np.minimum.reduceat(rows, starts, axis=1)
    return np.asarray(np.where(high >= -low, high, low))

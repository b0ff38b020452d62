"""ENVI: a text header beside a raw file, as most hyperspectral images come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.sources.checks import existing_file

# Codes of "data type" in a header that are real numbers.
TYPES = {
    1: "u1",
    2: "i2",
    3: "i4",
    4: "f4",
    5: "f8",
    12: "u2",
    13: "u4",
    14: "i8",
    15: "u8",
}
# Axes of the raw file by "interleave", and the order that makes them (line, sample,
# band).
INTERLEAVES = {
    "bsq": (("bands", "lines", "samples"), (1, 2, 0)),
    "bil": (("lines", "bands", "samples"), (0, 2, 1)),
    "bip": (("lines", "samples", "bands"), (0, 1, 2)),
}
RAW = ("", ".raw", ".img", ".dat", ".bin", ".bsq", ".bil", ".bip")


def read_envi(path: str) -> tuple[NDArray[Any], float | None]:
    """Map the raw file of a header, or one that has a header: (lines, samples, bands).

    Nothing is read before it is used. Returned with it is the value that stands for
    pixels that are not known, if the header has one.
    """
    header_path, raw_path = _find_pair(existing_file(path))
    fields = _read_header(header_path)
    shape = {name: _number(fields, name, header_path) for name in _SIZES}
    offset = _number(fields, "header offset", header_path, 0)
    dtype = _dtype(fields, header_path)
    interleave = fields.get("interleave", "bsq").lower()
    if interleave not in INTERLEAVES:
        raise ValueError(
            f"{header_path}: interleave = {interleave!r} must be one of "
            f"{', '.join(INTERLEAVES)}; correct the header."
        )
    if fields.get("file compression", "0") != "0":
        raise ValueError(
            f"{raw_path} is compressed (file compression in its header), which cannot "
            "be mapped; write it without compression."
        )
    axes, order = INTERLEAVES[interleave]
    stored = tuple(shape[axis] for axis in axes)
    wanted = offset + int(np.prod(stored)) * dtype.itemsize
    size = raw_path.stat().st_size
    if size < wanted:
        raise ValueError(
            f"{raw_path} has {size} bytes, but its header asks for {wanted} "
            f"({' x '.join(map(str, stored))} of {dtype.name}); is it cut off, or the "
            "header that of another file?"
        )
    image = np.memmap(raw_path, dtype, "r", offset, stored).transpose(order)
    return image, _ignored(fields, header_path, dtype)


_SIZES = ("lines", "samples", "bands")


def _find_pair(path: Path) -> tuple[Path, Path]:
    """Return the header and the raw file, given one of them."""
    if path.suffix.lower() != ".hdr":
        header = _beside(path, _header_names(path))
        if header is not None:
            return header, path
        raise FileNotFoundError(
            f"{path} has no header {path.with_suffix('.hdr').name} beside it, which "
            "tells its size and type; copy it there, or save the image as .npy."
        )
    names = [path.stem + extension for extension in RAW]  # of scene[.img].hdr
    raw = _beside(path, names)
    if raw is not None:
        return path, raw
    raise FileNotFoundError(
        f"{path} is a header without its raw file; none of {', '.join(names)} is "
        "beside it. Name the raw file instead if it is called otherwise."
    )


def has_header(path: str) -> bool:
    """Whether a file has the header of an ENVI image beside it."""
    return _beside(Path(path), _header_names(Path(path))) is not None


def _header_names(path: Path) -> list[str]:
    return [path.with_suffix(".hdr").name, f"{path.name}.hdr"]


def _beside(path: Path, names: list[str]) -> Path | None:
    """Return the first of the named files, in any case, that is beside another."""
    files = sorted(file for file in path.parent.iterdir() if file.is_file())
    for name in names:
        alike = [file for file in files if file.name.lower() == name.lower()]
        # Where case tells files apart, the one that is spelt the same comes first.
        for file in sorted(alike, key=lambda file: file.name != name):
            return file
    return None


def _read_header(path: Path) -> dict[str, str]:
    """Return the fields of a header; values in braces may span lines."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.lstrip().startswith("ENVI"):
        raise ValueError(
            f"{path} does not start with the word ENVI: it is another kind of header. "
            "Save the image as ENVI, GeoTIFF or .npy."
        )
    pairs = re.findall(r"^\s*([^=;\n]+?)\s*=\s*(\{[^}]*\}|[^\n]*)", text, re.MULTILINE)
    return {name.lower(): value.strip() for name, value in pairs}


def _number(
    fields: dict[str, str], name: str, path: Path, default: int | None = None
) -> int:
    text = fields.get(name, "" if default is None else str(default))
    if not text.isdigit():
        raise ValueError(
            f"{path}: {name} = {text!r} must be a whole number; correct the header."
        )
    return int(text)


def _dtype(fields: dict[str, str], path: Path) -> np.dtype[Any]:
    code = _number(fields, "data type", path)
    if code not in TYPES:
        raise ValueError(
            f"{path}: data type = {code} must be one of {sorted(TYPES)}, real numbers; "
            "convert complex images to their magnitude first."
        )
    order = ">" if fields.get("byte order", "0") == "1" else "<"
    return np.dtype(order + TYPES[code])


def _ignored(fields: dict[str, str], path: Path, dtype: np.dtype[Any]) -> float | None:
    text = fields.get("data ignore value")
    if text is None:
        return None
    try:
        return float(dtype.type(float(text))) if dtype.kind == "f" else float(text)
    except ValueError:
        raise ValueError(
            f"{path}: data ignore value = {text!r} must be a number; correct the "
            "header."
        ) from None

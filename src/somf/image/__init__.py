"""Dictionaries of image patches: from files to atoms, code maps and better images."""

from somf.image.dictionary import PatchDictionary
from somf.image.files import read_image

__all__ = ["PatchDictionary", "read_image"]

"""A file is whole and old, or whole and new, and a broken one says so."""

import json
import os
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import save_file

from somf import SOMF
from somf.solver import storage
from somf.solver.storage import FORMAT, read_file, write_file

TENSORS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "float64": np.array([np.pi, np.inf, np.nan, -0.0]),
    "int64": np.array([[-1], [2**62]]),
    "bool": np.array([True, False]),
    "empty": np.zeros((0, 4)),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "every second": np.arange(10.0)[::2],
    "three axes": np.arange(24.0).reshape(2, 3, 4),
}
METADATA = {"text": 'ü \n "quoted"', "number": 0.1, "none": None, "list": [1, {"a": 2}]}


@pytest.fixture
def path(tmp_path):
    """A file that `write_file` has written."""
    write_file(tmp_path / "model.safetensors", TENSORS, METADATA)
    return tmp_path / "model.safetensors"


def assert_unreadable(path):
    with pytest.raises(ValueError, match=path.name) as error:
        read_file(path)
    assert str(path) in str(error.value)


def test_what_is_written_is_read(path):
    tensors, metadata = read_file(path)
    assert metadata == METADATA
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype, name
        np.testing.assert_array_equal(tensors[name], tensor, err_msg=name)
        assert tensors[name].shape == tensor.shape


def test_path_may_be_a_string(path):
    tensors, metadata = read_file(os.fspath(path))
    write_file(os.fspath(path), tensors, metadata)
    assert read_file(path)[1] == METADATA


def test_what_is_read_can_be_changed(path):
    tensors, _ = read_file(path)
    tensors["float32"] += 1
    assert read_file(path)[0]["float32"][0, 0] == 0


def test_memory_maps_and_big_endian_numbers_can_be_written(tmp_path):
    mapped = np.memmap(tmp_path / "map", np.float64, "w+", shape=(3, 2))
    mapped[:] = 7
    write_file(
        tmp_path / "file", {"mapped": mapped, "big": np.arange(3, dtype=">f8")}, {}
    )
    tensors, _ = read_file(tmp_path / "file")
    np.testing.assert_array_equal(tensors["mapped"], np.full((3, 2), 7.0))
    np.testing.assert_array_equal(tensors["big"], [0, 1, 2])


def test_file_is_alone_in_its_folder(path):
    write_file(path, TENSORS, {"version": 2})
    assert os.listdir(path.parent) == [path.name]
    assert read_file(path)[1] == {"version": 2}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("broken", ["save_file", "fsync", "replace"])
def test_error_while_writing_leaves_the_old_file(path, monkeypatch, broken, error):
    def fail(*args):
        raise error("disk full")

    if broken == "save_file":

        def write_half(tensors, name, metadata):
            with open(name, "wb") as file:
                file.write(b"half of it")
            raise error("disk full")

        monkeypatch.setattr("safetensors.numpy.save_file", write_half)
    else:
        monkeypatch.setattr(storage.os, broken, fail)
    before = path.read_bytes()
    with pytest.raises(error, match="disk full"):
        write_file(path, {"new": np.zeros(3)}, {})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_metadata_that_json_cannot_say_leaves_the_old_file(path):
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_file(path, {}, {"object": object()})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_data_are_on_disk_before_the_name_is(path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            storage.os,
            name,
            lambda *args, name=name, real=real: calls.append(name) or real(*args),
        )
    write_file(path, TENSORS, METADATA)
    assert calls[:2] == ["fsync", "replace"]
    assert os.name != "posix" or calls == ["fsync", "replace", "fsync"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_permissions_are_those_of_any_new_file(path):
    ordinary = path.with_name("ordinary")
    ordinary.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_every_truncated_file_is_recognised(path):
    whole = path.read_bytes()
    for length in [*range(0, 400, 7), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert_unreadable(path)


def test_damaged_header_is_recognised(path):
    whole = path.read_bytes()
    for damaged in (
        b"\xff" * 8 + whole[8:],  # an absurd length
        whole[:8] + b"x" + whole[9:],  # not JSON
        whole.replace(b'"shape":[2,1]', b'"shape":[2,3]'),  # sizes that do not fit
        whole.replace(FORMAT.encode(), b"somf 0"),  # another version
        whole.replace(b"__metadata__", b"__metabata__"),
        whole + b"and more",
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        assert_unreadable(path)


def test_any_damage_is_an_error_that_names_the_file(tmp_path):
    """A byte is changed or the end is cut off, 2400 times."""
    path = tmp_path / "model.safetensors"
    X = np.random.default_rng(0).standard_normal((40, 30))
    SOMF(3, n_epochs=2, batch_size=10, random_state=0).fit(X).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in range(2400):
        damaged = bytearray(whole)
        place = rng.integers(len(whole))
        if i % 3:
            damaged[place] ^= rng.integers(1, 256)
        else:
            damaged = damaged[:place]
        path.write_bytes(damaged)
        if bytes(damaged).split() == whole.split():
            continue  # a blank of the header has become another blank
        with pytest.raises(ValueError, match=r"model\.safetensors") as caught:
            SOMF.load(path)
        assert str(path) in str(caught.value)


def test_a_full_disk_is_an_error_of_the_system(path, monkeypatch):
    def fail(*args):
        raise SafetensorError("Error while serializing: No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    before = path.read_bytes()
    with pytest.raises(OSError, match=r"model.safetensors could not .* No space"):
        write_file(path, {}, {})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_whole_file_that_is_no_model_says_so(path):
    with pytest.raises(ValueError, match=r"model.safetensors is whole, but not"):
        SOMF.load(path)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_recognised(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("foreign") / "notes.txt"
    path.write_bytes(content)
    assert_unreadable(path)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"format": "pt"},
        {"format": "somf 999", "somf": "{}"},
        {"format": FORMAT},
        {"format": FORMAT, "somf": "{half of"},
    ],
)
def test_safetensors_of_others_are_recognised(tmp_path, metadata):
    path = tmp_path / "weights.safetensors"
    save_file({"weight": np.zeros(3)}, path, metadata)
    assert_unreadable(path)


def test_error_names_the_format(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"weight": np.zeros(3)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"'pt'.*{FORMAT}"):
        read_file(path)


def test_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_file(tmp_path / "nowhere")


def test_missing_folder_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_file(tmp_path / "nowhere" / "file", {}, {})


def test_file_is_readable_by_any_safetensors(path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["format"] == FORMAT
        assert json.loads(file.metadata()["somf"]) == METADATA

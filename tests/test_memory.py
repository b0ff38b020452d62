"""How much memory there is."""

import pytest

from somf import memory
from somf.memory import _groups, _left_to_container, available_memory


def test_available_memory_is_a_number_of_bytes():
    assert 2**20 < available_memory() < 2**50


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [
        ("1000", "300", 750),
        ("1000", "1200", 0),
        ("max", "300", None),
        ("1000", "", None),
    ],
)
def test_limits_of_containers(tmp_path, limit, used, left):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text("anon 90\ninactive_file 50\n")
    assert _left_to_container(tmp_path) == left


def test_no_container(tmp_path):
    assert _left_to_container(tmp_path / "nowhere") is None


def test_groups_of_a_job(tmp_path):
    """The limit may be that of any group above the one that a process is in."""
    own = tmp_path / "cgroup"
    own.write_text("0::/slurm/job_7/step_0\n")
    slurm = tmp_path / "slurm"
    groups = [tmp_path, slurm, slurm / "job_7", slurm / "job_7" / "step_0"]
    assert _groups(tmp_path, own) == groups
    own.write_text("0::/\n")
    assert _groups(tmp_path, own) == [tmp_path]
    assert _groups(tmp_path, tmp_path / "nowhere") == []


def test_the_least_counts(monkeypatch):
    monkeypatch.setattr(memory, "_groups", lambda: [0, 10, 30])
    monkeypatch.setattr(memory, "_left_to_container", lambda group: group or None)
    assert available_memory() == 10
    monkeypatch.setattr(memory, "_left_to_container", lambda group: None)
    assert available_memory() == memory._left_to_machine()

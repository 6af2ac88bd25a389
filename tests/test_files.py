"""Only regular files of a bounded size are read."""

import os
from pathlib import Path

import pytest

from acclimate.classify.table import read_results
from acclimate.errors import InputError
from acclimate.files import check_writable, read_regular
from acclimate.serve.security import read_tokens


def test_a_regular_file_is_read_up_to_a_size(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("x")
    assert read_regular(tmp_path / "x", 10) == read_regular(str(tmp_path / "link"), 11) == b"0123456789"
    with pytest.raises(OSError, match="more than the 9 allowed"):
        read_regular(tmp_path / "x", 9)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 10)


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    handles = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match="a pipe, not a regular file"):
        read_regular(tmp_path / "pipe", 10)
    with pytest.raises(OSError, match="a device, not a regular file"):
        read_regular(tmp_path / "zero", 10)
    assert len([*Path("/proc/self/fd").iterdir()]) == handles


@pytest.mark.parametrize("read", [read_results, read_tokens, check_writable])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_results_and_tokens_are_regular_files(tmp_path, read, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(InputError, match=r"pipe|device"):
            read(tmp_path / f"{name}{suffix}")

"""Private folders and files: modes, links and owners."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainop.local import private_files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_was_there_is_closed_to_others(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", tmp_path / "file"
    folder.mkdir(mode=0o755)
    file.touch(0o644)
    private_files.ensure_directory(folder)
    private_files.ensure_directory(tmp_path / "deep" / "new")
    private_files.restrict(file)
    private_files.restrict(tmp_path / "missing")
    private_files.replace_text(tmp_path / "config", "token")
    private_files.replace_text(tmp_path / "config", "another")
    assert [mode(folder), mode(tmp_path / "deep/new"), mode(file), mode(tmp_path / "config")] == [
        *(0o700, 0o700),
        *(0o600, 0o600),
    ]
    assert (tmp_path / "config").read_text() == "another"
    assert not (tmp_path / "missing").exists()


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "file").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="link is a symbolic link; use its target"):
        private_files.ensure_directory(tmp_path / "link")
    with pytest.raises(OSError, match="file is a symbolic link; use its target"):
        private_files.open_file(tmp_path / "file", os.O_WRONLY)
    assert mode(victim) == 0o755
    assert not (tmp_path / "made").exists()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("content")
    with pytest.raises(OSError, match="fifo is not a regular file"):
        private_files.open_file(tmp_path / "fifo", os.O_RDONLY)
    assert private_files.read_start(tmp_path / "fifo", 10) == b""
    assert private_files.read_start(tmp_path / "file", 4) == b"cont"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    os.chown(tmp_path / "data", 12345, -1)
    with pytest.raises(PermissionError, match="data belongs to another user"):
        private_files.ensure_directory(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o755

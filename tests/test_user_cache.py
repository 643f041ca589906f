"""What other users may have written is not used, and what they may exchange is not written."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from paceline import user_cache
from paceline.concurrency.check.engine import Examined
from paceline.concurrency.check.run import FOLDER, Cache
from paceline.interfaces.api.planning.choose import open_card
from paceline.planning.planner import validating
from paceline.planning.planner.card import Card, default_file
from tests.planning.planner.cards import CARD

STRANGER = 65534
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can act as another user")


def test_files_and_folders_are_their_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        user_cache.write(tmp_path / "a" / "b" / "file", b"1")
        user_cache.append(tmp_path / "a" / "b" / "more", b"2")
    finally:
        os.umask(before)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in sorted((tmp_path / "a").rglob("*"))}
    assert modes == {"b": 0o700, "file": 0o600, "more": 0o600}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    user_cache.append(tmp_path / "a" / "b" / "more", b"3")
    assert user_cache.read(tmp_path / "a" / "b" / "more") == b"23"


def test_a_folder_that_others_may_write_is_neither_read_nor_written(tmp_path: Path) -> None:
    user_cache.write(tmp_path / "cache" / "file", b"1")
    (tmp_path / "cache").chmod(0o770)
    for use in (user_cache.read, lambda file: user_cache.write(file, b"2"), lambda file: user_cache.append(file, b"2")):
        with pytest.raises(PermissionError, match="other users may write it"):
            use(tmp_path / "cache" / "file")
    assert (tmp_path / "cache" / "file").read_bytes() == b"1"


@pytest.mark.parametrize("kind", ["writable", "link", "fifo", "folder", pytest.param("stranger", marks=needs_root)])
def test_what_is_not_the_users_own_file_is_not_read_and_is_replaced(kind: str, tmp_path: Path) -> None:
    file, target = tmp_path / "cache" / "file", tmp_path / "target"
    user_cache.write(file, b"own")
    target.write_bytes(b"another's")
    if kind in ("link", "fifo", "folder"):
        file.unlink()
    {
        "writable": lambda: file.chmod(0o666),
        "link": lambda: file.symlink_to(target),
        "fifo": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "stranger": lambda: os.chown(file, STRANGER, STRANGER),
    }[kind]()
    for use in (user_cache.read, lambda file: user_cache.append(file, b"more")):
        with pytest.raises(OSError):  # and nothing waits for a FIFO's writer
            use(file)
    if kind == "folder":
        with pytest.raises(OSError):
            user_cache.write(file, b"new")
        assert [each.name for each in file.parent.iterdir()] == ["file"]  # no draft stays
    else:
        user_cache.write(file, b"new")
        assert (user_cache.read(file), target.read_bytes()) == (b"new", b"another's")


def test_a_link_at_the_name_of_a_draft_is_not_followed(tmp_path: Path) -> None:
    file, target = tmp_path / "file", tmp_path / "target"
    target.write_bytes(b"mine")
    for name in (f"file.{os.getpid()}", "file.new"):
        (tmp_path / name).symlink_to(target)
    user_cache.write(file, b"new")
    assert (target.read_bytes(), file.is_symlink()) == (b"mine", False)


@needs_root
def test_a_folder_of_a_stranger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    os.chown(tmp_path / "cache", STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        user_cache.write(tmp_path / "cache" / "file", b"1")
    assert not list((tmp_path / "cache").iterdir())


@needs_root
@pytest.mark.parametrize("owner", [0, STRANGER])
def test_a_link_instead_of_the_folder_has_to_be_the_users_own(owner: int, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(mine)
    os.chown(tmp_path / "cache", owner, owner, follow_symlinks=False)
    if owner == 0:
        user_cache.write(tmp_path / "cache" / "file", b"1")
        return
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        user_cache.write(tmp_path / "cache" / "file", b"1")
    assert not list(mine.iterdir())


# --- what lies there ---


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paceline"


def test_a_card_that_others_may_have_written_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("paceline.interfaces.api.planning.choose.measured_card", lambda say: CARD)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(CARD.cores))
    CARD.keep()
    default_file().chmod(0o666)
    assert open_card(None, lines.append) == CARD
    assert "other users may write it" in lines[0]
    assert Card.kept() == CARD  # it was measured and written anew
    cache.chmod(0o777)
    assert open_card(None, lines.append) == CARD
    assert f"the card cannot be kept in {cache}: other users may write it (mode 777)" in lines[-1]


def test_a_table_of_validations_that_others_may_have_written_is_not_used(cache: Path) -> None:
    entry = validating.Entry("p", 2, "t", "d", "j", "ring", "autograd", "calibrated", 1.0, 0.1, 1.0)
    validating.append([entry], None)
    validating.append([entry], None)
    assert validating.read(None) == [entry, entry]
    validating.default_file().chmod(0o666)
    assert validating.read(None) == []
    with pytest.raises(PermissionError):
        validating.append([entry], None)


def test_a_project_cannot_have_its_check_write_elsewhere(tmp_path: Path) -> None:
    cache, target = Cache(tmp_path), tmp_path / "bashrc"
    target.write_text("mine")
    cache.put("first\n", Examined([], None, ()))
    (kept,) = (tmp_path / FOLDER).glob("*.json")
    kept.unlink()
    kept.symlink_to(target)
    cache.put("first\n", Examined([], None, ()))
    assert target.read_text() == "mine"
    assert (tmp_path / FOLDER / ".gitignore").read_text() == "*\n"


@needs_root
def test_a_stranger_gets_nothing_into_a_shared_cache() -> None:
    """With the rights of another user, in a folder that everybody may write, as /scratch is on clusters."""
    with tempfile.TemporaryDirectory() as folder:  # which a stranger can reach, unlike `tmp_path`
        shared = Path(folder)
        shared.chmod(0o777)
        user_cache.write(shared / "kernels" / "file", b"own")
        attack = "echo bad >kernels/file; mv kernels away; mkdir kernels; echo bad >kernels/file"
        who = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
        subprocess.run(["sh", "-c", attack], cwd=shared, stderr=subprocess.DEVNULL, **who)  # type: ignore[call-overload]
        assert (shared / "away" / "file").read_bytes() == b"own"
        with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
            user_cache.read(shared / "kernels" / "file")

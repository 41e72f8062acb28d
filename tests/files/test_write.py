import errno
import itertools
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.locks import locked
from fairseq_lxsr.files.write import (
    atomic_folder,
    atomic_write,
    remove_planted,
    restore_folder,
    target_of,
)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_folder(tmp_path):
    write_folder(tmp_path / "model", "old")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "model", "marker") as work:
        (work / "marker").write_text("new")
        raise ZeroDivisionError
    assert contents(tmp_path / "model") == {"old"}
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_a_file_is_written_into_folders_that_do_not_exist(tmp_path):
    path = tmp_path / "a" / "b" / "c.npy"
    with atomic_write(path, "wb") as stream:
        stream.write(b"rows")
    assert path.read_bytes() == b"rows"
    assert os.listdir(path.parent) == ["c.npy"]


def test_a_folder_replaces_only_a_folder_with_its_marker(tmp_path):
    for content in ("old", "new"):
        write_folder(tmp_path / "model", content)
    assert contents(tmp_path / "model") == {"new"}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("mine")
    message = r"folder.*config\.json"
    with pytest.raises(InputError, match=message), atomic_folder(folder, "config.json"):
        pass
    with pytest.raises(InputError, match=r"folder .*\bours\b.*\bfile\b"):
        atomic_folder(folder, "file", sign="ours").__enter__()
    (folder / "file").write_text("ours")
    with atomic_folder(folder, "file", sign="ours"):
        pass
    assert list(folder.iterdir()) == []


CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod"}


def is_change(event: str, arguments: tuple) -> bool:
    """Whether an audit event of Python changes files."""
    if event == "open":
        flags = arguments[2]
        return not isinstance(flags, int) or bool(flags & (os.O_WRONLY | os.O_RDWR))
    return event in CHANGES


def is_killed_before_change(number: int, action) -> bool:
    """Run `action` in a process that is killed just before its file change of this number, from 1.

    Returns:
        Whether it was killed; it is not if it makes fewer changes.
    """
    child = os.fork()
    if not child:
        counter = itertools.count(1)

        def watch(event, arguments):
            if is_change(event, arguments) and next(counter) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def write_folder(path, content: str) -> None:
    with atomic_folder(path, "marker") as work:
        for name in ("marker", "data"):
            (work / name).write_text(content)


def contents(path) -> set[str]:
    return {(path / name).read_text() for name in ("marker", "data")}


def test_links_and_folders_of_other_users_are_not_restored(tmp_path):
    """They may have been planted under the name of a folder that is being replaced."""
    (tmp_path / "elsewhere").mkdir()
    planted = tmp_path / ".folder.host.1.old"
    planted.symlink_to(tmp_path / "elsewhere")
    restore_folder(tmp_path / "folder")
    assert planted.is_symlink()
    planted.unlink()
    planted.mkdir()
    if os.geteuid() == 0:
        os.chown(planted, 12345, -1)
        restore_folder(tmp_path / "folder")
        assert planted.is_dir()
        os.chown(planted, 0, -1)
    # A folder of the user is restored.
    restore_folder(tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_an_unfinished_file_of_another_user_is_removed(tmp_path):
    for owner, is_kept in ((0, True), (12345, False)):
        (tmp_path / "x.part").write_bytes(b"x")
        os.chown(tmp_path / "x.part", owner, -1)
        remove_planted(tmp_path / "x.part")
        assert (tmp_path / "x.part").exists() == is_kept


@pytest.mark.parametrize("reads_first", [True, False], ids=["then read", "then written"])
def test_after_a_kill_at_any_moment_the_folder_is_the_old_or_the_new_one(tmp_path, reads_first):
    contents_after_kills = []
    for number in itertools.count(1):
        path = tmp_path / str(number) / "model"
        write_folder(path, "old")
        is_killed = is_killed_before_change(number, lambda path=path: write_folder(path, "new"))
        if reads_first:
            restore_folder(path)
            contents_after_kills.append(*contents(path))
        # A write that fails also cleans up after the kill.
        with pytest.raises(ZeroDivisionError), atomic_folder(path, "marker"):
            raise ZeroDivisionError
        assert contents(path) <= {"old", "new"}
        write_folder(path, "newest")
        assert contents(path) == {"newest"}
        assert list(path.parent.iterdir()) == [path]
        if not is_killed:
            break
    assert number > 8
    # Up to some change it is the old folder, and from there on the new one.
    num_old = contents_after_kills.count("old")
    assert contents_after_kills[:num_old] == ["old"] * num_old


def test_a_reader_that_restores_the_old_folder_during_a_write_does_no_harm(tmp_path, monkeypatch):
    path = tmp_path / "model"
    replace = os.replace
    write_folder(path, "old")

    def replace_then_restore(source, target):
        replace(source, target)
        if source == path:
            monkeypatch.setattr(os, "replace", replace)
            restore_folder(path)

    monkeypatch.setattr(os, "replace", replace_then_restore)
    write_folder(path, "new")
    assert contents(path) == {"new"}
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_folder_is_kept_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    path = tmp_path / "model"
    replace = os.replace
    write_folder(path, "old")

    def refuse(source, target):
        if target == path:
            monkeypatch.setattr(os, "replace", replace)
            raise PermissionError(1, "no", str(path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_folder(path, "new")
    assert contents(path) == {"old"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "", "..", "../model/../model", "../.."])
def test_the_working_directory_is_not_replaced(tmp_path, monkeypatch, name):
    write_folder(tmp_path / "model", "old")
    monkeypatch.chdir(tmp_path / "model")
    with pytest.raises(InputError, match="working directory"):
        write_folder(name, "new")
    assert contents(tmp_path / "model") == {"old"}
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    write_folder("../other/../other", "new")
    assert contents(tmp_path / "other") == {"new"}


def test_temporary_files_of_a_killed_process_are_removed_by_the_next_write(tmp_path):
    script = """
        import os, signal, sys
        from fairseq_lxsr.files.write import atomic_folder, atomic_write

        with atomic_write(sys.argv[1] + "/file"):
            with atomic_folder(sys.argv[1] + "/folder", "marker") as work:
                (work / "x").write_text("x")
                os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    subprocess.run(command, timeout=60)
    # A temporary file and folder, and the lock of the folder.
    assert len(list(tmp_path.iterdir())) == 3
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "folder").exists()

    with atomic_write(tmp_path / "file") as stream, atomic_write(tmp_path / "file2"):
        stream.write("whole")
        with atomic_folder(tmp_path / "folder", "marker") as work:
            (work / "marker").touch()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file2", "folder"]
    (tmp_path / "plain").write_text("x")
    assert mode(tmp_path / "file") == mode(tmp_path / "plain")


@pytest.mark.parametrize(
    ("hidden", "unfinished", "is_removed"),
    [
        (".index.container1.1.abc.old", False, True),
        (".index.container1.1.abc.old", True, True),
        (".index.node.cluster.1.abc.old", False, True),
        (".index.de.container1.1.abc.old", True, False),
        (".indexes.container1.1.abc.old", False, False),
    ],
)
def test_old_folders_of_other_hosts_are_removed(tmp_path, hidden, unfinished, is_removed):
    """A folder that may be the only copy of `index.de` is kept."""
    old = tmp_path / hidden
    with atomic_folder(tmp_path / "index"):
        pass
    old.mkdir()
    if unfinished:
        old.with_suffix(".tmp").mkdir()
    with atomic_folder(tmp_path / "index"):
        pass
    assert old.exists() != is_removed
    shutil.rmtree(tmp_path / "index")
    if is_removed:
        restore_folder(tmp_path / "index")
        assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    "use", [atomic_write, atomic_folder, lambda path: locked(path.with_name("lock"), path)]
)
def test_the_error_for_a_missing_permission_names_the_given_path(tmp_path, monkeypatch, use):
    """The names of temporary files and of locks would not help users."""

    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for name in ("open", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PermissionError) as caught, use(tmp_path / "given"):
        pass
    assert caught.value.filename == str(tmp_path / "given")
    monkeypatch.undo()
    with (
        pytest.raises(FileNotFoundError) as caught,
        atomic_folder(tmp_path / "given", "marker") as work,
    ):
        (work / "none" / "x").write_text("x")
    assert caught.value.filename == str(tmp_path / "given")


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("value", [0o600, 0o640, 0o664, 0o444])
def test_a_new_file_has_the_mode_of_the_old_one_from_the_beginning(tmp_path, value):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(value)
    with atomic_write(path) as stream:
        stream.write("new")
        modes = sorted(mode(file) for file in tmp_path.iterdir())
        assert modes == sorted([value, value | 0o600])
    assert path.read_text() == "new"
    assert mode(path) == value | 0o600


@pytest.mark.parametrize("value", [0o600, 0o640, 0o664, 0o444])
def test_a_new_folder_and_its_files_have_the_modes_of_the_old_ones(tmp_path, value):
    folder = tmp_path / "folder"
    write_folder(folder, "old")
    (folder / "data").chmod(value)
    folder.chmod(value | 0o700)
    with atomic_folder(folder, "marker") as work:
        assert mode(work) == 0o700
        for name in ("marker", "data", "more"):
            (work / name).write_text("new")
    assert mode(folder / "data") == value | 0o600
    assert mode(folder / "more") == mode(folder / "marker")
    assert mode(folder) == value | 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to any group")
def test_a_new_file_keeps_the_group_or_denies_it_access(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, -1, 12345)
    path.chmod(0o660)
    with atomic_write(path) as stream:
        stream.write("new")
    assert path.stat().st_gid == 12345
    assert mode(path) == 0o660

    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with atomic_write(path) as stream:
        stream.write("newest")
    assert path.stat().st_gid == os.getgid()
    assert mode(path) == 0o600


def test_files_are_flushed_to_disk_before_they_are_renamed(tmp_path, monkeypatch):
    events = []
    fsync = os.fsync
    replace = os.replace

    def watch_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(path.name.split(".")[-1])
        fsync(descriptor)

    def watch_replace(source, target):
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    with atomic_write(tmp_path / "file") as stream:
        stream.write("new")
    write_folder(tmp_path / "folder", "new")
    assert events == ["tmp", "rename", "data", "marker", "tmp", "rename"]


def test_links_at_temporary_names_are_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0")
    for name in ("file", "folder"):
        (tmp_path / f".{name}.{socket.gethostname()}.{os.getpid()}.0.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError, match="file"), atomic_write(tmp_path / "file"):
        pass
    with pytest.raises(FileExistsError, match="folder"), atomic_folder(tmp_path / "folder"):
        pass
    assert victim.read_text() == "precious"


def test_a_second_writer_of_a_folder_is_refused_and_the_first_named(tmp_path):
    with atomic_folder(tmp_path / "model", "marker") as work:
        (work / "marker").touch()
        message = rf"model: .*\(process {os.getpid()} on .*\)"
        with pytest.raises(InputError, match=message), atomic_folder(tmp_path / "model", "marker"):
            pass
        with atomic_folder(tmp_path / "model2", "marker"):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model2"]


def test_links_to_folders_are_followed_and_links_to_files_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/new")
    (tmp_path / "circle").symlink_to("circle")
    assert target_of(tmp_path / "link") == tmp_path / "real" / "new"
    assert target_of("plain") == Path("plain")
    with pytest.raises(InputError, match="circle"):
        target_of(tmp_path / "circle")
    write_folder(tmp_path / "link", "new")
    assert contents(tmp_path / "real" / "new") == {"new"}
    (tmp_path / "side").symlink_to("real/new/marker")
    with atomic_write(tmp_path / "side") as stream:
        stream.write("side")
    assert contents(tmp_path / "real" / "new") == {"new"}
    assert not (tmp_path / "side").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "link", "real", "side"]


def test_two_readers_may_restore_a_folder_at_once(tmp_path, monkeypatch):
    """The other reader, or a writer, renames the folder before this one does."""
    path = tmp_path / "model"
    replace = os.replace
    write_folder(path, "old")
    for is_reader in (True, False):
        path.rename(tmp_path / ".model.host.1.x.old")

        def move_first(source, target, is_reader=is_reader):
            if is_reader:
                replace(source, target)
            else:
                shutil.copytree(source, target)
            replace(source, target)

        monkeypatch.setattr(os, "replace", move_first)
        restore_folder(path)
        assert contents(path) == {"old"}

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


def test_failed_write_leaves_the_old_file_or_folder_and_nothing_else(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
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


def test_folder_replaces_its_own_kind_only(tmp_path):
    for content in ("old", "new"):
        write_folder(tmp_path / "model", content)
    assert contents(tmp_path / "model") == {"new"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with (
        pytest.raises(InputError, match=r"other.*config\.json"),
        atomic_folder(tmp_path / "other", "config.json"),
    ):
        pass
    with pytest.raises(InputError, match=r"other .*\bours\b.*\bfile\b"):
        atomic_folder(tmp_path / "other", "file", sign="ours").__enter__()
    (tmp_path / "other" / "file").write_text("ours")
    with atomic_folder(tmp_path / "other", "file", sign="ours"):
        pass
    assert list((tmp_path / "other").iterdir()) == []


CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "open"}


def killed_before_change(number: int, action) -> bool:
    """Run `action` in a process that is killed just before its file change of this number, from 1.

    Returns: whether it was killed; not where it makes fewer changes.
    """
    child = os.fork()
    if not child:
        seen = itertools.count(1)

        def watch(event, arguments):
            reads = event == "open" and not (
                isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            )
            if event in CHANGES and not reads and next(seen) == number:
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


def test_a_planted_folder_is_not_restored(tmp_path):
    """A link to a folder, and that of another user, under the name of a folder that is being
    replaced.
    """
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
    restore_folder(tmp_path / "folder")  # our own
    assert (tmp_path / "folder").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_an_unfinished_file_of_another_user_is_not_gone_on_from(tmp_path):
    for owner, is_left in ((0, True), (12345, False)):
        (tmp_path / "x.part").write_bytes(b"x")
        os.chown(tmp_path / "x.part", owner, -1)
        remove_planted(tmp_path / "x.part")
        assert (tmp_path / "x.part").exists() == is_left


@pytest.mark.parametrize("reads_first", [True, False], ids=["then read", "then written"])
def test_killed_before_any_change_a_folder_is_the_old_one_or_the_new_one(tmp_path, reads_first):
    found = []
    for number in itertools.count(1):
        path = tmp_path / str(number) / "model"
        write_folder(path, "old")
        killed = killed_before_change(number, lambda path=path: write_folder(path, "new"))
        if reads_first:
            restore_folder(path)
            found.append(*contents(path))
        with pytest.raises(ZeroDivisionError), atomic_folder(path, "marker"):
            raise ZeroDivisionError
        assert contents(path) <= {"old", "new"}
        write_folder(path, "newest")
        assert contents(path) == {"newest"}
        assert list(path.parent.iterdir()) == [path]
        if not killed:
            break
    assert number > 8
    assert found == sorted(found, reverse=True)


def test_a_reader_that_restores_the_old_folder_too_early_does_no_harm(tmp_path, monkeypatch):
    path, replace = tmp_path / "model", os.replace
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


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    path, replace = tmp_path / "model", os.replace
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
def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch, name):
    write_folder(tmp_path / "model", "old")
    monkeypatch.chdir(tmp_path / "model")
    with pytest.raises(InputError, match="working directory"):
        write_folder(name, "new")
    assert contents(tmp_path / "model") == {"old"}
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    write_folder("../other/../other", "new")
    assert contents(tmp_path / "other") == {"new"}


def test_what_a_killed_process_left_is_removed(tmp_path):
    script = (
        "import os, signal, sys\nfrom fairseq_lxsr.files.write import atomic_folder, atomic_write\n"
        "with atomic_write(sys.argv[1] + '/file'), atomic_folder(sys.argv[1] + '/folder', "
        "'marker') as work:\n"
        "    (work / 'x').write_text('x')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60)
    assert len(list(tmp_path.iterdir())) == 3  # with the lock of the folder
    assert not any((tmp_path / name).exists() for name in ("file", "folder"))
    with atomic_write(tmp_path / "file") as stream, atomic_write(tmp_path / "file2"):
        stream.write("whole")
        with atomic_folder(tmp_path / "folder", "marker") as work:
            (work / "marker").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file2", "folder"]
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


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
def test_an_old_folder_of_another_host_does_not_come_back(tmp_path, hidden, unfinished, is_removed):
    """One that may be the only copy of `index.de` stays."""
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
def test_a_path_without_permission_is_the_one_that_was_given(tmp_path, monkeypatch, use):
    """The names of temporary files and of locks say nothing."""

    def refuse(path, *others, **options):
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
def test_what_replaces_a_file_or_folder_has_its_mode_from_the_beginning(tmp_path, value):
    path, folder = tmp_path / "file", tmp_path / "folder"
    path.write_text("old")
    path.chmod(value)
    with atomic_write(path) as stream:
        stream.write("new")
        assert sorted(mode(there) for there in tmp_path.iterdir()) == sorted([value, value | 0o600])
    assert (path.read_text(), mode(path)) == ("new", value | 0o600)
    write_folder(folder, "old")
    (folder / "data").chmod(value)
    folder.chmod(value | 0o700)
    with atomic_folder(folder, "marker") as work:
        assert mode(work) == 0o700
        for name in ("marker", "data", "more"):
            (work / name).write_text("new")
    assert [mode(folder / name) for name in ("data", "more", ".")] == [
        value | 0o600,
        mode(folder / "marker"),
        value | 0o700,
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to any group")
def test_no_other_group_may_read_what_replaces_a_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, -1, 12345)
    path.chmod(0o660)
    with atomic_write(path) as stream:
        stream.write("new")
    assert (path.stat().st_gid, mode(path)) == (12345, 0o660)

    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with atomic_write(path) as stream:
        stream.write("newest")
    assert (path.stat().st_gid, mode(path)) == (os.getgid(), 0o600)


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def watch(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split(".")[-1])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    monkeypatch.setattr(
        os, "replace", lambda old, new: (events.append("rename"), replace(old, new))
    )
    with atomic_write(tmp_path / "file") as stream:
        stream.write("new")
    write_folder(tmp_path / "folder", "new")
    assert events == ["tmp", "rename", "data", "marker", "tmp", "rename"]


def test_what_was_planted_at_a_temporary_name_is_neither_followed_nor_kept(tmp_path, monkeypatch):
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


def test_a_second_writer_of_a_folder_is_told_of_the_first(tmp_path):
    with atomic_folder(tmp_path / "model", "marker") as work:
        (work / "marker").touch()
        message = rf"model: .*\(process {os.getpid()} on .*\)"
        with pytest.raises(InputError, match=message), atomic_folder(tmp_path / "model", "marker"):
            pass
        with atomic_folder(tmp_path / "model2", "marker"):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model2"]


def test_a_link_that_is_named_is_followed_and_one_beside_it_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/new")
    (tmp_path / "circle").symlink_to("circle")
    assert target_of(tmp_path / "link") == tmp_path / "there" / "new"
    assert target_of("plain") == Path("plain")
    with pytest.raises(InputError, match="circle"):
        target_of(tmp_path / "circle")
    write_folder(tmp_path / "link", "new")
    assert contents(tmp_path / "there" / "new") == {"new"}
    (tmp_path / "side").symlink_to("there/new/marker")
    with atomic_write(tmp_path / "side") as stream:
        stream.write("side")
    assert (contents(tmp_path / "there" / "new"), (tmp_path / "side").is_symlink()) == (
        {"new"},
        False,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "link", "side", "there"]


def test_two_readers_restore_a_folder_at_once(tmp_path, monkeypatch):
    """The other one, or the writer, has renamed it after this one has found it."""
    path, replace = tmp_path / "model", os.replace
    write_folder(path, "old")
    for faster in ("old", "new"):
        path.rename(tmp_path / ".model.host.1.x.old")

        def move_first(source, target, faster=faster):
            if faster == "old":
                replace(source, target)
            else:
                shutil.copytree(source, target)
            replace(source, target)

        monkeypatch.setattr(os, "replace", move_first)
        restore_folder(path)
        assert contents(path) == {"old"}

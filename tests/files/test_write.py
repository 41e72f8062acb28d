"""Files and folders that are complete or not there, whenever their writer fails or is killed."""

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


def write_folder(path, content: str) -> None:
    """Write a folder with two files of this content, of which `marker` marks it as ours."""
    with atomic_folder(path, "marker") as work:
        for name in ("marker", "data"):
            (work / name).write_text(content)


def contents(path) -> set[str]:
    """Return the content of both files of `write_folder`, or both contents if they differ."""
    return {(path / name).read_text() for name in ("marker", "data")}


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write("half")
        raise ZeroDivisionError

    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["scores.json"]


def test_a_failed_write_leaves_the_old_folder_and_no_other(tmp_path):
    write_folder(tmp_path / "model", "old")

    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "model", "marker") as work:
        (work / "marker").write_text("new")
        raise ZeroDivisionError

    assert contents(tmp_path / "model") == {"old"}
    assert names_in(tmp_path) == ["model"]


def test_a_file_is_written_into_folders_that_do_not_exist_yet(tmp_path):
    path = tmp_path / "a" / "b" / "c.npy"

    with atomic_write(path, "wb") as stream:
        stream.write(b"rows")

    assert path.read_bytes() == b"rows"
    assert names_in(path.parent) == ["c.npy"]


def test_a_folder_with_the_marker_is_replaced(tmp_path):
    write_folder(tmp_path / "model", "old")

    write_folder(tmp_path / "model", "new")

    assert contents(tmp_path / "model") == {"new"}


@pytest.fixture
def folder_of_user(tmp_path):
    """A folder with a file, which this package has not written."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("mine")
    return folder


def test_a_folder_without_the_marker_is_not_replaced(folder_of_user):
    message = r"folder exists and does not contain config\.json"

    with pytest.raises(InputError, match=message), atomic_folder(folder_of_user, "config.json"):
        pass

    assert (folder_of_user / "file").read_text() == "mine"


def test_a_folder_whose_marker_lacks_the_sign_is_not_replaced(folder_of_user):
    """Other programs write files of this name too, but not with this text."""
    message = r"folder exists .*no ours in file"

    with (
        pytest.raises(InputError, match=message),
        atomic_folder(folder_of_user, "file", sign="ours"),
    ):
        pass

    assert (folder_of_user / "file").read_text() == "mine"


def test_a_folder_whose_marker_has_the_sign_is_replaced(folder_of_user):
    (folder_of_user / "file").write_text("this folder is ours")

    with atomic_folder(folder_of_user, "file", sign="ours"):
        pass

    assert names_in(folder_of_user) == []


# Events of Python's audit hooks, which are called before a system call.
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


# A user who is not the one of the tests, and a group that no user is in.
OTHER_USER = 12345
OTHER_GROUP = 12345


# While a folder is replaced, the old one has a hidden name, and a killed writer leaves it there.
HIDDEN_MODEL = ".model.host.1.x.old"


def test_a_hidden_old_folder_of_this_user_is_restored(tmp_path):
    write_folder(tmp_path / HIDDEN_MODEL, "old")

    restore_folder(tmp_path / "model")

    assert contents(tmp_path / "model") == {"old"}
    assert names_in(tmp_path) == ["model"]


def test_a_link_with_the_name_of_a_hidden_old_folder_is_not_restored(tmp_path):
    """Another user may have planted it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / HIDDEN_MODEL).symlink_to(tmp_path / "elsewhere")

    restore_folder(tmp_path / "model")

    assert names_in(tmp_path) == [HIDDEN_MODEL, "elsewhere"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_a_hidden_old_folder_of_another_user_is_not_restored(tmp_path):
    (tmp_path / HIDDEN_MODEL).mkdir()
    os.chown(tmp_path / HIDDEN_MODEL, OTHER_USER, -1)

    restore_folder(tmp_path / "model")

    assert names_in(tmp_path) == [HIDDEN_MODEL]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
@pytest.mark.parametrize(
    ("owner", "is_removed"), [(os.geteuid(), False), (OTHER_USER, True)], ids=["own", "other"]
)
def test_an_unfinished_file_is_removed_if_another_user_has_planted_it(tmp_path, owner, is_removed):
    path = tmp_path / "x.part"
    path.write_bytes(b"x")
    os.chown(path, owner, -1)

    remove_planted(path)

    assert path.exists() != is_removed


def write_and_kill_before_every_change(folder):
    """Replace old folders by new ones, the first killed before its first change of files, the second
    before its second, ..., until a writer makes all its changes.

    Yields:
        The path of each folder, after its writer was killed, or has ended in the last case.
    """
    for number in itertools.count(1):
        path = folder / str(number) / "model"
        write_folder(path, "old")
        is_killed = is_killed_before_change(number, lambda path=path: write_folder(path, "new"))
        yield path
        if not is_killed:
            # At least the two files, their folder, the lock and the renames were changes.
            assert number > 8
            return


def test_a_reader_finds_the_old_or_the_new_folder_after_a_kill_at_any_moment(tmp_path):
    contents_after_kills = []
    for path in write_and_kill_before_every_change(tmp_path):
        restore_folder(path)
        # Both files are of the same folder.
        (content,) = contents(path)
        contents_after_kills.append(content)

    # Killed before some change it is the old folder, and from there on the new one.
    num_old = contents_after_kills.count("old")
    num_new = len(contents_after_kills) - num_old
    assert contents_after_kills == ["old"] * num_old + ["new"] * num_new


def test_a_failing_writer_leaves_the_old_or_the_new_folder_after_a_kill_at_any_moment(tmp_path):
    for path in write_and_kill_before_every_change(tmp_path):
        with pytest.raises(ZeroDivisionError), atomic_folder(path, "marker"):
            raise ZeroDivisionError

        assert contents(path) in ({"old"}, {"new"})
        assert names_in(path.parent) == ["model"]


@pytest.mark.parametrize("is_read_first", [True, False], ids=["read first", "written at once"])
def test_the_next_writer_cleans_up_after_a_kill_at_any_moment(tmp_path, is_read_first):
    for path in write_and_kill_before_every_change(tmp_path):
        if is_read_first:
            restore_folder(path)

        write_folder(path, "newest")

        assert contents(path) == {"newest"}
        assert names_in(path.parent) == ["model"]


def test_a_folder_is_replaced_although_a_reader_restores_the_old_one_meanwhile(
    tmp_path, monkeypatch
):
    path = tmp_path / "model"
    write_folder(path, "old")
    replace = os.replace

    def replace_then_restore(source, target):
        replace(source, target)
        if source == path:
            # The old folder has its hidden name now. The reader comes once.
            monkeypatch.setattr(os, "replace", replace)
            restore_folder(path)

    monkeypatch.setattr(os, "replace", replace_then_restore)
    write_folder(path, "new")

    assert contents(path) == {"new"}
    assert names_in(tmp_path) == ["model"]


def test_the_old_folder_is_kept_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    path = tmp_path / "model"
    write_folder(path, "old")
    replace = os.replace

    def refuse_the_new_folder(source, target):
        if target == path:
            # Only once, so that the old folder can be renamed.
            monkeypatch.setattr(os, "replace", replace)
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_the_new_folder)
    with pytest.raises(PermissionError):
        write_folder(path, "new")

    assert contents(path) == {"old"}
    assert names_in(tmp_path) == ["model"]


@pytest.mark.parametrize("name", [".", "", "..", "../model/../model", "../.."])
def test_the_working_directory_and_the_folders_above_it_are_not_replaced(
    tmp_path, monkeypatch, name
):
    write_folder(tmp_path / "model", "old")
    monkeypatch.chdir(tmp_path / "model")

    with pytest.raises(InputError, match="working directory"):
        write_folder(name, "new")

    assert contents(tmp_path / "model") == {"old"}
    assert names_in(tmp_path) == ["model"]


def test_a_folder_next_to_the_working_directory_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")

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
    assert len(names_in(tmp_path)) == 3
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "folder").exists()

    with atomic_write(tmp_path / "file") as stream:
        stream.write("whole")
    with atomic_folder(tmp_path / "folder", "marker") as work:
        (work / "marker").touch()

    assert names_in(tmp_path) == ["file", "folder"]


def test_two_files_of_one_folder_can_be_written_at_once(tmp_path):
    """Neither of the writers removes the temporary file of the other."""
    with atomic_write(tmp_path / "file") as stream, atomic_write(tmp_path / "file2") as stream2:
        stream.write("1")
        stream2.write("2")

    assert (tmp_path / "file").read_text() == "1"
    assert (tmp_path / "file2").read_text() == "2"


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    with atomic_write(tmp_path / "atomic") as stream:
        stream.write("x")

    (tmp_path / "plain").write_text("x")
    assert mode(tmp_path / "atomic") == mode(tmp_path / "plain")


# The hidden name of an old folder is .FOLDER.HOST.PROCESS.RANDOM.old, and that of an unfinished
# folder of the same writer ends in .tmp instead.
@pytest.mark.parametrize(
    ("hidden", "is_unfinished"),
    [
        (".index.container1.1.abc.old", False),
        (".index.container1.1.abc.old", True),
        # The host is node.cluster, or the folder `index.node` on the host `cluster`. Without an
        # unfinished folder, its writer has ended.
        (".index.node.cluster.1.abc.old", False),
    ],
    ids=["finished", "unfinished", "host with a dot"],
)
def test_the_hidden_old_folder_of_a_writer_on_another_host_is_removed(
    tmp_path, hidden, is_unfinished
):
    """Otherwise a reader would restore it once the folder is removed."""
    old = tmp_path / hidden
    write_folder(tmp_path / "index", "1")
    old.mkdir()
    if is_unfinished:
        old.with_suffix(".tmp").mkdir()

    write_folder(tmp_path / "index", "2")

    assert not old.exists()
    shutil.rmtree(tmp_path / "index")
    restore_folder(tmp_path / "index")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("hidden", "is_unfinished"),
    [
        # It may be the only copy of `index.de`, which its writer is just replacing.
        (".index.de.container1.1.abc.old", True),
        # It belongs to the folder `indexes`.
        (".indexes.container1.1.abc.old", False),
    ],
    ids=["may be of index.de", "of indexes"],
)
def test_the_hidden_old_folder_that_may_belong_to_another_folder_is_kept(
    tmp_path, hidden, is_unfinished
):
    old = tmp_path / hidden
    write_folder(tmp_path / "index", "1")
    old.mkdir()
    if is_unfinished:
        old.with_suffix(".tmp").mkdir()

    write_folder(tmp_path / "index", "2")

    assert old.exists()


@pytest.mark.parametrize(
    "use",
    [atomic_write, atomic_folder, lambda path: locked(path.with_name("lock"), path)],
    ids=["file", "folder", "lock"],
)
def test_the_error_for_a_missing_permission_names_the_output(tmp_path, monkeypatch, use):
    """The names of temporary files and of locks would not help users."""

    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for name in ("open", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PermissionError) as caught, use(tmp_path / "output"):
        pass

    assert caught.value.filename == str(tmp_path / "output")


def test_the_error_for_a_file_in_a_temporary_folder_names_the_output(tmp_path):
    with (
        pytest.raises(FileNotFoundError) as caught,
        atomic_folder(tmp_path / "output", "marker") as work,
    ):
        (work / "no such folder" / "x").write_text("x")

    assert caught.value.filename == str(tmp_path / "output")


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Modes of an old file. The owner may always read and write the new one: 0o600 is added.
MODES = pytest.mark.parametrize(
    ("old_mode", "new_mode"),
    [(0o600, 0o600), (0o640, 0o640), (0o664, 0o664), (0o444, 0o644)],
    ids=oct,
)


@MODES
def test_a_new_file_has_the_mode_of_the_old_one_from_the_beginning(tmp_path, old_mode, new_mode):
    """Otherwise others could read it while it is written."""
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(old_mode)

    with atomic_write(path) as stream:
        stream.write("new")
        (temporary_file,) = set(tmp_path.iterdir()) - {path}
        assert mode(temporary_file) == new_mode
        assert mode(path) == old_mode

    assert path.read_text() == "new"
    assert mode(path) == new_mode


@MODES
def test_a_new_folder_and_its_files_have_the_modes_of_the_old_ones(tmp_path, old_mode, new_mode):
    folder = tmp_path / "folder"
    write_folder(folder, "old")
    (folder / "data").chmod(old_mode)
    # The owner can always enter the folder.
    folder.chmod(old_mode | 0o700)

    write_folder(folder, "new")

    assert mode(folder) == old_mode | 0o700
    assert mode(folder / "data") == new_mode
    assert (folder / "data").read_text() == "new"


@MODES
def test_only_the_owner_may_enter_a_folder_that_replaces_another_until_it_is_complete(
    tmp_path, old_mode, new_mode
):
    folder = tmp_path / "folder"
    write_folder(folder, "old")
    folder.chmod(old_mode | 0o700)

    with atomic_folder(folder, "marker") as work:
        (work / "marker").write_text("new")
        assert mode(work) == 0o700


@MODES
def test_a_file_that_the_old_folder_lacks_has_the_mode_of_any_new_file(
    tmp_path, old_mode, new_mode
):
    folder = tmp_path / "folder"
    write_folder(folder, "old")
    (folder / "data").chmod(old_mode)
    folder.chmod(old_mode | 0o700)

    with atomic_folder(folder, "marker") as work:
        for name in ("marker", "data", "more"):
            (work / name).write_text("new")

    (tmp_path / "any new file").touch()
    assert mode(folder / "more") == mode(tmp_path / "any new file")
    # The mode of `marker` in the old folder was that of any new file, too.
    assert mode(folder / "more") == mode(folder / "marker")


@pytest.fixture
def file_of_other_group(tmp_path):
    """A file that another group may read and write."""
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, -1, OTHER_GROUP)
    path.chmod(0o660)
    return path


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to any group")
def test_a_new_file_has_the_group_of_the_old_one(file_of_other_group):
    with atomic_write(file_of_other_group) as stream:
        stream.write("new")

    assert file_of_other_group.stat().st_gid == OTHER_GROUP
    assert mode(file_of_other_group) == 0o660


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to any group")
def test_a_new_file_that_cannot_have_the_group_of_the_old_one_denies_access_to_its_group(
    file_of_other_group, monkeypatch
):
    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with atomic_write(file_of_other_group) as stream:
        stream.write("new")

    assert file_of_other_group.stat().st_gid == os.getgid()
    assert mode(file_of_other_group) == 0o600


@pytest.fixture
def disk_events(monkeypatch) -> list[str]:
    """Record what is flushed, by the suffix or name of the file or folder, and "rename"."""
    events = []
    fsync = os.fsync
    replace = os.replace

    def watch_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(path.suffix or path.name)
        fsync(descriptor)

    def watch_replace(source, target):
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    return events


def test_a_file_is_flushed_to_disk_before_it_is_renamed(tmp_path, disk_events):
    with atomic_write(tmp_path / "file") as stream:
        stream.write("new")

    # The temporary name ends in .tmp.
    assert disk_events == [".tmp", "rename"]


def test_a_folder_and_its_files_are_flushed_to_disk_before_it_is_renamed(tmp_path, disk_events):
    write_folder(tmp_path / "folder", "new")

    assert disk_events == ["data", "marker", ".tmp", "rename"]


@pytest.mark.parametrize("write", [atomic_write, atomic_folder], ids=["file", "folder"])
def test_a_link_at_the_temporary_name_is_refused_and_not_followed(tmp_path, monkeypatch, write):
    """Another user who guesses the name may have planted it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    # Without this, the temporary name is random.
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0")
    temporary_name = f".output.{socket.gethostname()}.{os.getpid()}.0.tmp"
    (tmp_path / temporary_name).symlink_to(victim)

    with pytest.raises(FileExistsError, match="output"), write(tmp_path / "output"):
        pass

    assert victim.read_text() == "precious"


def test_a_second_writer_of_a_folder_is_refused_and_the_first_named(tmp_path):
    with atomic_folder(tmp_path / "model"):
        message = rf"model: .*\(process {os.getpid()} on .*\)"
        with pytest.raises(InputError, match=message), atomic_folder(tmp_path / "model"):
            pass

    assert names_in(tmp_path) == ["model"]


def test_two_folders_can_be_written_at_once(tmp_path):
    with atomic_folder(tmp_path / "model"), atomic_folder(tmp_path / "model2"):
        pass

    assert names_in(tmp_path) == ["model", "model2"]


def test_the_target_of_a_link_is_what_it_points_to_even_if_that_does_not_exist(tmp_path):
    (tmp_path / "link").symlink_to("folder/new")

    assert target_of(tmp_path / "link") == tmp_path / "folder" / "new"


def test_the_target_of_a_plain_path_is_the_path():
    assert target_of("plain") == Path("plain")


def test_a_link_to_itself_has_no_target_and_is_refused(tmp_path):
    (tmp_path / "circle").symlink_to("circle")

    with pytest.raises(InputError, match="circle"):
        target_of(tmp_path / "circle")


def test_a_folder_is_written_where_a_link_points_to(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/new")

    write_folder(tmp_path / "link", "new")

    assert contents(tmp_path / "disk" / "new") == {"new"}
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path) == ["disk", "link"]


def test_a_link_to_a_file_is_replaced_and_its_target_unchanged(tmp_path):
    (tmp_path / "target").write_text("target")
    (tmp_path / "link").symlink_to("target")

    with atomic_write(tmp_path / "link") as stream:
        stream.write("new")

    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "target"


@pytest.mark.parametrize("is_reader", [True, False], ids=["reader", "writer"])
def test_a_reader_that_restores_a_folder_later_than_another_process_raises_no_error(
    tmp_path, monkeypatch, is_reader
):
    """Another reader has renamed the folder, or a writer has put a new one in its place."""
    path = tmp_path / "model"
    write_folder(tmp_path / HIDDEN_MODEL, "old")
    replace = os.replace

    def replace_too_late(source, target):
        if is_reader:
            replace(source, target)
        else:
            shutil.copytree(source, target)
        # Fails, because the source is missing or the target exists.
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_too_late)
    restore_folder(path)

    assert contents(path) == {"old"}

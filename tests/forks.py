"""Commands that run in forks of one process, which has imported torch and fairseq: each starts in
milliseconds.

As a script this file is that process: `python forks.py PARENT FOLDER NAME MODULE,... [NAME
MODULE,...]`. `start` starts it and writes `lxsr`, `fairseq-train`, `fairseq-generate`, `pytest` and
`python` into FOLDER/NAME/bin, for PATH.

LXSR_SHRINK in the environment of a command names a module with a function `shrink(name,
arguments)`, which returns the arguments to use instead.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

ENTRIES = {
    "lxsr": ("fairseq_lxsr.cli.main", "main"),
    "fairseq-train": ("fairseq_cli.train", "cli_main"),
    "fairseq-generate": ("fairseq_cli.generate", "cli_main"),
    "pytest": ("pytest", "console_main"),
}
# Modules of fairseq, for tests of importing the package.
FAIRSEQ = ("fairseq_cli.train", "fairseq_cli.hydra_train")
# All modules: --user-dir imports the families of tasks, and every optimizer torch._dynamo.
PRELOADED = (
    "fairseq_cli.train",
    "fairseq_cli.generate",
    "fairseq_lxsr.cli.main",
    "fairseq_lxsr.encoder",
    "fairseq_lxsr.tasks.families",
    "torch._dynamo",
)
CLIENT = """#!{python} -ISE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect({address!r})
    content = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]) + "\\n"
    socket.send_fds(client, [content.encode()], [0, 1, 2])
    sys.exit(int(client.recv(8) or 1))
"""
# Seconds until everything is imported, on a busy machine.
STARTS_WITHIN = 240


@contextlib.contextmanager
def commands(folder: Path, **variables: str) -> Iterator[Path]:
    """A folder with the commands, while the process behind them runs.

    Args:
        folder: an empty folder.
        variables: of the environment of that process; of a command, what its own environment says.
    """
    server = start(folder, {"all": PRELOADED}, os.getpid(), **variables)
    try:
        yield folder / "all" / "bin"
    finally:
        server.kill()
        server.wait()


def start(
    folder: Path, preloaded: dict[str, Sequence[str]], parent: int, **variables: str
) -> subprocess.Popen[bytes]:
    """Write the commands, and start the process behind them.

    Args:
        folder: a folder with a short path, because addresses of sockets are short; it is removed
            when `parent` ends.
        preloaded: names of sets of commands, and the modules that they have imported; the second
            set has those of the first one too, which are imported once.
        parent: the number of a process; when it ends, the process behind the commands ends.
        variables: as for `commands`.
    """
    words = []
    sockets = []
    for group, modules in preloaded.items():
        bin_folder = folder / group / "bin"
        bin_folder.mkdir(parents=True)
        sockets.append(folder / group / "socket")
        for name in (*ENTRIES, "python"):
            client = bin_folder / name
            address = str(sockets[-1])
            client.write_text(CLIENT.format(python=sys.executable, address=address, name=name))
            client.chmod(0o755)
        words += [group, ",".join(modules)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"} | variables
    command = [sys.executable, __file__, str(parent), str(folder), *words]
    server = subprocess.Popen(command, env=environment)
    for _ in range(STARTS_WITHIN * 10):
        if all(path.exists() for path in sockets):
            return server
        assert server.poll() is None, "the process behind the commands ended"
        time.sleep(0.1)
    server.kill()
    raise TimeoutError(f"the process behind the commands is not ready after {STARTS_WITHIN} s")


def serve(address: str, parent: int) -> None:
    # A collection in a fork would copy the memory of all objects that were imported.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{address}.new")
        server.listen()
        server.settimeout(1)
        os.rename(f"{address}.new", address)
        # A pytest that was killed cannot end this process.
        while is_alive(parent):
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os._exit(answer(client))
            client.close()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def reap(*_) -> None:
    """Wait for the forks that have ended; they have sent their status to the client."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def answer(client: socket.socket) -> int:
    """Run the command of a client, with the client's files, folder and environment.

    This process is killed when the client ends.
    """
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    # The end of the client sends SIGIO, which kills.
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    content, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not content.endswith(b"\n"):
        content += client.recv(1 << 20)
    name, arguments, folder, environment = json.loads(content)
    for file, number in zip(files, range(3), strict=True):
        os.dup2(file, number)
    # The streams of Python remember properties of the old files, for example that they are seekable.
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Commands that this command starts are forks too.
    sys.executable = shutil.which("python") or sys.executable
    os.execv = lambda _, words: sys.exit(subprocess.run(words).returncode)  # type: ignore[assignment,misc]
    # Python itself sets its options -W in the same way.
    while name == "python" and arguments[:1] == ["-W"]:
        warnings._setoption(arguments[1])  # type: ignore[attr-defined]
        arguments = arguments[2:]
    if shrink := environment.get("LXSR_SHRINK"):
        arguments = importlib.import_module(shrink).shrink(name, arguments)
    status = run(name, arguments)
    # os._exit leaves these functions out.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    client.sendall(str(status).encode())
    return status


def run(name: str, arguments: list[str]) -> int:
    """The exit status of a command."""
    sys.argv = [name, *arguments]
    try:
        try:
            return int(call(name, arguments) or 0)
        except Exception:
            # Python calls the hook at the end of a program; the plugin installs its own.
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    return 1


def call(name: str, arguments: list[str]) -> int | None:
    if name != "python":
        module, function = ENTRIES[name]
        return getattr(importlib.import_module(module), function)()
    if arguments[0] == "-c":
        sys.argv = arguments[:1] + arguments[2:]
        exec(arguments[1], {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
    return None


def main(parent: int, folder: str, *words: str) -> None:
    """Serve each set of commands with its modules imported; all but the last one from a fork."""
    groups = list(zip(words[::2], words[1::2], strict=True))
    for group, modules in groups:
        for module in modules.split(","):
            importlib.import_module(module)
        is_last = group == groups[-1][0]
        if is_last or os.fork() == 0:
            serve(os.path.join(folder, group, "socket"), parent)
            break
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])

"""Set up .venv with everything that `make test` needs, or `make demo`: once, with the versions of
constraints.txt.

python tools/install.py          everything
python tools/install.py demo     what training, evaluation and the report need

Plain syntax on purpose: an old Python must get as far as the sentence that says it is too old.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
CONSTRAINTS = os.path.join(ROOT, "constraints.txt")
FAIRSEQ = os.path.join(ROOT, "fairseq_lxsr", "recipes", "fairseq.txt")
LOG = os.path.join(VENV, "install.log")
STAMP = os.path.join(VENV, "installed")  # what it was made with
OLDEST, NEWEST = (3, 11), (3, 13)
# extras of pyproject.toml beside those of training, time, GB, and GB where torch comes with CUDA
SETS = {
    "demo": (["prepare", "report"], "1 to 2 minutes", 1.5, 5.5),
    "all": (["dev"], "2 to 4 minutes", 3, 7),
}

# what pip needs for a package from source, without isolation; wheel for pip 23.0, that of Debian 12
BUILD = ["setuptools", "wheel"]
# in fairseq's setup.py: no extension modules, so neither a compiler nor Python's headers are needed
UNBUILT = {"READTHEDOCS": "1"}


def stop(sentence):
    sys.stderr.write("install: " + sentence + "\n")
    sys.exit(2)


def dotted(version):
    return ".".join(map(str, version))


def check_python():
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        stop(
            "%s is Python %s; fairseq-lxsr needs %s to %s: name one, for example PYTHON=python3.11 make test"
            % (sys.executable, dotted(sys.version_info[:2]), dotted(OLDEST), dotted(NEWEST))
        )


def check_machine(wanted):
    free = shutil.disk_usage(ROOT).free / 1e9
    needed = SETS[wanted][2] + 1
    if free < needed:
        stop(
            "%.1f GB free on the disk of %s; the installation needs %.1f GB" % (free, ROOT, needed)
        )


def fingerprint():
    digest = hashlib.sha256(sys.version.encode())
    for name in (
        CONSTRAINTS,
        FAIRSEQ,
        os.path.join(ROOT, "pyproject.toml"),
        os.path.abspath(__file__),
    ):
        with open(name, "rb") as stream:
            digest.update(stream.read())
    return digest.hexdigest()


def installed(wanted):
    """Whether .venv has what is wanted; where it has everything, it has the demo's part too."""
    try:
        with open(STAMP) as stream:
            made, name = stream.read().split()
    except (OSError, ValueError):
        return False
    return made == fingerprint() and name in (wanted, "all") and os.path.exists(PYTHON)


def run(what, command, **variables):
    """Run one step, its output to the log; where it fails, say so with the end of the log."""
    sys.stdout.write("install: %s ... " % what)
    sys.stdout.flush()
    start = time.time()
    with open(LOG, "ab") as log:
        code = subprocess.call(
            command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ, **variables)
        )
    if code:
        sys.stdout.write("failed\n")
        sys.stdout.flush()
        with open(LOG, "rb") as log:
            tail = [
                line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()
            ][-5:]
        sys.stderr.write("".join("  %s\n" % line for line in tail))
        full = " (the disk is full)" if any("No space left" in line for line in tail) else ""
        stop("%s failed%s; the whole log is %s" % (what, full, LOG))
    sys.stdout.write("%.0f s\n" % (time.time() - start))


def pip(what, arguments, **variables):
    run(what, [PYTHON, "-m", "pip", "install", "-q", "-c", CONSTRAINTS] + arguments, **variables)


def same_python():
    """Whether .venv is there and of this Python (an interrupted installation goes on in it)."""
    try:
        version = subprocess.check_output(
            [PYTHON, "-c", "import sys, pip; print(sys.version)"], stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return version.decode().strip() == sys.version


def make_venv():
    if not same_python():
        code = subprocess.call([sys.executable, "-m", "venv", "--clear", VENV])
        if code:
            shutil.rmtree(VENV, ignore_errors=True)
            stop(
                "%s -m venv failed; install the venv module, for example apt install python3-venv"
                % sys.executable
            )
    open(LOG, "wb").close()


def dependencies(*extras):
    """What pyproject.toml lists for the package, or for some of its extras, which may name
    others.
    """
    import tomllib  # only a new Python has it

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as stream:
        project = tomllib.load(stream)["project"]
    if not extras:
        return project["dependencies"]
    found = []  # type: list[str]
    for name in extras:
        for requirement in project["optional-dependencies"][name]:
            own = re.match(re.escape(project["name"]) + r"\[(.*)\]$", requirement)
            found += dependencies(*own.group(1).split(",")) if own else [requirement]
    return sorted(set(found))


def install(wanted):
    """Everything into .venv, in an order that downloads torch once."""
    extras, minutes, size, with_cuda = SETS[wanted]
    print(
        "install: into %s, once: %s, %g GB (%g GB where torch comes with CUDA)"
        % (VENV, minutes, size, with_cuda)
    )
    make_venv()
    # torch comes first: a package that asks for any torch would bring another build of several GB
    pip(
        "torch and what encoding and search need",
        dependencies() + dependencies("torch", "faiss") + BUILD,
    )
    pip("what fairseq needs", dependencies("train"))
    # not built: training/fairseq_patches.py has what fairseq needs of it
    pip("fairseq", ["--no-deps", "--no-build-isolation", "-r", FAIRSEQ], **UNBUILT)
    pip("the extras %s" % ", ".join(extras), dependencies(*extras))
    pip("fairseq-lxsr itself", ["--no-deps", "--no-build-isolation", "-e", ROOT])
    with open(STAMP, "w") as stream:
        stream.write(fingerprint() + " " + wanted)


if __name__ == "__main__":
    check_python()
    WANTED = sys.argv[1] if len(sys.argv) > 1 else "all"
    if WANTED not in SETS:
        stop("%s: expected one of %s" % (WANTED, ", ".join(sorted(SETS))))
    if not installed(WANTED):
        check_machine(WANTED)
        install(WANTED)

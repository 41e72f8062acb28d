"""Set up .venv once, with the versions of constraints.txt.

python tools/install.py          everything that `make test` needs
python tools/install.py demo     what training, evaluation and the report need

The syntax is compatible with old Python versions, so that they can print the message that they are
too old.
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
PYPROJECT = os.path.join(ROOT, "pyproject.toml")
LOG = os.path.join(VENV, "install.log")
# Marks a finished installation, and contains the fingerprint of its inputs and its set.
STAMP = os.path.join(VENV, "installed")
OLDEST = (3, 11)
NEWEST = (3, 13)
# For each set: the extras of pyproject.toml in addition to those of training, the time, the size in
# GB, and the size with CUDA.
SETS = {
    "demo": (["prepare", "report"], "1 to 2 minutes", 1.5, 5.5),
    "all": (["dev"], "2 to 4 minutes", 3, 7),
}

# What pip needs to build packages without isolation; pip 23.0 of Debian 12 needs wheel.
BUILD = ["setuptools", "wheel"]
# With this variable, fairseq's setup.py does not build extension modules, so that neither a
# compiler nor Python's headers are needed.
UNBUILT = {"READTHEDOCS": "1"}


def stop(message):
    """Print a message, and exit with status 2."""
    sys.stderr.write("install: " + message + "\n")
    sys.exit(2)


def dotted(version):
    """Return a version as text."""
    return ".".join(map(str, version))


def check_python():
    """Stop if this Python is too old or too new."""
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        stop(
            "%s is Python %s; expected %s to %s: name another, for example PYTHON=python3.11 make "
            "test" % (sys.executable, dotted(version), dotted(OLDEST), dotted(NEWEST))
        )


def check_machine(set_name):
    """Stop if the disk does not have enough space."""
    free = shutil.disk_usage(ROOT).free / 1e9
    required = SETS[set_name][2] + 1
    if free < required:
        stop(
            "%.1f GB free on the disk of %s; expected at least %.1f GB: free some space"
            % (free, ROOT, required)
        )


def fingerprint():
    """Return a hash of everything that an installation depends on."""
    digest = hashlib.sha256(sys.version.encode())
    for name in (CONSTRAINTS, FAIRSEQ, PYPROJECT, os.path.abspath(__file__)):
        with open(name, "rb") as stream:
            digest.update(stream.read())
    return digest.hexdigest()


def installed(set_name):
    """Return whether .venv has a set; the set `all` contains the others."""
    try:
        with open(STAMP) as stream:
            digest, installed_set = stream.read().split()
    except (OSError, ValueError):
        return False
    if installed_set not in (set_name, "all"):
        return False
    return digest == fingerprint() and os.path.exists(PYTHON)


def run(step, command, **variables):
    """Run a step with its output in the log; if it fails, print the end of the log and stop."""
    sys.stdout.write("install: %s ... " % step)
    sys.stdout.flush()
    start = time.time()
    environment = dict(os.environ, **variables)
    with open(LOG, "ab") as log:
        code = subprocess.call(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    if code:
        sys.stdout.write("failed\n")
        sys.stdout.flush()
        stop_with_log(step)
    sys.stdout.write("%.0f s\n" % (time.time() - start))


def stop_with_log(step):
    """Print the last lines of the log, and stop with the message that a step has failed."""
    with open(LOG, "rb") as log:
        lines = log.read().decode("utf-8", "replace").splitlines()
    tail = [line for line in lines if line.strip()][-5:]
    sys.stderr.write("".join("  %s\n" % line for line in tail))
    reason = ""
    if any("No space left" in line for line in tail):
        reason = " (the disk is full)"
    stop("%s failed%s; the complete log is %s" % (step, reason, LOG))


def pip(step, arguments, **variables):
    """Install packages, with the versions of constraints.txt."""
    run(step, [PYTHON, "-m", "pip", "install", "-q", "-c", CONSTRAINTS] + arguments, **variables)


def same_python():
    """Return whether .venv has this Python; an interrupted installation then continues in it."""
    program = "import sys, pip; print(sys.version)"
    try:
        version = subprocess.check_output([PYTHON, "-c", program], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return False
    return version.decode().strip() == sys.version


def make_venv():
    """Make .venv unless it has this Python, and start a new log."""
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
    """Return the requirements of the package, or of some of its extras, from pyproject.toml.

    An extra may include other extras of the package.
    """
    # Old versions of Python do not have this module.
    import tomllib

    with open(PYPROJECT, "rb") as stream:
        project = tomllib.load(stream)["project"]
    if not extras:
        return project["dependencies"]
    requirements = []  # type: list[str]
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            extras_match = re.match(re.escape(project["name"]) + r"\[(.*)\]$", requirement)
            if extras_match:
                requirements += dependencies(*extras_match.group(1).split(","))
            else:
                requirements.append(requirement)
    return sorted(set(requirements))


def install(set_name):
    """Install a set into .venv, in an order in which torch is downloaded only once."""
    extras, minutes, size, size_with_cuda = SETS[set_name]
    print(
        "install: into %s, once: %s, %g GB (%g GB if torch comes with CUDA)"
        % (VENV, minutes, size, size_with_cuda)
    )
    make_venv()
    # torch is first: a package that accepts any torch would install another build of several GB.
    pip(
        "torch and what encoding and search need",
        dependencies() + dependencies("torch", "faiss") + BUILD,
    )
    pip("what fairseq needs", dependencies("train"))
    # The tasks of this project do not need what fairseq would build.
    pip("fairseq", ["--no-deps", "--no-build-isolation", "-r", FAIRSEQ], **UNBUILT)
    pip("the extras %s" % ", ".join(extras), dependencies(*extras))
    pip("fairseq-lxsr itself", ["--no-deps", "--no-build-isolation", "-e", ROOT])
    with open(STAMP, "w") as stream:
        stream.write(fingerprint() + " " + set_name)


def main():
    check_python()
    set_name = sys.argv[1] if len(sys.argv) > 1 else "all"
    if set_name not in SETS:
        stop("%s: expected one of %s" % (set_name, ", ".join(sorted(SETS))))
    if not installed(set_name):
        check_machine(set_name)
        install(set_name)


if __name__ == "__main__":
    main()

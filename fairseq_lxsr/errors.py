"""Bad input is reported in one line, with exit status 2 and no traceback."""

import contextlib
import sys
from collections.abc import Iterator

EXIT_STATUS = 2


class InputError(ValueError):
    """Something the user can mend: the message names the value, where it is, what was expected and what to do."""


@contextlib.contextmanager
def exit_on_input_error(program: str) -> Iterator[None]:
    """Turn an `InputError`, or a file system that refuses, into `program: error: ...` and exit status 2.

    Every function that reads or writes files for a command runs inside this.
    """
    try:
        yield
    except InputError as error:
        message = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}; check the path, the permissions and the free space"
    else:
        return
    print(f"{program}: error: {message}", file=sys.stderr)
    sys.exit(EXIT_STATUS)

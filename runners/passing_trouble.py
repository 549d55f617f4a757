"""Whether what went wrong while files were read is the machine's trouble, which may pass, and says nothing of the
files."""

from __future__ import annotations

import errno
import re

from runners import out_of_memory

# What a path itself can be wrong about. Other numbers (an input/output error, a stale handle of NFS, too many open
# files, a full disk) are not about it.
OF_THE_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
SAID = re.compile(r"can't start new thread|CUDA error|CUDA driver|cuBLAS|Resource temporarily unavailable")


def passing_trouble(error: BaseException | None) -> BaseException | None:
    """The first of an error and its causes that is the machine's trouble; None where none is."""
    while error is not None:
        if isinstance(error, MemoryError):
            return error
        if isinstance(error, OSError) and error.errno is not None and error.errno not in OF_THE_PATH:
            return error
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, RuntimeError) and (SAID.search(told) or out_of_memory.find(told)):
            return error
        error = error.__cause__
    return None

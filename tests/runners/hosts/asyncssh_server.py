"""A real ssh server where there is no sshd: ``python asyncssh_server.py FOLDER PORT USER [FIRST]``.

The keys are the folder's. Runs commands by the shell as sshd does, and forwards to its own loopback only. What ran over
a connection that ends loses its standard input and output, as under sshd; it is not killed. FIRST: a command before
every command.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import asyncssh

FIRST = "".join(sys.argv[4:]) or ":"


class Server(asyncssh.SSHServer):
    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host == "127.0.0.1"


async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        f"{FIRST}; {process.command or 'true'}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path.home(),
        start_new_session=True,
    )
    told = asyncio.create_task(pump(process.stdin, child.stdin))
    await asyncio.gather(pump(child.stdout, process.stdout), pump(child.stderr, process.stderr))
    code = await child.wait()
    told.cancel()
    if code >= 0:
        process.exit(code)
    else:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))


async def pump(source: Any, sink: Any) -> None:
    """Copies until the source ends, or nobody takes it any more."""
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except (OSError, asyncssh.Error):
        pass
    if isinstance(sink, asyncio.StreamWriter):
        sink.close()


async def main(folder: Path, port: int, user: str) -> None:
    os.environ.setdefault("USER", user)
    await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=Server,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=handle,
        encoding=None,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))

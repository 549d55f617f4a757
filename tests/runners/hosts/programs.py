"""A stand-in for ``nvidia-smi``: a real program that answers as the vendor's does, for a machine that has no GPU."""

from __future__ import annotations

from pathlib import Path

SMI = r"""#!/bin/sh
# One card. What is asked is in the arguments; values stand in a file beside this program, a line each: name value.
place=$(dirname "$0")/values
answer() { # the values of a comma-separated list of names
    line=""
    for name in $(echo "$1" | tr ',' ' '); do
        value=$(sed -n "s/^$name //p" "$place")
        line="$line, ${value:-[N/A]}"
    done
    echo "${line#, }"
}
loop=""
for argument in "$@"; do
    case "$argument" in
        --query-gpu=*) query="${argument#--query-gpu=}" ;;
        --query-compute-apps=*) sed -n "s/^process //p" "$place"; exit 0 ;;
        --loop-ms=*) loop=yes ;;
    esac
done
if [ -z "$query" ]; then echo "| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: 13.0     |"; exit 0; fi
answer "$query"
while [ -n "$loop" ]; do sleep 0.2; answer "$query"; done
"""
VALUES = {
    "index": "0",
    "uuid": "GPU-1",
    "name": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "driver_version": "580.1",
    "memory.total": "97887",
    "memory.used": "1024",
    "power.limit": "300.00",
    "clocks.max.mem": "14001",
    "clocks.mem": "405",
    "clocks.sm": "180",
    "pcie.link.width.current": "8",
    "pcie.link.width.max": "16",
    "power.draw": "21.50",
    "enforced.power.limit": "300.00",
    "temperature.gpu": "31",
    "clocks_throttle_reasons.active": "0x0000000000000004",
    "process": "GPU-1, 4321, 2048, /usr/bin/python3",
}


def write_smi(folder: Path, values: dict[str, str] | None = None) -> Path:
    """Puts the program into ``folder``, for the front of a PATH; returns the file of its values."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(SMI, encoding="utf-8")
    program.chmod(0o755)
    file = folder / "values"
    write_values(file, values or VALUES)
    return file


def write_values(file: Path, values: dict[str, str]) -> None:
    file.write_text("".join(f"{name} {value}\n" for name, value in values.items()), encoding="utf-8")

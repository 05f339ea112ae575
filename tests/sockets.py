"""Ports of this machine: a free one, and who listens where."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

HOST = "127.0.0.1"


def get_free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def get_processes(session: int) -> dict[int, str]:
    """Return the name of each process of a session (Linux); its leader's pid is its number."""
    names = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, after = re.findall(r"\((.*)\) (.*)", (folder / "stat").read_text())[0]
        except (OSError, IndexError):
            continue
        if int(after.split()[3]) == session:
            names[int(folder.name)] = name
    return names


def get_listening_addresses(session: int) -> set[str]:
    """Return the addresses on which the processes of a session accept connections (Linux)."""
    inodes = set()
    for pid in get_processes(session):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    addresses = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # 0A: LISTEN
                addresses.add(_read_address(fields[1].split(":")[0], family))
    return addresses


def _read_address(text: str, family: int) -> str:
    """Decode an address of /proc/net: words of 32 bits in the machine's byte order."""
    words = [bytes.fromhex(text[i : i + 8]) for i in range(0, len(text), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return socket.inet_ntop(family, b"".join(words))

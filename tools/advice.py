"""What to tell a person when the environment can't be made: pure functions from symptoms to sentences.

Standard library only, readable by any Python 3, like tools/bootstrap.py which calls them.
"""

import re
from typing import Optional, Tuple

NEEDED_BYTES = 6 * 1024**3
SYMPTOMS = (  # the first that matches a line of pip's output is the cause
    (
        r"No space left on device|Errno 28|not enough space",
        "The disk is full. Free some space (the environment needs about 6 GiB, 10 GiB with CUDA libraries) "
        "and run the same command again.",
    ),
    (
        r"name resolution|Failed to establish a new connection|Network is unreachable|ConnectTimeout|"
        r"NameResolutionError|getaddrinfo failed|Max retries exceeded|nodename nor servname|"
        r"Connection refused|ReadTimeout|No route to host",
        "The network can't be reached, so packages can't be downloaded. Check the connection (and the proxy, if "
        "you are behind one: HTTPS_PROXY) and run the same command again; what was downloaded is kept.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The secure connection was refused: a certificate is not trusted here. Behind a company proxy, set "
        "PIP_CERT to its certificate file and run the same command again.",
    ),
    (
        r"Requires-Python|requires a different Python",
        "A package does not support this Python. Use Python 3.11 to 3.14: make PYTHON=python3.11 lab.",
    ),
    (
        r"command '.*(gcc|cc|clang|cl\.exe)' failed|unable to execute|Python\.h|Microsoft Visual C\+\+",
        "A package had to be compiled and no working C compiler was found. Install one (Debian and Ubuntu: "
        "gcc and python3-dev; macOS: xcode-select --install).",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)|from versions: none",
        "A package of the lock is not to be had for this machine ({what}). Is this Linux, macOS on Apple silicon, "
        "or Windows, with a 64-bit Python? See TROUBLESHOOTING.md.",
    ),
    (
        r"Permission denied|Errno 13",
        "Files here can't be written. Is the repository in a folder that is yours?",
    ),
)


def python_too_old(version: Tuple[int, ...], oldest: Tuple[int, int]) -> str:
    """The sentence for a Python below `oldest` when no better one was found."""
    return (
        "This is Python %d.%d, and logra-lab needs Python %d.%d or newer. None was found under the names "
        "python3.11 to python3.14.\nInstall one (Debian and Ubuntu: apt install python3.11 python3.11-venv; macOS: "
        "brew install python@3.11), then run the same command again, or name it: make PYTHON=/path/to/python3.11 lab"
        % (version[0], version[1], oldest[0], oldest[1])
    )


def little_space(free: int) -> Optional[str]:
    """The sentence for a disk with fewer than NEEDED_BYTES `free` bytes, None if there is room."""
    if free >= NEEDED_BYTES:
        return None
    return (
        "The disk has %.1f GiB free and the environment needs about %.0f GiB. Free some space and run the same "
        "command again." % (free / 1024**3, NEEDED_BYTES / 1024**3)
    )


def no_venv(output: str, base: str) -> str:
    """The sentences for a `python -m venv` that failed with `output`."""
    if "ensurepip" in output or "No module named venv" in output:
        return (
            "%s can't make environments: its venv module is missing. Debian and Ubuntu keep it apart: "
            "apt install python3-venv (or python3.11-venv), then run the same command again." % base
        )
    return explain_install(output, None)


def explain_install(output: str, free: Optional[int]) -> str:
    """The cause and the remedy of a failed installation, from pip's `output` and the `free` bytes on the disk."""
    if free is not None and free < 50 * 1024**2:
        return SYMPTOMS[0][1]
    for pattern, sentence in SYMPTOMS:
        found = re.search(pattern, output)
        if found:
            return sentence.replace("{what}", found.groupdict().get("what") or "named above")
    last = output.strip().splitlines()[-1:] or ["(no output)"]
    return "The installation failed: %s\nAll of its output is in build/install.log." % last[0]

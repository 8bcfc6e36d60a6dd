"""`python -m logra_lab`: say what is installed, on what machine, and what works there."""

from __future__ import annotations

from logra_lab.lab import environment


def main() -> None:
    """Print the environment check."""
    print(environment.describe())


if __name__ == "__main__":
    main()

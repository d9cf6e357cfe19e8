"""The way into the `fairgate` command; `python -m gateway` is the same."""

import sys


def main() -> None:
    """Run the command line. A process that serves does without all other commands: 1 MB."""
    if sys.argv[1:2] == ["serve"]:
        from gateway.cli_serve import app
    else:
        from gateway.cli import app
    app()


if __name__ == "__main__":
    main()

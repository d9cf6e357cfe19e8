"""`python -m gateway` is `fairgate`."""

from gateway.cli import main

if __name__ == "__main__":
    main()

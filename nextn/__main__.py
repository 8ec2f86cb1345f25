"""`python -m nextn` is the `nextn` command."""

from nextn.cli import main

if __name__ == "__main__":
    main()

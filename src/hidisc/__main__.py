"""`python -m hidisc`."""

from hidisc.cli import main

if __name__ == "__main__":
    main()

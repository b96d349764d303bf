"""``python -m muster``: the command, where its script is not in the path."""

from muster.cli.app import main

if __name__ == "__main__":
    main()

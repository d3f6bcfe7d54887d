"""The command `segcal`, also `python -m segcal` (torchrun needs it)."""

import sys


def main() -> None:
    """Run the command line, or name the pip command if its packages are not installed."""
    from segcal.core.checks import require_app

    try:
        require_app("the command line")
    except ImportError as error:
        sys.exit(f"segcal: {error}")
    from segcal.cli import run

    run()


if __name__ == "__main__":
    main()

"""`python -m segcal` is `segcal`; torchrun needs it."""

from segcal.cli import main

main()

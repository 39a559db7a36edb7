"""`python -m echodraft`."""

from echodraft.cli import main

main()

"""`python -m trainop`."""

from trainop.cli import main

main()

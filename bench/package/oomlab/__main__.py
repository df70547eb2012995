"""python -m oomlab: the same as the command."""
from oomlab.command import main

main()

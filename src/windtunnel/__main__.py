"""`python -m windtunnel`: the command line where its script is not on the path."""

from windtunnel.cli.main import main

main()

"""One thin file per DVC stage."""

import sys

from windtunnel.core.endings import handle_signals

# Python imports this package before the stage, and the stage imports torch for seconds: Ctrl-C is one line then too.
# `-m` stands in argv[0] only while Python looks for the module to run, so that importing a stage does nothing.
if sys.argv[0] == "-m":
    handle_signals()

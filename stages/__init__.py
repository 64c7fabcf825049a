"""One thin file per DVC stage."""

import sys

from windtunnel.core.endings import handle_signals, user_errors
from windtunnel.core.own_source import require_own_source

# Python imports this package before the stage, and the stage imports torch for seconds: Ctrl-C is one line then too.
# `-m` stands in argv[0] only while Python looks for the module to run, so that importing a stage does nothing.
if sys.argv[0] == "-m":
    handle_signals()
    # No stage may record numbers that other code made than the one DVC hashed.
    with user_errors():
        require_own_source()

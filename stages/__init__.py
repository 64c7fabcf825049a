"""One thin file per DVC stage; `python -m windtunnel stage <stage>` runs the same in a project without them."""

#!/usr/bin/env bash
# What CI does for a pull request: pull the cache, reproduce, check, gate, compare. Usage: assess.sh BASE OUT
# Writes comment.md, comparison.html, gate.xml and sanity.xml into OUT. Ends with the gate's exit code: 0 passed, 10 failed,
# 20 unsound, 30 no verdict.
set -euo pipefail
base=$1
out=$2
mkdir -p "$out"
dvc pull --run-cache --allow-missing || echo "nothing pulled: what is not cached is computed here" >&2
dvc repro
windtunnel sanity --flagged --junit "$out/sanity.xml" >"$out/sanity.txt"
code=0
windtunnel gate --markdown --junit "$out/gate.xml" >"$out/gate.md" || code=$?
# A base without results is no reason to say nothing of this run.
windtunnel compare "$base" --markdown --html "$out/comparison.html" >"$out/compare.md" ||
  echo "There is nothing to compare with at \`$base\`: its dvc.lock or its results are unavailable." >"$out/compare.md"
{
  # By this line the next run finds the comment that it updates.
  echo "<!-- windtunnel -->"
  echo "## windtunnel"
  echo
  cat "$out/gate.md"
  echo
  echo "<details><summary>Against $base</summary>"
  echo
  cat "$out/compare.md"
  echo
  echo "</details>"
  if [ -n "${WINDTUNNEL_ARTIFACTS:-}" ]; then echo; echo "[Report, pictures and test reports]($WINDTUNNEL_ARTIFACTS)"; fi
} >"$out/comment.md"
dvc push --run-cache || echo "nothing pushed: the next run computes it again" >&2
exit "$code"
